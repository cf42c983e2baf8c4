package api

import "net/url"

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
	_ = jsonHash(data)
	return err
}

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
