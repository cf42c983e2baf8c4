package api

import (
	"strconv"
	"strings"

	"dayfly.dev/dayfly"
)

// byteRange is one range of a Range header: from–to, from to the end (to -1), or the last suffix bytes (from -1).
type byteRange struct {
	from, to int64
	suffix   int64
}

// parseRange reads a Range header. nil: there is none that we serve in part: none at all, another unit, or several ranges, all of
// which HTTP answers with the whole file.
func parseRange(header string) (*byteRange, error) {
	set, ok := strings.CutPrefix(strings.TrimSpace(header), "bytes=")
	if !ok || strings.Contains(set, ",") {
		return nil, nil
	}
	first, last, ok := strings.Cut(strings.TrimSpace(set), "-")
	malformed := dayfly.Errorf(dayfly.CodeInvalid, "the header Range is malformed").
		WithHint("ranges look like bytes=0-99, bytes=100- or bytes=-50")
	if !ok {
		return nil, malformed
	}
	from, fromOK := parseDigits(first)
	to, toOK := parseDigits(last)
	switch {
	case first == "" && toOK:
		return &byteRange{from: -1, suffix: to}, nil
	case fromOK && last == "":
		return &byteRange{from: from, to: -1}, nil
	case fromOK && toOK && from <= to:
		return &byteRange{from: from, to: to}, nil
	}
	return nil, malformed
}

func parseDigits(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// of gives the range's part of a file of size bytes; ok is false when it lies outside.
func (r byteRange) of(size int64) (part dayfly.FileRange, ok bool) {
	if r.from < 0 {
		n := min(r.suffix, size)
		return dayfly.FileRange{Offset: size - n, Length: n}, n > 0
	}
	if r.from >= size {
		return dayfly.FileRange{}, false
	}
	end := size - 1
	if r.to >= 0 {
		end = min(end, r.to)
	}
	return dayfly.FileRange{Offset: r.from, Length: end - r.from + 1}, true
}
