package agent

import (
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// Files with holes travel as what GNU tar calls sparse format 1.0: a PAX header, then a map of the parts that are no hole, then
// those. archive/tar reads that and does not write it.
const (
	sparseParts = 16 << 10 // parts of one file; what comes behind them travels with its holes
	tarBlock    = 512
	tarSizeMax  = 1<<33 - 1 // bytes of a file whose size fits into its own header
)

// part is a part of a file that is no hole.
type part struct{ start, length int64 }

// dataParts gives the parts of a file, or nil when it has no holes.
func dataParts(fd int, st *unix.Stat_t) []part {
	if st.Blocks*tarBlock >= st.Size {
		return nil
	}
	var parts []part
	at := int64(0)
	for at < st.Size {
		start, end, err := nextData(fd, at)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil // a file system that does not tell
		}
		if end = min(end, st.Size); start >= end {
			break
		}
		if len(parts) == sparseParts-1 {
			end = st.Size
		}
		parts = append(parts, part{start, end - start})
		at = end
	}
	if len(parts) == 1 && parts[0] == (part{0, st.Size}) {
		return nil
	}
	if at < st.Size {
		parts = append(parts, part{st.Size, 0}) // says where the hole at the end ends
	}
	_, _ = unix.Seek(fd, 0, unix.SEEK_SET)
	return parts
}

// sparse writes a file as its parts.
func (p *packer) sparse(f *os.File, rel string, st *unix.Stat_t, parts []part) error {
	if err := p.tw.Flush(); err != nil { // what follows goes past the writer, to the same place
		return err
	}
	var places strings.Builder
	fmt.Fprintf(&places, "%d\n", len(parts))
	length := int64(0)
	for _, d := range parts {
		fmt.Fprintf(&places, "%d\n%d\n", d.start, d.length)
		length += d.length
	}
	places.WriteString(strings.Repeat("\x00", padding(int64(places.Len()))))
	length += int64(places.Len())

	pax := paxRecord("GNU.sparse.major", "1") + paxRecord("GNU.sparse.minor", "0") + paxRecord("GNU.sparse.name", rel) +
		paxRecord("GNU.sparse.realsize", strconv.FormatInt(st.Size, 10))
	if length > tarSizeMax {
		pax += paxRecord("size", strconv.FormatInt(length, 10))
	}
	head := tarHeader('x', "PaxHeaders.0/"+path.Base(rel), int64(len(pax)), st)
	body := tarHeader('0', "GNUSparseFile.0/"+path.Base(rel), length, st)
	if _, err := io.WriteString(p.out, head+pax+strings.Repeat("\x00", padding(int64(len(pax))))+body+places.String()); err != nil {
		return err
	}
	for _, d := range parts {
		n, err := io.CopyBuffer(p.out, struct{ io.Reader }{io.NewSectionReader(f, d.start, d.length)}, p.buf)
		if err == nil && n < d.length {
			err = dayfly.Errorf(dayfly.CodeFileConflict, "%s became shorter while it was read", rel)
		}
		if err == nil {
			err = p.ctx.Err()
		}
		if err != nil {
			return err
		}
	}
	_, err := io.WriteString(p.out, strings.Repeat("\x00", padding(length)))
	return err
}

// padding is what is missing to a whole block.
func padding(length int64) int { return int(-length & (tarBlock - 1)) }

// paxRecord is a line of a PAX header, which begins with its own length.
func paxRecord(key, value string) string {
	rest := " " + key + "=" + value + "\n"
	length := len(rest)
	for len(strconv.Itoa(length))+len(rest) != length {
		length = len(strconv.Itoa(length)) + len(rest)
	}
	return strconv.Itoa(length) + rest
}

// tarHeader is a header block. name is for those who do not read PAX headers: what does not fit is cut off.
func tarHeader(kind byte, name string, size int64, st *unix.Stat_t) string {
	var b [tarBlock]byte
	octal := func(at, width int, n int64) {
		if limit := int64(1)<<(3*(width-1)) - 1; n < 0 || n > limit {
			n = 0
		}
		copy(b[at:], fmt.Sprintf("%0*o", width-1, n))
	}
	copy(b[:100], name)
	octal(100, 8, int64(st.Mode&0o7777))
	octal(108, 8, int64(st.Uid))
	octal(116, 8, int64(st.Gid))
	octal(124, 12, size)
	octal(136, 12, st.Mtim.Sec)
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	copy(b[148:], "        ")
	sum := int64(0)
	for _, c := range b {
		sum += int64(c)
	}
	octal(148, 7, sum)
	b[154] = 0
	return string(b[:])
}
