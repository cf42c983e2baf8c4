package agent_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

func (m *machine) write(t testing.TB, name string, content []byte) dayfly.FileInfo {
	t.Helper()
	info, err := m.Write(t.Context(), name, nil, bytes.NewReader(content))
	if err != nil {
		t.Fatalf("write %q: %v", name, err)
	}
	return info
}

func (m *machine) read(t testing.TB, name string) []byte {
	t.Helper()
	_, r, err := m.Read(t.Context(), name, dayfly.FileRange{Length: -1})
	if err != nil {
		t.Fatalf("read %q: %v", name, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %q: %v", name, err)
	}
	return b
}

func TestFileContent(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		for _, size := range []int{0, 1, 127 << 10, 129 << 10, 1 << 20, 20 << 20} {
			content := make([]byte, size)
			_, _ = rand.Read(content)
			info := m.write(t, "deep/er/f", content)
			if info.SizeBytes != int64(size) || info.Mode != 0o644 || info.Path != m.home+"/deep/er/f" {
				t.Errorf("bug 75: %+v", info)
			}
			if !bytes.Equal(m.read(t, "deep/er/f"), content) {
				t.Errorf("bug 74, 78: %d bytes differ", size)
			}
		}
		if got := m.read(t, "/proc/uptime"); len(got) == 0 {
			t.Error("bug 78: /proc/uptime is empty")
		}
		_, r, err := m.Read(t.Context(), "deep/er/f", dayfly.FileRange{Offset: 5, Length: 7})
		if err != nil {
			t.Fatal(err)
		}
		part, _ := io.ReadAll(r)
		_ = r.Close()
		if !bytes.Equal(part, m.read(t, "deep/er/f")[5:12]) {
			t.Error("range differs")
		}
	})
}

func TestFileNames(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		for _, name := range []string{
			"a b+c%20#?&é\u202e日本.txt", "new\nline", "-dash", strings.Repeat("x", 255), "raw\xff\xfe", "e\u0301", "é", ".hidden",
		} {
			m.write(t, "names/"+name, []byte(name))
			if got := string(m.read(t, "names/"+name)); got != name {
				t.Errorf("bug 81: %q holds %q", name, got)
			}
		}
		entries, next, err := m.List(t.Context(), dayfly.ListQuery{Path: "names", Limit: 100})
		if err != nil || len(entries) != 8 || next != "" {
			t.Fatalf("%d entries, %q, %v", len(entries), next, err)
		}
		for _, e := range entries {
			if string(m.read(t, e.Path)) != e.Name {
				t.Errorf("bug 81: listed as %q", e.Name)
			}
			if err := m.Remove(t.Context(), e.Path, false); err != nil {
				t.Error(err)
			}
		}
		for _, bad := range []string{"", "a\x00b", strings.Repeat("y/", 3000)} {
			_, err := m.Stat(t.Context(), bad)
			wantCode(t, err, dayfly.CodeInvalid)
		}
	})
}

func TestFileErrors(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell("mkdir dir full && touch full/x && mkfifo fifo && ln -s loop loop && ln -s nowhere dangling"))
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
		for _, tt := range []struct {
			name string
			err  error
			want dayfly.Code
		}{
			{"missing", read("none"), dayfly.CodeFileNotFound},
			{"below a file", read("full/x/y"), dayfly.CodeFileConflict},
			{"read directory", read("dir"), dayfly.CodeFileConflict},
			{"read FIFO", read("fifo"), dayfly.CodeFileConflict},
			{"read device", read("/dev/null"), dayfly.CodeFileConflict},
			{"read loop", read("loop"), dayfly.CodeFileConflict},
			{"read dangling link", read("dangling"), dayfly.CodeFileNotFound},
			{"write directory", write("dir"), dayfly.CodeFileConflict},
			{"write FIFO", write("fifo"), dayfly.CodeFileConflict},
			{"write device", write("/dev/null"), dayfly.CodeFileConflict},
			{"write name with slash", write("new/"), dayfly.CodeFileConflict},
			{"remove missing", m.Remove(t.Context(), "none", true), dayfly.CodeFileNotFound},
			{"remove full directory", m.Remove(t.Context(), "full", false), dayfly.CodeFileConflict},
			{"remove root", m.Remove(t.Context(), "/", true), dayfly.CodeFileConflict},
			{"remove tree", m.Remove(t.Context(), "full", true), ""},
			{"magic link", read("/proc/self/exe"), dayfly.CodeFileConflict},
			{"write through dangling link", write("dangling"), ""},
		} {
			t.Run(tt.name, func(t *testing.T) { wantCode(t, tt.err, tt.want) })
		}
		if got := string(m.read(t, "nowhere")); got != "x" {
			t.Errorf("through the link: %q", got)
		}
		_, _, err := m.List(t.Context(), dayfly.ListQuery{Path: "nowhere", Limit: 1})
		wantCode(t, err, dayfly.CodeFileConflict)
	})
}

func TestFilesOfOthers(t *testing.T) {
	m := startAgent(t, options{root: true})
	secret := filepath.Join(t.TempDir(), "secret")
	openUp(t, filepath.Dir(secret))
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(secret, []byte("root only"), 0o600))
	shared := filepath.Join(m.home, "shared")
	must(os.WriteFile(shared, []byte("old"), 0o640))
	must(os.Chown(shared, 0, 0))
	must(os.Chmod(shared, 0o4666))
	_, _, err := m.Read(t.Context(), secret, dayfly.FileRange{Length: -1})
	wantCode(t, err, dayfly.CodeFilePermission)
	for _, name := range []string{secret, "/etc/shadow", "/dayfly-test-new", "/proc/self/mem"} {
		_, err = m.Write(t.Context(), name, nil, strings.NewReader("x"))
		wantCode(t, err, dayfly.CodeFilePermission)
	}
	must(os.Symlink("/etc/shadow", filepath.Join(m.home, "link")))
	must(os.Chown(m.home, 1000, 1000))
	_, err = m.Write(t.Context(), "link", nil, strings.NewReader("x"))
	wantCode(t, err, dayfly.CodeFilePermission)
	must(os.WriteFile(secret+"2", nil, 0o644))
	wantCode(t, m.Remove(t.Context(), secret+"2", false), dayfly.CodeFilePermission)

	m.write(t, "shared", []byte("new"))
	var st unix.Stat_t
	must(unix.Stat(shared, &st))
	if st.Uid != 0 || st.Mode&0o7777 != 0o666 {
		t.Errorf("the replaced file has owner %d and mode %o", st.Uid, st.Mode)
	}
	m.write(t, "own", []byte("mine"))
	must(unix.Stat(filepath.Join(m.home, "own"), &st))
	if st.Uid != 1000 || st.Gid != 1000 {
		t.Errorf("a new file is %d:%d's", st.Uid, st.Gid)
	}
	if id := out(m.run(t, shell("id -u; id -g; id -G")).Stdout); id != "1000\n1000\n1000\n" {
		t.Errorf("commands run as %q", id)
	}
	s := shell("id -u; echo $HOME $USER")
	s.User = "root"
	if id := out(m.run(t, s).Stdout); id != "0\n/root root\n" {
		t.Errorf("user root runs as %q", id)
	}
}

func TestAtomicReplace(t *testing.T) {
	m := startAgent(t, options{})
	m.write(t, "f", []byte("old"))
	m.run(t, shell("chmod 751 f; ln -s f link"))
	broken := io.MultiReader(strings.NewReader("half"), failing{})
	if _, err := m.Write(t.Context(), "f", nil, broken); !errors.Is(err, errBroken) {
		t.Errorf("a failing upload gave %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	slow, w := io.Pipe()
	defer w.Close()
	go func() {
		_, _ = w.Write([]byte("half"))
		cancel()
	}()
	if _, err := m.Write(ctx, "f", nil, slow); err == nil {
		t.Error("a cancelled upload succeeded")
	}
	eventually(t, "nothing of the broken uploads is left", func() bool {
		return out(m.run(t, shell("ls -A")).Stdout) == "f\nlink\n"
	})
	if got := string(m.read(t, "f")); got != "old" {
		t.Errorf("bug 76: after broken uploads: %q", got)
	}
	m.write(t, "link", []byte("new"))
	if got := out(m.run(t, shell("cat f; stat -c ' %a' f; readlink link")).Stdout); got != "new 751\nf\n" {
		t.Errorf("after the replace: %q", got)
	}
	mode := fs.FileMode(0o600)
	if info, err := m.Write(t.Context(), "f", &mode, strings.NewReader("")); err != nil || info.Mode != 0o600 {
		t.Errorf("%+v, %v", info, err)
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { m.write(t, fmt.Sprintf("p%d", i), bytes.Repeat([]byte{byte(i)}, 1<<20)) })
	}
	all.Wait()
}

func TestUploadedProgramsRun(t *testing.T) {
	m := startAgent(t, options{})
	mode := fs.FileMode(0o755)
	stop := make(chan struct{})
	var forks sync.WaitGroup
	forks.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				m.run(t, argv("true"))
			}
		}
	})
	s := shell("while read f; do ./$f && echo $f; done")
	s.OpenStdin = true
	stream, p, err := m.Start(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for i := range 100 {
		name := fmt.Sprintf("prog%d", i)
		if _, err := m.Write(t.Context(), name, &mode, strings.NewReader("#!/bin/true\n")); err != nil {
			t.Fatal(err)
		}
		if err := m.WriteStdin(t.Context(), p.ID, strings.NewReader(name+"\n"), i == 99); err != nil {
			t.Fatal(err)
		}
		o, err := stream.Next()
		if err != nil || o.Kind != dayfly.OutputStdout {
			t.Fatalf("program %d did not run: %+v %s, %v", i, o, o.Data, err)
		}
	}
	close(stop)
	forks.Wait()
}

var errBroken = errors.New("broken on purpose")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

func TestListing(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell(`mkdir -p l/a/b l/c && touch l/a/b/f l/a/x l/z && ln -s /nope l/dangling && ln -s loop l/loop && mkdir -m 0 l/closed && ln -s a l/dirlink`))
		var paths []string
		cursor := ""
		for {
			page, next, err := m.List(t.Context(), dayfly.ListQuery{Path: "l", Recursive: true, Limit: 2, Cursor: cursor})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				paths = append(paths, strings.TrimPrefix(e.Path, m.home+"/l/"))
				if strings.HasSuffix(e.Path, "dangling") && (e.Type != dayfly.FileSymlink || e.Target != "/nope") {
					t.Errorf("bug 80: %+v", e)
				}
				if m.owner() != 0 && strings.HasSuffix(e.Path, "closed") && e.Error == "" {
					t.Errorf("bug 80: a closed directory shows no error: %+v", e)
				}
			}
			if cursor = next; next == "" {
				break
			}
		}
		want := "a a/b a/b/f a/x c closed dangling dirlink loop z"
		if got := strings.Join(paths, " "); got != want {
			t.Errorf("listed %q, want %q", got, want)
		}
		for _, cursor := range []string{"!", strings.Repeat("A", 1<<14)} {
			_, _, err := m.List(t.Context(), dayfly.ListQuery{Path: "l", Limit: 2, Cursor: cursor})
			wantCode(t, err, dayfly.CodeInvalid)
		}
	})
}

// owner tells the uid of the machine's files.
func (m *machine) owner() int {
	var st unix.Stat_t
	_ = unix.Stat(m.home, &st)
	return int(st.Uid)
}

func TestListingLargeDirectory(t *testing.T) {
	m := startAgent(t, options{})
	m.run(t, shell(`python3 -c "
import os
os.mkdir('big')
for i in range(20000): open('big/%06d'%i,'w').close()"`))
	start := time.Now()
	page, next, err := m.List(t.Context(), dayfly.ListQuery{Path: "big", Limit: 1000})
	if err != nil || len(page) != 1000 || next == "" || page[999].Name != "000999" {
		t.Fatalf("%d entries, %v", len(page), err)
	}
	t.Logf("first page of 20,000: %s", time.Since(start))
	page, _, err = m.List(t.Context(), dayfly.ListQuery{Path: "big", Limit: 1, Cursor: next})
	if err != nil || page[0].Name != "001000" {
		t.Fatalf("%+v, %v", page, err)
	}
}

func TestArchives(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell(`mkdir -p src/empty src/sub && cd src && echo x > f && chmod 755 f && ln -s f rel && ln -s /etc/passwd abs && ln -s nope dangling && ln -s sub dirlink && ln f hard && touch -d @1000000000 sub/old && mkfifo fifo && printf n > "$(printf 'x%.0s' $(seq 200))" && chmod 700 empty`))
		r, err := m.ReadArchive(t.Context(), "src")
		if err != nil {
			t.Fatal(err)
		}
		archive, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.WriteArchive(t.Context(), "copy/deep", bytes.NewReader(archive)); err != nil {
			t.Fatal(err)
		}
		const list = `cd %s && find . -mindepth 1 ! -type p -printf '%%p %%y %%m %%l %%n\n' | sort && stat -c %%Y sub/old`
		a, b := out(m.run(t, shell(fmt.Sprintf(list, "src"))).Stdout), out(m.run(t, shell(fmt.Sprintf(list, "copy/deep"))).Stdout)
		if a != b || !strings.Contains(a, "1000000000") {
			t.Errorf("bug 72: the copy differs:\n%s\n%s", a, b)
		}
		r, err = m.ReadArchive(t.Context(), "src/f")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if h, err := tar.NewReader(r).Next(); err != nil || h.Name != "f" {
			t.Errorf("archive of a file: %+v, %v", h, err)
		}
		_, err = m.ReadArchive(t.Context(), "none")
		wantCode(t, err, dayfly.CodeFileNotFound)
	})
}

// tarOf makes an archive of headers; files hold "evil".
func tarOf(t testing.TB, headers ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = w.Write([]byte("evil"))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestHostileArchives(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		outside := filepath.Join(m.home, "outside")
		m.run(t, shell("mkdir outside in; echo good > outside/file; ln -s ../outside in/planted"))
		for _, tt := range []struct {
			name    string
			headers []tar.Header
			entry   string
		}{
			{"parent", []tar.Header{{Typeflag: tar.TypeReg, Name: "../x"}}, "../x"},
			{"parent inside", []tar.Header{{Typeflag: tar.TypeReg, Name: "a/../../x"}}, "a/../../x"},
			{"absolute", []tar.Header{{Typeflag: tar.TypeReg, Name: outside + "/x"}}, outside},
			{"through its own link", []tar.Header{{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside}, {Typeflag: tar.TypeReg, Name: "l/file"}}, "l/file"},
			{"through its own link deep", []tar.Header{{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "../.."}, {Typeflag: tar.TypeReg, Name: "d/l/outside/file"}}, "d/l/outside/file"},
			{"through a planted link", []tar.Header{{Typeflag: tar.TypeReg, Name: "planted/file"}}, "planted/file"},
			{"directory over a link", []tar.Header{{Typeflag: tar.TypeDir, Name: "planted/", Mode: 0o777}}, "planted"},
			{"hard link outside", []tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside/file"}}, "h"},
			{"hard link through a link", []tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "planted/file"}}, "h"},
			{"device", []tar.Header{{Typeflag: tar.TypeChar, Name: "dev", Devmajor: 1, Devminor: 3}}, "dev"},
			{"FIFO", []tar.Header{{Typeflag: tar.TypeFifo, Name: "p"}}, "p"},
		} {
			t.Run("bug 72: "+tt.name, func(t *testing.T) {
				err := m.WriteArchive(t.Context(), "in", bytes.NewReader(tarOf(t, tt.headers...)))
				wantCode(t, err, dayfly.CodeInvalid)
				if !strings.Contains(fmt.Sprint(err), tt.entry) {
					t.Errorf("%v does not name %s", err, tt.entry)
				}
				if got := out(m.run(t, shell("ls -A outside; cat outside/file; ls -A")).Stdout); got != "file\ngood\nin\noutside\n" {
					t.Fatalf("outside is now %q", got)
				}
			})
		}
		// A file over a link replaces the link and not what it names.
		over := tarOf(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "o", Linkname: outside + "/file"}, tar.Header{Typeflag: tar.TypeReg, Name: "o"})
		if err := m.WriteArchive(t.Context(), "in", bytes.NewReader(over)); err != nil {
			t.Fatal(err)
		}
		if got := out(m.run(t, shell("cat outside/file in/o")).Stdout); got != "good\nevil" {
			t.Errorf("got %q", got)
		}
		for _, bad := range [][]byte{[]byte("not a tar at all, but long enough to be one" + strings.Repeat(".", 1000)), over[:700]} {
			wantCode(t, m.WriteArchive(t.Context(), "in", bytes.NewReader(bad)), dayfly.CodeInvalid)
		}
	})
}
