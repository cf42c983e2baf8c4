package agent_test

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"dayfly.dev/dayfly"
)

// archive reads a whole archive.
func (m *machine) archive(t testing.TB, path string) []byte {
	t.Helper()
	r, err := m.ReadArchive(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSparseFiles: holes cost nothing, in either direction, and the bytes are the same.
func TestSparseFiles(t *testing.T) {
	m := startAgent(t, options{})
	long := strings.Repeat("long/", 40) + "name"
	m.run(t, shell("mkdir -p s/$(dirname "+long+"); cd s; truncate -s 40M only; printf start > middle; truncate -s 20M middle; printf middle >> middle; truncate -s 40M middle; "+
		"truncate -s 12M ends; printf end >> ends; truncate -s 13M "+long+"; printf x >> "+long+`; printf y > "$(printf 'odd\n\377')"; truncate -s 20M "$(printf 'odd\n\377')"; ln middle hard; : > empty; chmod 640 ends; touch -d @1000000000 *
		for i in $(seq 30); do printf data | dd of=many bs=1 seek=$((i*400000)) conv=notrunc status=none; done`))
	const list = `cd %s && find . -type f -printf '%%p %%m %%s %%n %%T@\n' | sort && find . -type f -print0 | sort -z | xargs -0 sha256sum && find . -type f -size +10M -printf '%%b\n' | awk '{n+=$1} END {print (n < 4000 ? "sparse" : n)}'`
	want := out(m.run(t, shell(fmt.Sprintf(list, "s"))).Stdout)
	if !strings.HasSuffix(want, "sparse\n") {
		t.Skipf("the file system makes no holes: %s", want)
	}
	archive := m.archive(t, "s")
	if len(archive) > 2<<20 {
		t.Errorf("the archive has %d bytes", len(archive))
	}
	up := func(name string, archive []byte) {
		if err := m.WriteArchive(t.Context(), name, bytes.NewReader(archive)); err != nil {
			t.Fatal(err)
		}
	}
	up("again", archive)
	tar := exec.Command("tar", "-C", m.home+"/byte", "-x")
	tar.Stdin = bytes.NewReader(archive)
	m.run(t, shell("mkdir byte"))
	if text, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v %s", err, text)
	}
	names := []string{"again", "byte"}
	for _, format := range []string{"gnu", "posix"} {
		made, err := exec.Command("tar", "-C", m.home+"/s", "-c", "-S", "--format="+format, ".").Output()
		if err != nil {
			t.Fatal(err)
		}
		up("from-"+format, made)
		names = append(names, "from-"+format)
	}
	for _, name := range names {
		got := out(m.run(t, shell(fmt.Sprintf(list, name))).Stdout)
		if got, want := withoutFractions(got), withoutFractions(want); got != want { // an archive holds whole seconds
			t.Errorf("%s differs:\n%s\nwant\n%s", name, got, want)
		}
	}
}

// withoutFractions cuts the parts of seconds off a listing.
func withoutFractions(list string) string {
	var b strings.Builder
	for line := range strings.Lines(list) {
		if at := strings.LastIndexByte(line, '.'); at > strings.LastIndexByte(line, ' ') && at > 0 {
			line = line[:at] + "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// TestManyDirectories: modes and times of directories are kept, also of those that nobody may write into.
func TestManyDirectories(t *testing.T) {
	m := startAgent(t, options{root: true})
	m.run(t, shell("mkdir -p src && cd src && for i in $(seq 60); do mkdir -p $i/a/b; touch $i/a/b/f; done; find . -mindepth 1 -type d -exec chmod 555 {} + && find . -type d -exec touch -d @900000000 {} +"))
	archive := m.archive(t, "src")
	for range 2 { // the second time over what is there
		err := m.WriteArchive(t.Context(), "copy", bytes.NewReader(archive))
		const list = "cd %s && find . -mindepth 1 -printf '%%p %%y %%m\n' | sort; find . -mindepth 1 -type d -printf '%%T@\n' | sort -u"
		a, b := out(m.run(t, shell(fmt.Sprintf(list, "src"))).Stdout), out(m.run(t, shell(fmt.Sprintf(list, "copy"))).Stdout)
		if a != b {
			t.Errorf("bug 72: the copy differs")
		}
		if err != nil {
			wantCode(t, err, dayfly.CodeFilePermission) // a file in a directory that may not be written cannot be replaced
		}
	}
	m.run(t, shell("chmod -R u+w src copy"))
}
