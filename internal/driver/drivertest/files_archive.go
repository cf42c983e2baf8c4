package drivertest

import (
	"archive/tar"
	"bytes"
	"io"
	"path"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// packed makes an archive.
func packed(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := "content of " + h.Name
		if h.Typeflag != tar.TypeReg {
			content = ""
		}
		h.Size = int64(len(content))
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func archiveIsTheTree(t *testing.T, s *suite) {
	g := s.guest(t)
	old := time.Unix(1_000_000_000, 0)
	long := strings.Repeat("d", 120) + "/" + strings.Repeat("f", 250)
	in := []tar.Header{
		{Typeflag: tar.TypeDir, Name: "empty/", Mode: 0o755, ModTime: old},
		{Typeflag: tar.TypeReg, Name: "run.sh", Mode: 0o755, ModTime: old},
		{Typeflag: tar.TypeReg, Name: "dir/plain ü\n", Mode: 0o640, ModTime: old},
		{Typeflag: tar.TypeReg, Name: long, Mode: 0o644, ModTime: old},
		{Typeflag: tar.TypeSymlink, Name: "relative", Linkname: "run.sh"},
		{Typeflag: tar.TypeSymlink, Name: "absolute", Linkname: "/etc/passwd"},
		{Typeflag: tar.TypeSymlink, Name: "dangling", Linkname: "nowhere"},
		{Typeflag: tar.TypeSymlink, Name: "to-dir", Linkname: "dir"},
		{Typeflag: tar.TypeSymlink, Name: "outside", Linkname: "../../../etc"},
		{Typeflag: tar.TypeLink, Name: "hard", Linkname: "run.sh"},
	}
	if err := g.WriteArchive(ctx(t), "tree", packed(t, in...)); err != nil {
		t.Fatal(err)
	}
	if got, want := g.sh(t, `cd tree; stat -c '%a %Y' run.sh; stat -c %h hard; find . -type l | sort | tr '\n' ' '; ls -A empty`),
		"755 1000000000\n2\n./absolute ./dangling ./outside ./relative ./to-dir "; got != want {
		t.Errorf("inside: %q, want %q", got, want)
	}
	r, err := g.ReadArchive(ctx(t), "tree")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out := make(map[string]tar.Header)
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		name := path.Clean(h.Name)
		if err != nil || h.Typeflag == tar.TypeReg && string(content) != "content of "+name && name != "hard" {
			t.Errorf("%q holds %q, %v", h.Name, content, err)
		}
		out[name] = *h
	}
	for _, want := range in {
		got, there := out[path.Clean(want.Name)]
		link := got.Typeflag == want.Typeflag || want.Typeflag == tar.TypeLink && got.Typeflag == tar.TypeReg ||
			want.Name == "run.sh" && got.Typeflag == tar.TypeLink
		if !there || !link || want.Typeflag == tar.TypeSymlink && got.Linkname != want.Linkname {
			t.Errorf("%.40q came back as %c to %q", want.Name, got.Typeflag, got.Linkname)
		}
		if (want.Typeflag == tar.TypeReg || want.Typeflag == tar.TypeDir) && (got.Mode&0o7777 != want.Mode || !got.ModTime.Equal(old)) {
			t.Errorf("%.40q came back with mode %o of %s", want.Name, got.Mode, got.ModTime)
		}
	}
}

func hostileArchive(t *testing.T, s *suite) {
	g := s.guest(t)
	g.sh(t, "mkdir victim; echo safe >victim/file")
	home := strings.TrimSpace(g.sh(t, "pwd"))
	for _, tt := range []struct {
		name    string
		entries []tar.Header
	}{
		{"dots", []tar.Header{{Typeflag: tar.TypeReg, Name: "../victim/new"}}},
		{"dots inside", []tar.Header{{Typeflag: tar.TypeReg, Name: "a/../../victim/new"}}},
		{"absolute", []tar.Header{{Typeflag: tar.TypeReg, Name: home + "/victim/new"}}},
		{"a link, then through it", []tar.Header{
			{Typeflag: tar.TypeSymlink, Name: "way", Linkname: home + "/victim"}, {Typeflag: tar.TypeReg, Name: "way/new"},
		}},
		{"a link, then at it", []tar.Header{
			{Typeflag: tar.TypeSymlink, Name: "way", Linkname: home + "/victim/new"}, {Typeflag: tar.TypeReg, Name: "way"},
		}},
		{"a hard link to the outside", []tar.Header{{Typeflag: tar.TypeLink, Name: "hard", Linkname: "../victim/file"}}},
		{"a hard link through a link", []tar.Header{
			{Typeflag: tar.TypeSymlink, Name: "way", Linkname: "../victim"}, {Typeflag: tar.TypeLink, Name: "hard", Linkname: "way/file"},
		}},
		{"a device", []tar.Header{{Typeflag: tar.TypeBlock, Name: "disk", Devmajor: 8}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := g.WriteArchive(ctx(t), "hostile", packed(t, tt.entries...))
			if tt.name != "a link, then at it" { // that may replace the link itself
				wantCode(t, "unpack", err, dayfly.CodeInvalid)
				if name := tt.entries[len(tt.entries)-1].Name; err != nil && !strings.Contains(err.Error(), path.Base(name)) {
					t.Errorf("%v does not name %q", err, name)
				}
			}
			if got := g.sh(t, "ls victim; cat victim/file; stat -c %h victim/file; rm -rf hostile"); got != "file\nsafe\n1\n" {
				t.Errorf("outside: %q", got)
			}
		})
	}
}
