package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/image"
)

const passwd = "root:x:0:0:root:/root:/bin/sh\nbroken line\nuser:x:1000:1001::/home/user:/bin/bash\nlost:x:7:7::/nowhere:/bin/sh\nfar:x:70000:7::/:/bin/sh\n"

var stamp = time.Unix(1_600_000_000, 0)

// entry is one header with its content.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: stamp}, content}
}

func dir(name string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: stamp}}
}

func link(kind byte, name, target string) entry {
	return entry{Header: tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777, ModTime: stamp}}
}

func node(kind byte, name string) entry {
	return entry{Header: tar.Header{Typeflag: kind, Name: name, Mode: 0o600, Devmajor: 1, Devminor: 3, ModTime: stamp}}
}

func owned(e entry, uid, gid int) entry { e.Uid, e.Gid = uid, gid; return e }

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		h.Size = int64(len(e.content))
		must(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, e.content)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func zipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	must(t, err)
	must(t, w.Close())
	return out.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	must(t, err)
	return w.EncodeAll(b, nil)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func needRoot(t testing.TB) {
	if os.Geteuid() != 0 {
		t.Skip("setting owners needs root")
	}
}

// open makes a store and checks at the end that nothing but it was written beside it.
func open(t testing.TB) (*image.Store, string) {
	t.Helper()
	needRoot(t)
	parent := t.TempDir()
	s, err := image.Open(context.Background(), filepath.Join(parent, "images"))
	must(t, err)
	t.Cleanup(func() {
		for _, d := range []struct {
			path string
			most int
		}{{parent, 1}, {filepath.Join(parent, "images"), 1}} {
			entries, err := os.ReadDir(d.path)
			if err != nil || len(entries) > d.most {
				t.Errorf("%s holds %v, %v", d.path, entries, err)
			}
		}
	})
	return s, filepath.Join(parent, "images")
}

func base() []entry {
	return []entry{dir("./"), dir("etc/"), file("etc/passwd", passwd), dir("root"), dir("home"), owned(dir("home/user"), 1000, 1001)}
}

func TestImportKeepsWhatTheArchiveSays(t *testing.T) {
	s, _ := open(t)
	long := strings.Repeat("l", 200)
	capability := string([]byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	capable := file("bin/capable", "x")
	capable.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": capability, "SCHILY.xattr.user.other": "dropped"}
	setuid := file("bin/su", "x")
	setuid.Mode = 0o4755
	sticky := dir("tmp")
	sticky.Mode = 0o1777
	closed := dir("closed")
	closed.Mode = 0
	zeros := strings.Repeat("\x00", 1<<20)
	data := archive(t, append(base(),
		owned(file("home/user/f", "hello"), 1000, 65535), setuid, capable, sticky, closed, file("closed/inner", "i"),
		link(tar.TypeSymlink, "home/user/abs", "/etc/passwd"), link(tar.TypeSymlink, "home/user/out", "../../../../x"),
		link(tar.TypeLink, "home/user/hard", "./home/user/f"), node(tar.TypeFifo, "pipe"),
		file(long+"/"+long+"/"+long, "deep"), file("sparse", "a"+zeros+"b"+zeros),
		file("twice", "first"), file("twice", "second"),
	)...)
	img, err := s.Import(t.Context(), "base", bytes.NewReader(data), image.ImportOptions{})
	must(t, err)
	root := s.Path(img.ID)

	for _, tt := range []struct {
		name     string
		mode     uint32
		uid, gid uint32
		size     int64
	}{
		{"home/user/f", unix.S_IFREG | 0o644, 1000, 65535, 5},
		{"home/user", unix.S_IFDIR | 0o755, 1000, 1001, -1},
		{"bin", unix.S_IFDIR | 0o755, 0, 0, -1},
		{"bin/su", unix.S_IFREG | 0o4755, 0, 0, 1},
		{"tmp", unix.S_IFDIR | 0o1777, 0, 0, -1},
		{"closed", unix.S_IFDIR, 0, 0, -1},
		{"pipe", unix.S_IFIFO | 0o600, 0, 0, 0},
		{long + "/" + long + "/" + long, unix.S_IFREG | 0o644, 0, 0, 4},
		{"sparse", unix.S_IFREG | 0o644, 0, 0, 2<<20 + 2},
		{"twice", unix.S_IFREG | 0o644, 0, 0, 6},
	} {
		t.Run(tt.name[:min(len(tt.name), 20)], func(t *testing.T) {
			var st unix.Stat_t
			must(t, unix.Lstat(filepath.Join(root, tt.name), &st))
			if st.Mode != tt.mode || st.Uid != tt.uid || st.Gid != tt.gid || tt.size >= 0 && st.Size != tt.size {
				t.Errorf("mode %o owner %d:%d size %d, want %o %d:%d %d", st.Mode, st.Uid, st.Gid, st.Size, tt.mode, tt.uid, tt.gid, tt.size)
			}
			if tt.name != "bin" && st.Mtim.Sec != stamp.Unix() && !strings.HasPrefix(tt.name, long) {
				t.Errorf("modified at %d, want %d", st.Mtim.Sec, stamp.Unix())
			}
		})
	}
	var f, hard, sparse unix.Stat_t
	must(t, unix.Lstat(filepath.Join(root, "home/user/f"), &f))
	must(t, unix.Lstat(filepath.Join(root, "home/user/hard"), &hard))
	must(t, unix.Lstat(filepath.Join(root, "sparse"), &sparse))
	if f.Ino != hard.Ino {
		t.Error("the hard link is a file of its own")
	}
	if sparse.Blocks*512 >= sparse.Size {
		t.Errorf("the sparse file takes %d bytes on disk", sparse.Blocks*512)
	}
	if b, err := os.ReadFile(filepath.Join(root, "sparse")); err != nil || string(b) != "a"+zeros+"b"+zeros {
		t.Errorf("the sparse file has other content, %v", err)
	}
	if target, err := os.Readlink(filepath.Join(root, "home/user/out")); err != nil || target != "../../../../x" {
		t.Errorf("symlink to %q, %v", target, err)
	}
	buf := make([]byte, 64)
	if n, err := unix.Getxattr(filepath.Join(root, "bin/capable"), "security.capability", buf); err != nil || string(buf[:n]) != capability {
		t.Errorf("capability %x, %v", buf[:max(n, 0)], err)
	}
	if n, err := unix.Listxattr(filepath.Join(root, "bin/capable"), buf); err != nil || strings.Contains(string(buf[:n]), "user.other") {
		t.Errorf("attributes %q, %v", buf[:max(n, 0)], err)
	}
	wantUser := dayfly.User{Name: "user", UID: 1000, GID: 1001, Home: "/home/user"}
	if img.User != wantUser || img.Workdir != "/home/user" || img.Files < 15 || img.SizeBytes < 2<<20 {
		t.Errorf("image %+v", img)
	}
}

func TestImportFormats(t *testing.T) {
	plain := archive(t, base()...)
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4}, zstded(t, plain)...)
	for _, tt := range []struct {
		name string
		data []byte
		want dayfly.Code
	}{
		{"tar", plain, ""},
		{"tar.gz", zipped(t, plain), ""},
		{"tar.zst", zstded(t, plain), ""},
		{"tar.zst after a skippable frame", skippable, ""},
		{"nothing", nil, dayfly.CodeInvalid},
		{"empty tar", archive(t), dayfly.CodeInvalid},
		{"text", []byte(strings.Repeat("not a tar file\n", 100)), dayfly.CodeInvalid},
		{"xz", []byte("\xfd7zXZ\x00rest"), dayfly.CodeInvalid},
		{"cut tar", plain[:len(plain)/2+100], dayfly.CodeInvalid},
		{"cut tar.gz", zipped(t, plain)[:100], dayfly.CodeInvalid},
		{"tar.gz without its checksum", zipped(t, plain)[:len(zipped(t, plain))-8], dayfly.CodeInvalid},
		{"cut tar.zst", zstded(t, plain)[:100], dayfly.CodeInvalid},
		{"broken tar.zst", append([]byte{0x28, 0xb5, 0x2f, 0xfd}, bytes.Repeat([]byte{0xff}, 600)...), dayfly.CodeInvalid},
		{"layers", archive(t, file("manifest.json", "[]"), file("a/layer.tar", "x")), dayfly.CodeInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := open(t)
			_, err := s.Import(t.Context(), "x", bytes.NewReader(tt.data), image.ImportOptions{})
			if got := dayfly.ErrorCode(err); got != tt.want {
				t.Errorf("code %q, want %q (%v)", got, tt.want, err)
			}
		})
	}
}

func TestImportRefusesHostileArchives(t *testing.T) {
	small := image.Limits{Files: 20, TotalBytes: 1 << 20, FileBytes: 1 << 19, NameBytes: 40, PathBytes: 200, Depth: 8, Ratio: 10, RatioFreeBytes: 1 << 16}
	many := make([]entry, 21)
	for i := range many {
		many[i] = file(fmt.Sprint(i), "")
	}
	half := strings.Repeat("x", 1<<19)
	capable := file("c", "")
	capable.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "junk"}
	for _, tt := range []struct {
		name    string
		entries []entry
		want    dayfly.Code
		says    string
	}{
		{"dot dot", []entry{file("../escape", "x")}, dayfly.CodeInvalid, "../escape"},
		{"dot dot inside", []entry{dir("a"), file("a/../../escape", "x")}, dayfly.CodeInvalid, "escape"},
		{"absolute", []entry{file("/escape", "x")}, dayfly.CodeInvalid, "/escape"},
		{"character device", []entry{dir("dev"), node(tar.TypeChar, "dev/null")}, dayfly.CodeInvalid, "dev/null"},
		{"block device", []entry{node(tar.TypeBlock, "sda")}, dayfly.CodeInvalid, "sda"},
		{"whiteout", []entry{{Header: tar.Header{Typeflag: tar.TypeChar, Name: "etc"}}}, dayfly.CodeInvalid, "etc"},
		{"through a symlink", []entry{link(tar.TypeSymlink, "l", ".."), file("l/escape", "x")}, dayfly.CodeInvalid, "l/escape"},
		{"through an absolute symlink", []entry{link(tar.TypeSymlink, "l", "/"), file("l/escape", "x")}, dayfly.CodeInvalid, "l/escape"},
		{"through a symlink below", []entry{dir("a"), link(tar.TypeSymlink, "a/l", "/"), file("a/l/b/escape", "x")}, dayfly.CodeInvalid, "escape"},
		{"through a symlink that stays inside", []entry{dir("a"), link(tar.TypeSymlink, "l", "a"), file("l/f", "x")}, dayfly.CodeInvalid, "l/f"},
		{"hard link through a symlink that stays inside", []entry{file("a/f", ""), link(tar.TypeSymlink, "l", "a"), link(tar.TypeLink, "h", "l/f")}, dayfly.CodeInvalid, `"h"`},
		{"symlink as directory", []entry{link(tar.TypeSymlink, "l", "/"), dir("l")}, dayfly.CodeInvalid, `"l"`},
		{"file as directory", []entry{file("f", ""), file("f/g", "")}, dayfly.CodeInvalid, "f/g"},
		{"directory as file", []entry{dir("d"), file("d", "")}, dayfly.CodeInvalid, `"d"`},
		{"hard link outside", []entry{link(tar.TypeLink, "l", "../../../etc/passwd")}, dayfly.CodeInvalid, `"l"`},
		{"absolute hard link", []entry{link(tar.TypeLink, "l", "/etc/passwd")}, dayfly.CodeInvalid, `"l"`},
		{"hard link through a symlink", []entry{link(tar.TypeSymlink, "e", "/etc"), link(tar.TypeLink, "l", "e/passwd")}, dayfly.CodeInvalid, `"l"`},
		{"hard link to nothing", []entry{link(tar.TypeLink, "l", "later"), file("later", "")}, dayfly.CodeInvalid, `"l"`},
		{"hard link to a directory", []entry{dir("d"), link(tar.TypeLink, "l", "d")}, dayfly.CodeInvalid, `"l"`},
		{"hard link to the root", []entry{dir("d"), link(tar.TypeLink, "l", ".")}, dayfly.CodeInvalid, `"l"`},
		{"symlink to nothing", []entry{link(tar.TypeSymlink, "l", "")}, dayfly.CodeInvalid, `"l"`},
		{"root as a link", []entry{link(tar.TypeSymlink, ".", "/etc")}, dayfly.CodeInvalid, "root"},
		{"foreign user id", []entry{owned(file("f", ""), 65536, 0)}, dayfly.CodeInvalid, "65536"},
		{"foreign group id", []entry{owned(file("f", ""), 0, 100000)}, dayfly.CodeInvalid, "100000"},
		{"bad capability", []entry{capable}, dayfly.CodeInvalid, `"c"`},
		{"unknown type", []entry{{Header: tar.Header{Typeflag: 'V', Name: "volume"}}}, dayfly.CodeInvalid, "volume"},
		{"too many", many, dayfly.CodeTooLarge, "20"},
		{"large file", []entry{file("f", half+"x")}, dayfly.CodeTooLarge, `"f"`},
		{"large in all", []entry{file("f", half), file("f", half), file("f", half)}, dayfly.CodeTooLarge, `"f"`},
		{"long name", []entry{file(strings.Repeat("n", 41), "")}, dayfly.CodeInvalid, "longer"},
		{"long path", []entry{file(strings.Repeat("abcdefghijklmnopqrstuvwxyz/", 8)+"x", "")}, dayfly.CodeInvalid, "longer"},
		{"deep path", []entry{file(strings.Repeat("a/", 9)+"x", "")}, dayfly.CodeInvalid, "deeper"},
		{"parents count as entries", []entry{file("a/b/c/d/e/f/1", ""), file("b/b/c/d/e/f/1", ""), file("c/b/c/d/e/f/1", ""), file("d/b/c/d/e/f/1", "")}, dayfly.CodeTooLarge, "20"},
		{"passwd is a FIFO", []entry{node(tar.TypeFifo, "etc/passwd")}, dayfly.CodeInvalid, "passwd"},
		{"config is not JSON", []entry{file(image.ConfigPath, "{")}, dayfly.CodeInvalid, "image.json"},
		{"config with an unknown field", []entry{file(image.ConfigPath, `{"cmd":"x"}`)}, dayfly.CodeInvalid, "cmd"},
		{"config with a bad variable", []entry{file(image.ConfigPath, `{"env":{"A=B":"x"}}`)}, dayfly.CodeInvalid, "A=B"},
		{"config with an unknown user", []entry{file(image.ConfigPath, `{"user":"who"}`)}, dayfly.CodeInvalid, "who"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := open(t)
			_, err := s.Import(t.Context(), "x", bytes.NewReader(archive(t, tt.entries...)), image.ImportOptions{Limits: small})
			if got := dayfly.ErrorCode(err); got != tt.want {
				t.Fatalf("code %q, want %q (%v)", got, tt.want, err)
			}
			if e := dayfly.AsError(err); !strings.Contains(e.Message, tt.says) {
				t.Errorf("message %q does not name %q", e.Message, tt.says)
			}
		})
	}
	t.Run("bomb by compression", func(t *testing.T) {
		s, _ := open(t)
		bomb := zstded(t, archive(t, file("f", strings.Repeat("\x00", 1<<19))))
		_, err := s.Import(t.Context(), "x", bytes.NewReader(bomb), image.ImportOptions{Limits: small})
		if dayfly.ErrorCode(err) != dayfly.CodeTooLarge {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("bomb after the end", func(t *testing.T) {
		s, _ := open(t)
		bomb := zstded(t, append(archive(t, file("f", "")), make([]byte, 8<<20)...))
		_, err := s.Import(t.Context(), "x", bytes.NewReader(bomb), image.ImportOptions{Limits: small})
		if dayfly.ErrorCode(err) != dayfly.CodeTooLarge {
			t.Errorf("err = %v", err)
		}
	})
}

func TestImportUsers(t *testing.T) {
	config := file(image.ConfigPath, `{"user":"lost","workdir":"/etc","env":{"A":"image","B":"image"}}`)
	for _, tt := range []struct {
		name    string
		entries []entry
		options image.ImportOptions
		user    dayfly.User
		workdir string
		want    dayfly.Code
	}{
		{"uid 1000", base(), image.ImportOptions{}, dayfly.User{Name: "user", UID: 1000, GID: 1001, Home: "/home/user"}, "/home/user", ""},
		{"no passwd", []entry{dir("x")}, image.ImportOptions{}, dayfly.User{Home: "/"}, "/", ""},
		{"no uid 1000, no home", []entry{file("etc/passwd", "root:x:0:0::/root:/bin/sh")}, image.ImportOptions{}, dayfly.User{Name: "root", Home: "/"}, "/", ""},
		{"by name", base(), image.ImportOptions{User: "root"}, dayfly.User{Name: "root", Home: "/root"}, "/root", ""},
		{"by number of an entry", base(), image.ImportOptions{User: "7"}, dayfly.User{Name: "lost", UID: 7, GID: 7, Home: "/"}, "/", ""},
		{"by number alone", base(), image.ImportOptions{User: "42"}, dayfly.User{UID: 42, GID: 42, Home: "/"}, "/", ""},
		{"number too large", base(), image.ImportOptions{User: "65536"}, dayfly.User{}, "", dayfly.CodeInvalid},
		{"ids of its entry too large", base(), image.ImportOptions{User: "far"}, dayfly.User{}, "", dayfly.CodeInvalid},
		{"nobody of that name", base(), image.ImportOptions{User: "who"}, dayfly.User{}, "", dayfly.CodeInvalid},
		{"config", append(base(), config), image.ImportOptions{}, dayfly.User{Name: "lost", UID: 7, GID: 7, Home: "/"}, "/etc", ""},
		{"options beat config", append(base(), config), image.ImportOptions{User: "user", Workdir: "/etc/../root/"},
			dayfly.User{Name: "user", UID: 1000, GID: 1001, Home: "/home/user"}, "/root", ""},
		{"home through links of the image", append(base(), link(tar.TypeSymlink, "h", "/home/user"), file("etc/passwd", "u:x:1000:1::/h:/bin/sh")),
			image.ImportOptions{}, dayfly.User{Name: "u", UID: 1000, GID: 1, Home: "/h"}, "/h", ""},
		{"passwd a link out", []entry{link(tar.TypeSymlink, "etc/passwd", "/../../../../../../../../etc/hostname")}, image.ImportOptions{}, dayfly.User{Home: "/"}, "/", ""},
		{"workdir missing", base(), image.ImportOptions{Workdir: "/none"}, dayfly.User{}, "", dayfly.CodeInvalid},
		{"workdir relative", base(), image.ImportOptions{Workdir: "etc"}, dayfly.User{}, "", dayfly.CodeInvalid},
		{"bad variable", base(), image.ImportOptions{Env: map[string]string{"": "x"}}, dayfly.User{}, "", dayfly.CodeInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := open(t)
			img, err := s.Import(t.Context(), "x", bytes.NewReader(archive(t, tt.entries...)), tt.options)
			if got := dayfly.ErrorCode(err); got != tt.want {
				t.Fatalf("code %q, want %q (%v)", got, tt.want, err)
			}
			if img.User != tt.user || img.Workdir != tt.workdir {
				t.Errorf("user %+v workdir %q, want %+v %q", img.User, img.Workdir, tt.user, tt.workdir)
			}
		})
	}
	t.Run("environment", func(t *testing.T) {
		s, _ := open(t)
		img, err := s.Import(t.Context(), "x", bytes.NewReader(archive(t, append(base(), config)...)), image.ImportOptions{Env: map[string]string{"B": "option"}})
		must(t, err)
		if len(img.Env) != 2 || img.Env["A"] != "image" || img.Env["B"] != "option" {
			t.Errorf("env %v", img.Env)
		}
	})
}

func TestStoreSurvivesRestart(t *testing.T) {
	s, dirName := open(t)
	var progress []image.Progress
	data := archive(t, append(base(), file("big", strings.Repeat("abcdefgh", 1<<20)))...)
	img, err := s.Import(t.Context(), "base", bytes.NewReader(data), image.ImportOptions{
		CreatedAt: stamp, Env: map[string]string{"A": "b"}, Progress: func(p image.Progress) { progress = append(progress, p) },
	})
	must(t, err)
	if len(progress) == 0 || progress[0].ReadBytes == 0 || progress[0].Files == 0 {
		t.Errorf("progress %v", progress)
	}
	must(t, os.Mkdir(filepath.Join(dirName, ".tmp-left"), 0o700))
	must(t, os.MkdirAll(filepath.Join(dirName, ".trash-left", "a"), 0o700))
	again, err := image.Open(t.Context(), dirName)
	must(t, err)
	images, err := again.Load(t.Context())
	must(t, err)
	if len(images) != 1 || fmt.Sprint(images[0]) != fmt.Sprint(img) {
		t.Errorf("loaded %+v, want %+v", images, img)
	}
	must(t, again.Remove(t.Context(), img.ID))
	must(t, again.Remove(t.Context(), img.ID)) // again is fine
	if images, err = again.Load(t.Context()); err != nil || len(images) != 0 {
		t.Errorf("after Remove: %v, %v", images, err)
	}
	if err := again.Remove(t.Context(), "../images"); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
		t.Errorf("Remove of a path: %v", err)
	}
}

func TestLoadNamesDamagedRecords(t *testing.T) {
	s, dirName := open(t)
	img, err := s.Import(t.Context(), "base", bytes.NewReader(archive(t, base()...)), image.ImportOptions{})
	must(t, err)
	bad := dayfly.NewID(dayfly.PrefixImage)
	must(t, os.Mkdir(filepath.Join(dirName, bad), 0o700))
	must(t, os.WriteFile(filepath.Join(dirName, bad, "image.json"), []byte("{"), 0o600))
	images, err := s.Load(t.Context())
	if err == nil || !strings.Contains(err.Error(), bad) || len(images) != 1 || images[0].ID != img.ID {
		t.Errorf("Load = %v, %v", images, err)
	}
	must(t, s.Remove(t.Context(), bad))
}

func TestImportStopsWithItsInput(t *testing.T) {
	data := archive(t, base()...)
	t.Run("reader fails", func(t *testing.T) {
		s, _ := open(t)
		broken := errors.New("connection lost")
		_, err := s.Import(t.Context(), "x", io.MultiReader(bytes.NewReader(data[:1000]), iotest.ErrReader(broken)), image.ImportOptions{})
		if !errors.Is(err, broken) {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("context ends", func(t *testing.T) {
		s, _ := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Import(ctx, "x", bytes.NewReader(data), image.ImportOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("names", func(t *testing.T) {
		s, _ := open(t)
		for _, name := range []string{"", "../x", "A", "-x", "a/b", "a b", strings.Repeat("a", 64)} {
			if _, err := s.Import(t.Context(), name, bytes.NewReader(data), image.ImportOptions{}); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
				t.Errorf("name %q: %v", name, err)
			}
		}
	})
}

// FuzzImport feeds archives that no writer made: whatever they hold, the answer is an image or an error for the user, and
// nothing lands outside.
func FuzzImport(f *testing.F) {
	needRoot(f)
	f.Add(archive(f, base()...))
	f.Add(archive(f, link(tar.TypeSymlink, "l", ".."), file("l/x", "y"), link(tar.TypeLink, "h", "l"), node(tar.TypeFifo, "p")))
	f.Add(zipped(f, archive(f, file("a", "b"))))
	f.Add(zstded(f, archive(f, file("a", "b"))))
	limits := image.Limits{Files: 50, TotalBytes: 1 << 20, FileBytes: 1 << 19, RatioFreeBytes: 1 << 18}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, _ := open(t)
		_, err := s.Import(t.Context(), "x", bytes.NewReader(data), image.ImportOptions{Limits: limits})
		if code := dayfly.ErrorCode(err); code != "" && code != dayfly.CodeInvalid && code != dayfly.CodeTooLarge {
			t.Errorf("code %q: %v", code, err)
		}
	})
}
