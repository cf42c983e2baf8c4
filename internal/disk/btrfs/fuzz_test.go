package btrfs

import (
	"bytes"
	"testing"
)

// FuzzParseMounts feeds mount tables that no kernel wrote: a mount point can be any bytes.
func FuzzParseMounts(f *testing.F) {
	f.Add([]byte("29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n30 29 0:26 / /a\\040b\\134 rw - btrfs /dev/loop0 rw\n"))
	f.Add([]byte("a b c d \\ e - f g\n - \n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := parseMounts(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, m := range table {
			if m.point == "" || m.kind == "" || m.source == "" {
				t.Errorf("%q gave %+v", b, m)
			}
		}
	})
}

// FuzzParseItems feeds answers to a search that no kernel gave.
func FuzzParseItems(f *testing.F) {
	f.Add(make([]byte, 96), 2)
	f.Add(append(make([]byte, 28), 0xff, 0xff, 0xff, 0xff), 1)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		items, err := parseItems(b, n)
		if err == nil && len(items) != n {
			t.Errorf("%d items, want %d", len(items), n)
		}
	})
}

func TestUnescape(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"plain", "/a/b", "/a/b"},
		{"space and backslash", `/a\040b\134c`, `/a b\c`},
		{"cut", `/a\04`, `/a\04`},
		{"not octal", `/a\999`, `/a\999`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := unescape(tt.in); got != tt.want {
				t.Errorf("unescape(%q) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}
