package dayfly

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// outputLine reads an event of output that is written exactly as the server writes it, many times as fast as the JSON decoder,
// through which all others go. ok is false for one that it does not know for sure. The data is the caller's.
func outputLine(line []byte) (kind EventType, offset int64, data []byte, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"type":"std`))
	if !ok {
		return "", 0, nil, false
	}
	kind = EventStdout
	if rest, ok = bytes.CutPrefix(rest, []byte(`out","offset":`)); !ok {
		kind = EventStderr
		if rest, ok = bytes.CutPrefix(rest, []byte(`err","offset":`)); !ok {
			return "", 0, nil, false
		}
	}
	number, rest, ok := bytes.Cut(rest, []byte(","))
	if !ok {
		return "", 0, nil, false
	}
	offset, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil || offset < 0 || strconv.FormatInt(offset, 10) != string(number) {
		return "", 0, nil, false
	}
	rest = bytes.TrimSuffix(rest, []byte("\n"))
	if rest, ok = bytes.CutSuffix(rest, []byte(`"}`)); !ok {
		return "", 0, nil, false
	}
	if text, isText := bytes.CutPrefix(rest, []byte(`"data":"`)); isText {
		data, ok = unescape(text)
	} else if coded, isCoded := bytes.CutPrefix(rest, []byte(`"data_b64":"`)); isCoded {
		data, ok = decode64(coded)
	} else {
		ok = false
	}
	return kind, offset, data, ok
}

// decode64 reads base64 without line ends.
func decode64(coded []byte) ([]byte, bool) {
	if bytes.IndexByte(coded, '\r') >= 0 { // which the decoder would skip, as JSON would not allow it
		return nil, false
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(coded)))
	n, err := base64.StdEncoding.Decode(data, coded)
	return data[:n], err == nil
}

// unescape reads the inside of a JSON string. ok is false for what is not valid or not simple.
func unescape(text []byte) (data []byte, ok bool) {
	if !utf8.Valid(text) {
		return nil, false
	}
	data = make([]byte, len(text))
	n := 0
	for {
		plain := special(text)
		n += copy(data[n:], text[:plain])
		text = text[plain:]
		if len(text) == 0 {
			return data[:n], true
		}
		if text[0] != '\\' || len(text) < 2 {
			return nil, false // a quotation mark or a control character: not what it seemed
		}
		c, size := escaped(text)
		if size == 0 {
			return nil, false
		}
		n += utf8.EncodeRune(data[n:n+size], c)
		text = text[size:]
	}
}

// escaped reads the escape that text begins with; size 0 means that it is not valid or half of a pair.
func escaped(text []byte) (c rune, size int) {
	switch text[1] {
	case 'n':
		return '\n', 2
	case 't':
		return '\t', 2
	case 'r':
		return '\r', 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case '"', '\\', '/':
		return rune(text[1]), 2
	case 'u':
		const digits = 6
		if len(text) < digits {
			return 0, 0
		}
		v, err := strconv.ParseUint(string(text[2:digits]), 16, 32)
		if err != nil || v >= 0xD800 && v < 0xE000 {
			return 0, 0
		}
		return rune(v), digits
	}
	return 0, 0
}

// special finds the first byte that is no plain character of a JSON string, eight bytes at a time.
func special(text []byte) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	i := 0
	for ; i+8 <= len(text); i += 8 {
		w := binary.LittleEndian.Uint64(text[i:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		found := ((quote - ones) & ^quote) | ((slash - ones) & ^slash) | ((w - ones*' ') & ^w)
		if found &= highs; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for ; i < len(text); i++ {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' {
			break
		}
	}
	return i
}
