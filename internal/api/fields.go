package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// fields reads a JSON object field by field. What is wrong is collected, so a parser reads on; absent fields give zero values.
// Each name that a parser asks for is remembered: those are the fields that exist.
type fields struct {
	in     map[string]json.RawMessage // nil: absent
	prefix string                     // of nested fields: "network."
	known  *[]string
	bad    *problems
}

func newFields(in map[string]json.RawMessage, prefix string, bad *problems) *fields {
	return &fields{in: in, prefix: prefix, known: new([]string), bad: bad}
}

// knownFields lists the fields that a parser asks for.
func knownFields[T any](parse func(*fields) T) []string {
	f := newFields(nil, "", &problems{})
	parse(f)
	return *f.known
}

// noFields is the parser of a body that has no fields.
func noFields(*fields) struct{} { return struct{}{} }

// finish reports fields that nobody asked for.
func (f *fields) finish() {
	for _, name := range slices.Sorted(maps.Keys(f.in)) {
		if !slices.Contains(*f.known, f.prefix+name) {
			f.bad.add(f.prefix+name, "unknown field")
		}
	}
}

func (f *fields) wrong(name, format string, args ...any) { f.bad.add(f.prefix+name, format, args...) }

// take gives a field's JSON. Null is refused: it is unclear what it should mean.
func (f *fields) take(name string) (json.RawMessage, bool) {
	*f.known = append(*f.known, f.prefix+name)
	raw, given := f.in[name]
	if given && string(raw) == "null" {
		f.wrong(name, "must not be null; leave the field out")
		return nil, false
	}
	return raw, given
}

// text reads a text without NUL.
func (f *fields) text(name string) (value string, given bool) {
	raw, given := f.take(name)
	if !given {
		return "", false
	}
	value, problem := parseText(raw)
	if problem != "" {
		f.wrong(name, "%s", problem)
		return "", false
	}
	return value, true
}

// content reads a text that may hold anything, NUL too.
func (f *fields) content(name string) (value string, given bool) {
	raw, given := f.take(name)
	if !given {
		return "", false
	}
	value, problem := parseAnyText(raw)
	if problem != "" {
		f.wrong(name, "%s", problem)
		return "", false
	}
	return value, true
}

// filled reads a text that must not be empty.
func (f *fields) filled(name string) (value string, given bool) {
	value, given = f.text(name)
	if given && value == "" {
		f.wrong(name, "must not be empty")
		return "", false
	}
	return value, given
}

// choice reads one of a few texts.
func (f *fields) choice(name string, options ...string) (value string, given bool) {
	value, given = f.text(name)
	if given && !slices.Contains(options, value) {
		f.wrong(name, "must be %s", strings.Join(options, " or "))
		return "", false
	}
	return value, given
}

// name reads a name as nameProblem allows it.
func (f *fields) name(name string) (value string, given bool) {
	value, given = f.text(name)
	if given {
		if problem := nameProblem(value); problem != "" {
			f.wrong(name, "%s", problem)
			return "", false
		}
	}
	return value, given
}

// path reads the path of a file inside a sandbox: as text, or where it is not UTF-8 as NAME_b64. absent is what stands for none
// of them; empty: one is needed.
func (f *fields) path(name, absent string) string {
	text, isText := f.text(name)
	encoded, isB64 := f.text(name + "_b64")
	_, hasText := f.in[name]
	_, hasB64 := f.in[name+"_b64"]
	switch {
	case hasText && hasB64:
		f.wrong(name+"_b64", "must not be given together with %s", name)
		return ""
	case !hasText && !hasB64:
		if absent == "" {
			f.wrong(name, "is missing")
		}
		return absent
	case isB64:
		data, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			f.wrong(name+"_b64", "must be standard base64 with padding")
			return ""
		}
		text, name = string(data), name+"_b64"
	case !isText:
		return "" // said already
	}
	if problem := pathProblem(text); problem != "" {
		f.wrong(name, "%s", problem)
	}
	return text
}

// mode reads the bits of a file's mode in octal, or gives nil.
func (f *fields) mode(name string) *fs.FileMode {
	text, given := f.text(name)
	if !given {
		return nil
	}
	mode, problem := parseMode(text)
	if problem != "" {
		f.wrong(name, "%s", problem)
		return nil
	}
	return &mode
}

// integer reads a whole number between low and high.
func (f *fields) integer(name string, low, high int64) (value int64, given bool) {
	raw, given := f.take(name)
	if !given {
		return 0, false
	}
	value, ok := parseInteger(raw)
	if !ok || value < low || value > high {
		f.wrong(name, "must be a whole number from %d to %d", low, high)
		return 0, false
	}
	return value, true
}

// flag reads true or false.
func (f *fields) flag(name string) (value, given bool) {
	raw, given := f.take(name)
	if !given {
		return false, false
	}
	if s := string(raw); s != "true" && s != "false" {
		f.wrong(name, "must be true or false")
		return false, false
	}
	return string(raw) == "true", true
}

// textsMax bounds a list of texts.
const textsMax = 64 << 10

// texts reads a list of texts.
func (f *fields) texts(name string) (values []string, given bool) {
	raw, given := f.take(name)
	if !given {
		return nil, false
	}
	if raw[0] != '[' {
		f.wrong(name, "must be a list of texts")
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	_, _ = dec.Token() // the bracket; raw is valid JSON
	good := true
	for i := 0; dec.More(); i++ {
		var item json.RawMessage
		if i == textsMax || dec.Decode(&item) != nil {
			f.wrong(name, "must have at most %d texts", textsMax)
			return nil, false
		}
		value, problem := parseText(item)
		if problem != "" {
			f.wrong(name+"["+strconv.Itoa(i)+"]", "%s", problem)
			good = false
			continue
		}
		values = append(values, value)
	}
	return values, good
}

// textMap reads an object of texts. check tells what is wrong with an entry, or nothing.
func (f *fields) textMap(name string, max int, check func(key, value string) string) (values map[string]string, given bool) {
	raw, given := f.take(name)
	if !given {
		return nil, false
	}
	if raw[0] != '{' {
		f.wrong(name, "must be an object of texts")
		return nil, false
	}
	object, err := splitObject(raw, max)
	if err != nil {
		f.wrong(name, "%s", strings.Replace(err.Error(), "the body", "it", 1))
		return nil, false
	}
	values = make(map[string]string, len(object))
	for _, key := range slices.Sorted(maps.Keys(object)) {
		value, problem := parseText(object[key])
		if problem == "" {
			problem = check(key, value)
		}
		if problem != "" {
			f.wrong(name+"."+cutAtEquals(key), "%s", problem)
			continue
		}
		values[key] = value
	}
	return values, len(values) == len(object)
}

// cutAtEquals keeps the value out of a name like TOKEN=secret that someone took for a variable.
func cutAtEquals(key string) string {
	if name, _, found := strings.Cut(key, "="); found {
		return name + "=…"
	}
	return key
}

// object reads a nested object with parse, which is called in any case.
func (f *fields) object(name string, parse func(*fields)) {
	raw, given := f.take(name)
	nested := &fields{prefix: f.prefix + name + ".", known: f.known, bad: f.bad}
	if given {
		var err error
		if nested.in, err = splitObject(raw, fieldsMax); err != nil {
			f.wrong(name, "%s", strings.Replace(err.Error(), "the body", "it", 1))
		}
	}
	parse(nested)
	nested.finish()
}

// parseText reads a JSON text without NUL.
func parseText(raw json.RawMessage) (value, problem string) {
	value, problem = parseAnyText(raw)
	if problem == "" && strings.ContainsRune(value, 0) {
		return "", "must not hold a NUL character"
	}
	return value, problem
}

// parseAnyText reads a JSON text. A half of a surrogate pair, which is no character, is refused.
func parseAnyText(raw json.RawMessage) (value, problem string) {
	if raw[0] != '"' || json.Unmarshal(raw, &value) != nil {
		return "", "must be a text, not " + kindOf(raw)
	}
	if strings.ContainsRune(value, utf8.RuneError) && hasLoneSurrogate(raw) {
		return "", "must be valid Unicode; it has a half of a surrogate pair"
	}
	return value, ""
}

// hasLoneSurrogate looks for \uD800–\uDFFF escapes that are not a pair. raw is a valid JSON text.
func hasLoneSurrogate(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if raw[i+1] != 'u' {
			i++
			continue
		}
		first := unhex(raw[i+2 : i+6])
		i += 5
		if first < 0xD800 || first > 0xDFFF {
			continue
		}
		rest := raw[i+1:]
		if first >= 0xDC00 || len(rest) < 6 || !bytes.HasPrefix(rest, []byte(`\u`)) {
			return true
		}
		if second := unhex(rest[2:6]); second < 0xDC00 || second > 0xDFFF {
			return true
		}
		i += 6
	}
	return false
}

func unhex(digits []byte) uint64 {
	n, err := strconv.ParseUint(string(digits), 16, 32)
	if err != nil {
		return 0
	}
	return n
}

// wholeMax is the largest number up to which JSON's numbers are exact everywhere.
const wholeMax = 1 << 53

// parseInteger reads a whole JSON number, also in the form 60.0 or 6e1.
func parseInteger(raw []byte) (int64, bool) {
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return n, true
	}
	if raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return 0, false
	}
	x, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || x != math.Trunc(x) || math.Abs(x) > wholeMax {
		return 0, false
	}
	return int64(x), true
}
