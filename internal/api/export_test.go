package api

import (
	"net/url"

	"dayfly.dev/dayfly"
)

// RouteInfo is a line of the route table, for the contract test.
type RouteInfo struct {
	Method, Path, Body string
	Open               bool
	Fields, Params     []string
}

// RouteTable shows the route table.
func RouteTable() []RouteInfo {
	var out []RouteInfo
	for _, rt := range routes() {
		out = append(out, RouteInfo{rt.method, rt.path, string(rt.body), rt.open, rt.fields, rt.params})
	}
	return out
}

// Statuses shows which status each code has.
func Statuses() map[string]int {
	out := map[string]int{}
	for code, status := range statuses {
		out[string(code)] = status
	}
	return out
}

// CheckBodies runs every body parser and tells whether the first took data.
func CheckBodies(data []byte) error {
	_, err := parseJSON(data, parseCreate)
	_, _ = parseJSON(data, parseExec)
	_, _ = parseJSON(data, parseExtend)
	_, _ = parseJSON(data, parseRelabel)
	_, _ = parseJSON(data, parsePutFile)
	_, _ = parseJSON(data, parseSignal)
	_, _ = parseJSON(data, parseNewKey)
	_, _ = parseJSON(data, parseLaunch)
	_, _ = parseJSON(data, parseSize)
	_, _ = parseJSON(data, parseMkdir)
	_, _ = parseJSON(data, parseMove)
	_, _ = parseJSON(data, parseChmod)
	_, _ = parseJSON(data, parseSearch)
	_, _ = parseJSON(data, parseFind)
	_ = jsonHash(data)
	return err
}

// MovedPaths parses a move and gives its paths.
func MovedPaths(data []byte) (from, to string, err error) {
	m, err := parseJSON(data, parseMove)
	return m.from, m.to, err
}

// Control parses a text frame of an attachment.
func Control(data []byte) (kind, signal string, size dayfly.TerminalSize, err error) {
	k, err := parseJSON(data, parseControl)
	return k.kind, k.signal.Signal, k.size, err
}

// OutputLine appends an event of output on stdout at offset 7.
func OutputLine(b, data []byte) []byte { return appendOutput(b, dayfly.OutputStdout, 7, data) }

// Mark reads the id of a server-sent event of output, and writes it again.
func Mark(s string) (at dayfly.Offsets, again string, ok bool) {
	at, ok = parseMark(s)
	return at, string(appendMark(nil, at)), ok
}

// LaunchStdinMax shows the bound of a background process's first input.
const LaunchStdinMax = launchStdinMax

// CreatedLabels parses a create and gives its labels.
func CreatedLabels(data []byte) (map[string]string, error) {
	r, err := parseJSON(data, parseCreate)
	return r.Labels, err
}

// CheckQueries runs every query parser.
func CheckQueries(raw string) error {
	_, err := readQuery(raw, parseFilter)
	_, _ = readQuery(raw, parseFiles)
	_, _ = readQuery(raw, parseWrite)
	_, _ = readQuery(raw, parseImport)
	_, _ = readQuery(raw, parseOutput)
	_, _ = readQuery(raw, parseArchive)
	_, _ = readQuery(raw, parseEvents)
	_, _ = readQuery(raw, parseProcesses)
	_, _ = readQuery(raw, parseAwait)
	_, _ = readQuery(raw, parseAttach)
	_, _ = readQuery(raw, parseWatch)
	return err
}

// WrittenPath parses the query of a PUT of a file.
func WrittenPath(raw string) (string, error) {
	w, err := readQuery(raw, parseWrite)
	return w.path, err
}

// Escaped writes a query with one path.
func Escaped(path string) string { return url.Values{"path": {path}}.Encode() }

// RangeOf parses a Range header and applies it. partial is false where the whole file is the answer.
func RangeOf(header string, size int64) (offset, length int64, partial, satisfiable bool, err error) {
	r, err := parseRange(header)
	if r == nil || err != nil {
		return 0, 0, false, false, err
	}
	part, ok := r.of(size)
	return part.Offset, part.Length, true, ok, nil
}
