package api

import (
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// Output is most of what this server sends, so it is written without encoding/json: appended to a buffer that is used again.

const hexDigits = "0123456789abcdef"

// escapeOf tells how a byte stands in a JSON text: 0 as itself, 'u' as \u00XX, else behind a backslash as this character.
var escapeOf = func() (table [256]byte) {
	for b := range 0x20 {
		table[b] = 'u'
	}
	table['\b'], table['\f'], table['\n'], table['\r'], table['\t'] = 'b', 'f', 'n', 'r', 't'
	table['"'], table['\\'] = '"', '\\'
	return table
}()

const (
	escapedLong  = len(`\u0000`) - 1 // bytes beyond the byte itself
	escapedShort = len(`\n`) - 1
	wordBytes    = 8
	lowBits      = 0x0101010101010101
	highBits     = 0x8080808080808080
)

// escapes marks the high bit of the first byte of a word that must be escaped, and perhaps of bytes behind it; 0: of none. It looks at
// all eight at once.
func escapes(word uint64) uint64 {
	control := (word - lowBits*0x20) &^ word // borrows into the high bit of a byte below 0x20
	quote := word ^ lowBits*'"'
	slash := word ^ lowBits*'\\'
	return (control | (quote-lowBits)&^quote | (slash-lowBits)&^slash) & highBits
}

// nextEscape finds the first byte from i on that must be escaped, or the end.
func nextEscape(data []byte, i int) int {
	for ; len(data)-i >= wordBytes; i += wordBytes {
		if found := escapes(binary.LittleEndian.Uint64(data[i:])); found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for i < len(data) && escapeOf[data[i]] == 0 {
		i++
	}
	return i
}

// appendText appends UTF-8 as a JSON text, quotes included. ok is false, and nothing is appended, where that takes more than max
// bytes beyond data's own.
func appendText(b, data []byte, max int) (text []byte, ok bool) {
	before := len(b)
	b = append(b, '"')
	for start := 0; ; {
		i := nextEscape(data, start)
		b = append(b, data[start:i]...)
		if i == len(data) {
			return append(b, '"'), true
		}
		c := escapeOf[data[i]]
		b = append(b, '\\', c)
		max -= escapedShort
		if c == 'u' {
			b = append(b, '0', '0', hexDigits[data[i]>>4], hexDigits[data[i]&0xf])
			max -= escapedLong - escapedShort
		}
		if max < 0 {
			return b[:before], false
		}
		start = i + 1
	}
}

// shortMax is up to which length output stays text even where base64 is shorter: people read it.
const shortMax = 512 // bytes

// appendData appends the field that carries output: as text, or in base64 where the bytes are no UTF-8 or where that is shorter.
func appendData(b, data []byte) []byte {
	if utf8.Valid(data) {
		max := base64.StdEncoding.EncodedLen(len(data)) - len(data)
		if len(data) <= shortMax {
			max = shortMax * escapedLong
		}
		const name = `"data":`
		if text, ok := appendText(append(b, name...), data, max); ok {
			return text
		}
	}
	b = append(b, `"data_b64":"`...)
	return append(base64.StdEncoding.AppendEncode(b, data), '"')
}

// appendField appends a named number, with the comma before it.
func appendField(b []byte, name string, n int64) []byte {
	b = append(append(append(b, `,"`...), name...), `":`...)
	return strconv.AppendInt(b, n, 10)
}
