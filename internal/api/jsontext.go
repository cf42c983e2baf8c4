package api

import (
	"encoding/base64"
	"encoding/binary"
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

// needsEscape tells whether one of the eight bytes of a word must be escaped. It looks at all of them at once.
func needsEscape(word uint64) bool {
	control := (word - lowBits*0x20) &^ word // borrows into the high bit of a byte below 0x20
	quote := word ^ lowBits*'"'
	slash := word ^ lowBits*'\\'
	return (control|(quote-lowBits)&^quote|(slash-lowBits)&^slash)&highBits != 0
}

// plainRun counts the bytes at the start of data that stand for themselves, in steps of a word.
func plainRun(data []byte) int {
	n := 0
	for len(data)-n >= wordBytes && !needsEscape(binary.LittleEndian.Uint64(data[n:])) {
		n += wordBytes
	}
	return n
}

// escaping counts how many bytes data grows by as a JSON text; it stops counting beyond max.
func escaping(data []byte, max int) int {
	grows := 0
	for i := 0; i < len(data) && grows <= max; {
		if run := plainRun(data[i:]); run > 0 {
			i += run
			continue
		}
		for end := min(i+wordBytes, len(data)); i < end; i++ {
			switch escapeOf[data[i]] {
			case 0:
			case 'u':
				grows += escapedLong
			default:
				grows += escapedShort
			}
		}
	}
	return grows
}

// appendText appends UTF-8 as a JSON text, quotes included.
func appendText(b, data []byte) []byte {
	b = append(b, '"')
	start, i := 0, 0
	for i < len(data) {
		if run := plainRun(data[i:]); run > 0 {
			i += run
			continue
		}
		for end := min(i+wordBytes, len(data)); i < end; i++ {
			c := escapeOf[data[i]]
			if c == 0 {
				continue
			}
			b = append(append(b, data[start:i]...), '\\', c)
			if c == 'u' {
				b = append(b, '0', '0', hexDigits[data[i]>>4], hexDigits[data[i]&0xf])
			}
			start = i + 1
		}
	}
	return append(append(b, data[start:]...), '"')
}

// appendData appends the field that carries output: as text, or in base64 where the bytes are no UTF-8 or where that is shorter.
func appendData(b, data []byte) []byte {
	if spare := base64.StdEncoding.EncodedLen(len(data)) - len(data); escaping(data, spare) <= spare && utf8.Valid(data) {
		return appendText(append(b, `"data":`...), data)
	}
	b = append(b, `"data_b64":"`...)
	return append(base64.StdEncoding.AppendEncode(b, data), '"')
}

// appendField appends a named number, with the comma before it.
func appendField(b []byte, name string, n int64) []byte {
	b = append(append(append(b, `,"`...), name...), `":`...)
	return strconv.AppendInt(b, n, 10)
}
