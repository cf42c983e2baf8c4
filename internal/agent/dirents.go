package agent

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// direntsBuf is how many bytes of names are read from a directory at once.
const direntsBuf = 32 << 10

// Where getdents64 puts what.
const (
	direntLen  = 16 // two bytes: of the whole record
	direntType = 18 // one byte: DT_…
	direntName = 19 // up to a NUL
)

// dirents reads the names of an open directory without making anything of those that nobody wants.
type dirents struct {
	fd   int
	buf  []byte
	rest []byte // of buf, not yet given
}

// next gives the next name and what it is (DT_…, perhaps unknown), without "." and "..". The name is valid until the next
// call; it is nil at the end.
func (d *dirents) next() (name []byte, kind byte, err error) {
	for {
		if len(d.rest) <= direntName {
			if d.buf == nil {
				d.buf = make([]byte, direntsBuf)
			}
			n, err := unix.Getdents(d.fd, d.buf)
			if err == unix.EINTR {
				continue
			}
			if err == unix.ENOENT { // the directory was removed meanwhile
				return nil, 0, nil
			}
			if err != nil || n <= 0 {
				return nil, 0, err
			}
			d.rest = d.buf[:n]
		}
		length := int(binary.NativeEndian.Uint16(d.rest[direntLen:]))
		if length <= direntName || length > len(d.rest) {
			return nil, 0, unix.EIO
		}
		kind, name = d.rest[direntType], d.rest[direntName:length]
		d.rest = d.rest[length:]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		if len(name) > 0 && string(name) != "." && string(name) != ".." {
			return name, kind, nil
		}
	}
}

// rewind starts from the beginning.
func (d *dirents) rewind() error {
	d.rest = nil
	_, err := unix.Seek(d.fd, 0, 0)
	return err
}

// dirent is one name of a directory.
type dirent struct {
	name string
	kind byte // DT_…, perhaps unknown
}

// smallest gives the n smallest names after a name (or from it on), in order, with memory for n of them. more: there are
// others after them.
func (d *dirents) smallest(ctx context.Context, after string, from bool, n int) (top dirHeap, more bool, err error) {
	for count := 1; ; count++ {
		name, kind, err := d.next()
		if err != nil {
			return nil, false, err
		}
		if name == nil {
			break
		}
		if count%namesBatch == 0 {
			if err := ctx.Err(); err != nil {
				return nil, false, err
			}
		}
		if string(name) < after || string(name) == after && !from {
			continue
		}
		if len(top) < n {
			top = append(top, dirent{string(name), kind})
			if len(top) == n {
				heap.Init(&top)
			}
			continue
		}
		more = true
		if string(name) < top[0].name {
			top[0] = dirent{string(name), kind}
			heap.Fix(&top, 0)
		}
	}
	slices.SortFunc(top, func(a, b dirent) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return top, more, nil
}

// dirHeap is a heap with the greatest name on top.
type dirHeap []dirent

func (h dirHeap) Len() int           { return len(h) }
func (h dirHeap) Less(i, j int) bool { return h[i].name > h[j].name }
func (h dirHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface; names are appended before the heap is one.
func (h *dirHeap) Push(x any) { *h = append(*h, x.(dirent)) }

// Pop implements heap.Interface.
func (h *dirHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
