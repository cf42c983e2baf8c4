package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

func FuzzGrant(f *testing.F) {
	for _, s := range []string{"900\n", "", "-1", "1e9", "86401", "0x10", " 5", strings.Repeat("9", 40)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		d, err := parseGrant(in)
		if err == nil && (d < 0 || d > dayfly.LeaseCeiling) {
			t.Fatalf("%q grants %s", in, d)
		}
	})
}

func FuzzAccounts(f *testing.F) {
	f.Add([]byte("user:x:1000:1000:,,,:/home/user:/bin/bash\n"))
	f.Add([]byte("sudo:x:27:user,other\n"))
	f.Add([]byte("a:b:4294967296:0::relative:\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		lines := 0
		scanLines(bytes.NewReader(in), func(line string) bool {
			lines++
			if a, ok := parseAccount(line); ok && (!path.IsAbs(a.home) || strings.ContainsRune(a.home, 0) || a.name == "") {
				t.Fatalf("%q became %+v", line, a)
			}
			_, _, _ = parseGroup(line)
			return true
		})
		if lines > len(in)+1 {
			t.Fatalf("%d lines of %d bytes", lines, len(in))
		}
	})
}

func FuzzEntryName(f *testing.F) {
	for _, s := range []string{"a/b", "./a", "../a", "a/..", "/a", "", "a//b/", "..a/..b", "a/./../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		rel, ok := local(name)
		if ok && !filepath.IsLocal(rel) {
			t.Fatalf("%q passed as %q", name, rel)
		}
	})
}

// FuzzUnpack: whatever the archive, nothing appears or changes outside the directory.
func FuzzUnpack(f *testing.F) {
	seed := func(headers ...tar.Header) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			h.Size = int64(len(h.Uname))
			_ = w.WriteHeader(&tar.Header{Typeflag: h.Typeflag, Name: h.Name, Linkname: h.Linkname, Mode: 0o755, Size: h.Size})
			_, _ = w.Write([]byte(h.Uname))
		}
		_ = w.Close()
		f.Add(b.Bytes())
	}
	seed(tar.Header{Typeflag: tar.TypeReg, Name: "a/b", Uname: "content"}, tar.Header{Typeflag: tar.TypeDir, Name: "d/"})
	seed(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../outside"}, tar.Header{Typeflag: tar.TypeReg, Name: "l/victim", Uname: "evil"})
	seed(tar.Header{Typeflag: tar.TypeReg, Name: "x", Uname: "1"}, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "x"})
	top := f.TempDir()
	f.Fuzz(func(t *testing.T, in []byte) {
		base, err := os.MkdirTemp(top, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(base)
		victim := filepath.Join(base, "outside", "victim")
		if os.MkdirAll(filepath.Dir(victim), 0o755) != nil || os.WriteFile(victim, []byte("good"), 0o644) != nil {
			t.Fatal("prepare")
		}
		root, err := makeDirs(filepath.Join(base, "in") + "/")
		if err != nil {
			t.Fatal(err)
		}
		u := &unpacker{ctx: context.Background(), root: root, buf: make([]byte, archiveBuf), parent: -1}
		_ = u.all(bytes.NewReader(in))
		u.close()
		_ = unix.Close(root)
		left, _ := filepath.Glob(base + "/*")
		inside, _ := os.ReadDir(filepath.Dir(victim))
		if b, err := os.ReadFile(victim); err != nil || string(b) != "good" || len(left) != 2 || len(inside) != 1 {
			t.Fatalf("outside changed: %q, %v", left, err)
		}
	})
}

// TestWalkBelow: the two ways to a directory below the root agree.
func TestWalkBelow(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"a/b", "c"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.Symlink("a", filepath.Join(dir, "link"))
	_ = os.Symlink("/", filepath.Join(dir, "a", "root"))
	_ = os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)
	root, err := makeDirs(dir + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	u := &unpacker{root: root, parent: -1}
	for _, tt := range []struct {
		rel  string
		want error
	}{
		{".", nil}, {"a", nil}, {"a/b", nil}, {"none", unix.ENOENT}, {"a/none/x", unix.ENOENT}, {"file", unix.ENOTDIR},
		{"link", unix.ELOOP}, {"link/b", unix.ELOOP}, {"a/root", unix.ELOOP}, {"a/root/etc", unix.ELOOP},
	} {
		t.Run(tt.rel, func(t *testing.T) {
			for name, open := range map[string]func(string) (int, error){"open": u.openBelow, "walk": u.walkBelow} {
				fd, err := open(tt.rel)
				if err != tt.want {
					t.Errorf("%s gives %v, want %v", name, err, tt.want)
				}
				if err == nil {
					_ = unix.Close(fd)
				}
			}
		})
	}
}
