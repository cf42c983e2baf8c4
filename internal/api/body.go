package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"dayfly.dev/dayfly"
)

// readJSON reads the request's JSON body, an empty one as an empty object, and its idempotency key. All wrong fields are named in
// one error; their values never are.
func readJSON[T any](c *call, parse func(*fields) T) (T, error) {
	var none T
	if _, err := readQuery(c.r.URL.RawQuery, noQuery); err != nil {
		return none, err
	}
	data, err := c.readBody()
	if err != nil {
		return none, err
	}
	in, err := parseJSON(data, parse)
	if err != nil {
		return none, err
	}
	return in, c.readIdempotency(func() string { return jsonHash(data) })
}

// parseJSON parses one JSON object.
func parseJSON[T any](data []byte, parse func(*fields) T) (T, error) {
	var none T
	bad := &problems{}
	object, err := splitObject(data, fieldsMax)
	if err != nil {
		return none, dayfly.Errorf(dayfly.CodeInvalid, "%s", err.Error()).WithHint("the body must be one JSON object in UTF-8")
	}
	f := newFields(object, "", bad)
	in := parse(f)
	f.finish()
	if err := bad.error(); err != nil {
		return none, err
	}
	return in, nil
}

// readBody reads a JSON body within its limit.
func (c *call) readBody() ([]byte, error) {
	if c.r.ContentLength == 0 {
		return []byte("{}"), nil
	}
	tooLarge := dayfly.Errorf(dayfly.CodeTooLarge, "the body is larger than %d bytes", BodyMaxBytes).
		WithDetail("max_bytes", BodyMaxBytes).WithHint("send files to …/files/content, which has no limit")
	if c.r.ContentLength > BodyMaxBytes {
		return nil, tooLarge
	}
	if err := c.checkJSONHeaders(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(c.r.Body, BodyMaxBytes+1)); err != nil {
		return nil, cutBody(err)
	}
	if b.Len() > BodyMaxBytes {
		return nil, tooLarge
	}
	if len(bytes.TrimSpace(b.Bytes())) == 0 {
		return []byte("{}"), nil
	}
	return b.Bytes(), nil
}

// cutBody explains an error of reading a body.
func cutBody(err error) error {
	return dayfly.Errorf(dayfly.CodeInvalid, "the request's body broke off").WithCause(err)
}

// checkJSONHeaders accepts JSON, and what says nothing about itself.
func (c *call) checkJSONHeaders() error {
	if err := checkEncoding(c.r.Header); err != nil {
		return err
	}
	given := c.r.Header.Get("Content-Type")
	if given == "" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(given)
	charset := strings.ToLower(params["charset"])
	if err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) && (charset == "" || charset == "utf-8" || charset == "utf8") {
		return nil
	}
	return dayfly.Errorf(dayfly.CodeUnsupportedMedia, "the body must be JSON in UTF-8").
		WithHint("add the header `Content-Type: application/json` (curl: -H 'Content-Type: application/json', or --json instead of -d)")
}

// checkRawHeaders accepts any type but JSON where bytes are expected, since JSON there is a mix-up of routes.
func (c *call) checkRawHeaders() error {
	if c.r.Header.Get("Content-Range") != "" {
		return dayfly.Errorf(dayfly.CodeInvalid, "the header Content-Range is not taken: a body is always whole")
	}
	return checkEncoding(c.r.Header)
}

func checkEncoding(h http.Header) error {
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return dayfly.Errorf(dayfly.CodeUnsupportedMedia, "an encoded body is not taken").WithHint("send it without Content-Encoding")
	}
	return nil
}

// refuseBody refuses a body where none belongs.
func (c *call) refuseBody() error {
	if c.r.ContentLength == 0 {
		return nil
	}
	if n, _ := io.ReadFull(c.r.Body, make([]byte, 1)); n == 0 {
		return nil
	}
	return dayfly.Errorf(dayfly.CodeInvalid, "this request takes no body")
}

// fieldsMax bounds the names of an object whose names are ours.
const fieldsMax = 1000

// splitObject takes a JSON object of at most max names apart, strictly: UTF-8, nothing behind it, no name twice. Errors name no
// values.
func splitObject(data []byte, max int) (map[string]json.RawMessage, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("the body is not UTF-8")
	}
	if !json.Valid(data) {
		return nil, errors.New("the body is not valid JSON" + syntaxPlace(data))
	}
	if data = bytes.TrimSpace(data); data[0] != '{' {
		return nil, errors.New("the body is " + kindOf(data) + ", not an object")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if _, err := dec.Token(); err != nil {
		return nil, errors.New("the body is not valid JSON")
	}
	object := map[string]json.RawMessage{}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil, errors.New("the body is not valid JSON")
		}
		if _, twice := object[name]; twice {
			return nil, fmt.Errorf("the name %s is given twice", shorten(name))
		}
		if len(object) == max {
			return nil, fmt.Errorf("the body has more than %d entries", max)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, errors.New("the body is not valid JSON")
		}
		object[name] = value
	}
	return object, nil
}

// syntaxPlace tells where JSON breaks, without what stands there.
func syntaxPlace(data []byte) string {
	var any json.RawMessage
	var syntax *json.SyntaxError
	if errors.As(json.Unmarshal(data, &any), &syntax) {
		return " (at byte " + strconv.FormatInt(syntax.Offset, 10) + ")"
	}
	return ""
}

// kindOf names the kind of a valid JSON value.
func kindOf(raw []byte) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a text"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

// jsonHash is the hash of a JSON body in canonical form: order of names and white space do not matter.
func jsonHash(data []byte) string {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var tree any
	if dec.Decode(&tree) == nil {
		if canonical, err := json.Marshal(tree); err == nil {
			data = canonical
		}
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// rawHash stands for a request whose body is a stream of any size: its query and its announced length. Two bodies of one length
// are one request to an idempotency key.
func rawHash(r *http.Request) string {
	sum := sha256.Sum256([]byte(r.URL.Query().Encode() + "\n" + strconv.FormatInt(r.ContentLength, 10)))
	return hex.EncodeToString(sum[:])
}
