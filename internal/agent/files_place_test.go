package agent_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// TestWriteInPlace: a file that the user may write and not replace is written as the user would write it, but whole or not at all.
func TestWriteInPlace(t *testing.T) {
	m := startAgent(t, options{root: true})
	dir := filepath.Join(m.home, "roots")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(dir, 0o755))
	own, open, suid, closed := filepath.Join(dir, "own"), filepath.Join(dir, "open"), filepath.Join(dir, "suid"), filepath.Join(dir, "closed")
	for name, mode := range map[string]uint32{own: 0o640, open: 0o666, suid: 0o6777, closed: 0o644} {
		must(os.WriteFile(name, []byte("old content"), 0o600))
		must(unix.Chmod(name, mode))
	}
	must(os.Chown(own, 1000, 1000))
	must(os.Symlink("roots/own", filepath.Join(m.home, "link")))
	stat := func(name string) (st unix.Stat_t) {
		must(unix.Stat(name, &st))
		return st
	}
	for _, tt := range []struct {
		name, path, file string
		mode             *fs.FileMode
		content          string
		want             dayfly.Code
		perm, uid        uint32
	}{
		{"own file", own, own, nil, "new", "", 0o640, 1000},
		{"with a mode", own, own, modeOf(0o600), "longer than it was before", "", 0o600, 1000},
		{"through a link", "link", own, nil, "", "", 0o600, 1000},
		{"another's that is open to all", open, open, nil, "new", "", 0o666, 0},
		{"another's mode stays", open, open, modeOf(0o600), "newer", "", 0o666, 0},
		{"setuid goes", suid, suid, nil, "new", "", 0o777, 0},
		{"another's", closed, closed, nil, "new", dayfly.CodeFilePermission, 0o644, 0},
		{"a new file", filepath.Join(dir, "new"), closed, nil, "new", dayfly.CodeFilePermission, 0o644, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := stat(tt.file)
			info, err := m.Write(t.Context(), tt.path, tt.mode, strings.NewReader(tt.content))
			wantCode(t, err, tt.want)
			after := stat(tt.file)
			if after.Ino != before.Ino || after.Mode&0o7777 != tt.perm || after.Uid != tt.uid {
				t.Errorf("mode %o of %d, the same file: %v", after.Mode&0o7777, after.Uid, after.Ino == before.Ino)
			}
			if content, _ := os.ReadFile(tt.file); err == nil && (string(content) != tt.content || info.SizeBytes != int64(len(content))) {
				t.Errorf("holds %q, answered %+v", content, info)
			}
		})
	}
	t.Run("bug 76: an upload that breaks off leaves the old content", func(t *testing.T) {
		m.write(t, own, []byte("old content"))
		if _, err := m.Write(t.Context(), own, nil, io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), failing{})); !errors.Is(err, errBroken) {
			t.Error(err)
		}
		if content, _ := os.ReadFile(own); string(content) != "old content" {
			t.Errorf("it holds %d bytes", len(content))
		}
		if left, _ := filepath.Glob(dir + "/.dayfly-*"); len(left) > 0 {
			t.Errorf("left are %v", left)
		}
	})
}

// TestWriteMounted: a file that something is mounted on cannot be replaced, but written.
func TestWriteMounted(t *testing.T) {
	needRoot(t)
	m := startAgent(t, options{})
	from, to := filepath.Join(m.home, "from"), filepath.Join(m.home, "to")
	for _, f := range []string{from, to} {
		if err := os.WriteFile(f, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		t.Skip("no mounts here:", err)
	}
	defer func() {
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	m.write(t, "to", []byte("new"))
	if content, _ := os.ReadFile(from); string(content) != "new" {
		t.Errorf("it holds %q", content)
	}
	wantCode(t, m.Remove(t.Context(), "to", false), dayfly.CodeFileConflict)
	_, err := m.Move(t.Context(), "to", "away", false)
	wantCode(t, err, dayfly.CodeFileConflict)
}

// TestUnreadableNames: in a directory that may be read and not entered every name is listed, with an error of its own.
func TestUnreadableNames(t *testing.T) {
	m := startAgent(t, options{root: true})
	m.run(t, shell("mkdir d d/sub && touch d/f && chmod 444 d"))
	entries, _, err := m.List(t.Context(), dayfly.ListQuery{Path: "d", Limit: 10})
	if err != nil || len(entries) != 2 {
		t.Fatalf("bug 80: %d entries, %v", len(entries), err)
	}
	for i, want := range []dayfly.FileType{dayfly.FileRegular, dayfly.FileDirectory} {
		if entries[i].Error == "" || entries[i].Type != want {
			t.Errorf("bug 80: %+v", entries[i])
		}
	}
	m.run(t, shell("chmod 755 d"))
}

// TestHostileLinks is bug 16: what a sandbox plants leads nowhere but where its user may go himself.
func TestHostileLinks(t *testing.T) {
	m := startAgent(t, options{root: true})
	m.run(t, shell("ln -s /etc/shadow a; ln -s / b; ln -s ../../../../../../.. c; ln -s /proc/self/root d; ln -s /proc/1/root e; ln -s missing/dir f"))
	read := func(name string) error {
		_, r, err := m.Read(t.Context(), name, dayfly.FileRange{Length: -1})
		if err == nil {
			_ = r.Close()
		}
		return err
	}
	write := func(name string) error {
		_, err := m.Write(t.Context(), name, nil, strings.NewReader("x"))
		return err
	}
	chmod := func(name string) error {
		_, err := m.Chmod(t.Context(), name, 0o777, true)
		return err
	}
	mkdir := func(name string) error {
		_, err := m.Mkdir(t.Context(), name, nil, true)
		return err
	}
	move := func(from, to string) error {
		_, err := m.Move(t.Context(), from, to, true)
		return err
	}
	search := func(name string) error {
		_, err := m.Search(t.Context(), dayfly.SearchQuery{Path: name, Pattern: "x", Limit: 1})
		return err
	}
	for _, tt := range []struct {
		name string
		err  error
		want dayfly.Code
	}{
		{"read", read("a"), dayfly.CodeFilePermission},
		{"write", write("a"), dayfly.CodeFilePermission},
		{"write through a directory", write("b/etc/dayfly-x"), dayfly.CodeFilePermission},
		{"write with new parents", write("c/etc/dayfly/x"), dayfly.CodeFilePermission},
		{"chmod", chmod("a"), dayfly.CodeFilePermission},
		{"mkdir", mkdir("b/etc/dayfly"), dayfly.CodeFilePermission},
		{"move out", move("b/etc/hostname", "here"), dayfly.CodeFilePermission},
		{"move in", move("a", "b/etc/dayfly"), dayfly.CodeFilePermission},
		{"search", search("a"), dayfly.CodeFilePermission},
		{"remove", m.Remove(t.Context(), "b/etc/hostname", false), dayfly.CodeFilePermission},
		{"read through a magic link", read("d/etc/hostname"), dayfly.CodeFileConflict},
		{"write through a magic link", write("d/tmp/x"), dayfly.CodeFileConflict},
		{"chmod through a magic link", chmod("d/tmp"), dayfly.CodeFileConflict},
		{"make a tree below a dangling link", mkdir("f"), dayfly.CodeFileConflict},
	} {
		t.Run("bug 16: "+tt.name, func(t *testing.T) { wantCode(t, tt.err, tt.want) })
	}
}

// TestFullDisk is bug 121: a disk that is full is one error, and files can be removed.
func TestFullDisk(t *testing.T) {
	needRoot(t)
	m := startAgent(t, options{})
	small := filepath.Join(m.home, "small")
	if err := os.Mkdir(small, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("no mounts here:", err)
	}
	defer func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	m.write(t, "small/old", []byte("old"))
	m.write(t, "big", make([]byte, 3<<20))
	m.run(t, shell("mkdir tree && cp big tree"))
	archive := m.archive(t, "tree")
	_, err := m.Write(t.Context(), "small/old", nil, bytes.NewReader(make([]byte, 2<<20)))
	wantCode(t, err, dayfly.CodeDiskFull)
	_, err = m.Move(t.Context(), "big", "small/big", false)
	wantCode(t, err, dayfly.CodeDiskFull)
	wantCode(t, m.WriteArchive(t.Context(), "small/tree", bytes.NewReader(archive)), dayfly.CodeDiskFull)
	if got := string(m.read(t, "small/old")); got != "old" {
		t.Errorf("bug 121: the file holds %d bytes", len(got))
	}
	if left := out(m.run(t, shell("ls -A small; ls big")).Stdout); strings.Contains(left, ".dayfly-") || !strings.Contains(left, "big") {
		t.Errorf("bug 121: left are %q", left)
	}
	if err := m.Remove(context.WithoutCancel(t.Context()), "small/tree", true); err != nil {
		t.Errorf("bug 121: %v", err)
	}
	m.write(t, "small/new", make([]byte, 500<<10))
}
