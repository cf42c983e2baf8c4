package agent_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// watched collects what a watch tells.
type watched struct {
	t      testing.TB
	m      *machine
	stream dayfly.ChangeStream
	root   string
	all    chan dayfly.FileChange // closed at the end
	end    error
}

func (m *machine) watch(t testing.TB, path string, recursive bool) *watched {
	t.Helper()
	s, err := m.Watch(t.Context(), path, recursive)
	if err != nil {
		t.Fatal(err)
	}
	return readWatch(t, m, path, s)
}

// readWatch reads a watch to its end in the background.
func readWatch(t testing.TB, m *machine, path string, s dayfly.ChangeStream) *watched {
	w := &watched{t: t, m: m, stream: s, root: filepath.Join(m.home, path), all: make(chan dayfly.FileChange)}
	stop := make(chan struct{})
	go func() {
		defer close(w.all)
		for {
			c, err := s.Next()
			if err != nil {
				w.end = err
				return
			}
			select {
			case w.all <- c:
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		_ = s.Close()
		for range w.all {
		}
	})
	return w
}

func (w *watched) short(path string) string {
	rel, _ := filepath.Rel(w.root, path)
	return rel
}

// until collects changes, as "kind path", until one is last.
func (w *watched) until(last string) []string {
	w.t.Helper()
	var got []string
	timeout := time.After(testLimit)
	for {
		select {
		case c, ok := <-w.all:
			if !ok {
				w.t.Fatalf("the watch ended (%v) after %q", w.end, got[max(0, len(got)-10):])
			}
			text := string(c.Kind) + " " + w.short(c.Path)
			if c.Kind == dayfly.ChangeMoved {
				text = fmt.Sprintf("moved %s to %s", w.short(c.From), w.short(c.Path))
			}
			got = append(got, text)
			if text == last || c.Kind == dayfly.ChangeOverflow {
				return got
			}
		case <-timeout:
			w.t.Fatalf("never %q, but %d changes, the last %q", last, len(got), got[max(0, len(got)-10):])
		}
	}
}

// ends waits for the end of the watch and gives why.
func (w *watched) ends() error {
	w.t.Helper()
	timeout := time.After(testLimit)
	for {
		select {
		case _, ok := <-w.all:
			if !ok {
				return w.end
			}
		case <-timeout:
			w.t.Fatal("the watch does not end")
		}
	}
}

func TestWatch(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell("mkdir -p w/sub/deep w/moved/inner out/coming && touch w/file out/coming/f && ln -s ../out w/link"))
		w := m.watch(t, "w", true)
		for _, tt := range []struct {
			name, do, want string
		}{
			{"make a file", "touch w/new", "created new|metadata new"},
			{"write", "echo x >> w/file", "modified file"},
			{"mode", "chmod 600 w/file", "metadata file"},
			{"write below", "echo x > w/sub/deep/f", "created sub/deep/f|modified sub/deep/f"},
			{"rename", "mv w/new w/named", "moved new to named"},
			{"rename over", "mv w/named w/file", "moved named to file"},
			{"move between directories", "mv w/file w/sub/deep/g", "moved file to sub/deep/g"},
			{"move away", "mv w/sub/deep/g out/g", "deleted sub/deep/g"},
			{"move here", "mv out/g w/g", "created g"},
			{"remove", "rm w/g", "deleted g"},
			{"bug 127: rename a watched directory", "mv w/moved w/sub/here && touch w/sub/here/inner/x && rm w/sub/here/inner/x", "moved moved to sub/here|created sub/here/inner/x|metadata sub/here/inner/x|deleted sub/here/inner/x"},
			{"rename it again", "mv w/sub w/up && rmdir w/up/here/inner", "moved sub to up|deleted up/here/inner"},
			{"a directory comes with what is in it", "mv out/coming w/coming", "created coming|created coming/f"},
			{"a directory leaves and is not watched any more", "mv w/coming out/coming && touch out/coming/f && touch w/mark", "deleted coming|created mark|metadata mark"},
			{"links are not followed", "touch out/unseen w/link/unseen2 && rm w/mark", "deleted mark"},
			{"a tree goes", "rm -r w/up", "deleted up/deep/f|deleted up/deep|deleted up/here|deleted up"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				w.t = t
				m.run(t, shell(tt.do))
				want := strings.Split(tt.want, "|")
				got := w.until(want[len(want)-1])
				if strings.HasPrefix(tt.name, "a tree") {
					slices.Sort(want)
					slices.Sort(got)
				}
				if strings.Join(got, "|") != strings.Join(want, "|") {
					t.Errorf("told %q, want %q", got, want)
				}
			})
		}
		m.run(t, shell("rm -r w"))
		if err := w.ends(); err != io.EOF {
			t.Errorf("after the root went: %v", err)
		}
	})
}

// TestWatchNewDirectories is bug 127: everything in directories made after the watch began is told, once.
func TestWatchNewDirectories(t *testing.T) {
	m := startAgent(t, options{})
	m.run(t, shell("mkdir w"))
	w := m.watch(t, "w", true)
	for i := range 20 {
		m.run(t, shell(fmt.Sprintf("cd w; mkdir -p %[1]d/b/c && touch %[1]d/b/c/f && mkdir %[1]d/b/c/d && echo x > %[1]d/b/c/d/g && touch end%[1]d", i)))
		count := map[string]int{}
		for _, c := range w.until(fmt.Sprintf("metadata end%d", i)) {
			if strings.HasPrefix(c, "created") {
				count[c]++
			}
		}
		// What is in a new directory may be told a little later than what was made behind it.
		for _, p := range []string{"", "/b", "/b/c", "/b/c/f", "/b/c/d", "/b/c/d/g"} {
			name := fmt.Sprintf("created %d%s", i, p)
			if count[name] == 0 {
				for _, c := range w.until(name) {
					count[c]++
				}
			}
			if count[name] != 1 {
				t.Errorf("bug 127: %q is told %d times", name, count[name])
			}
		}
	}
	m.run(t, argv("python3", "-c", "import os\nos.makedirs('w/many/x')\nfor i in range(10000): open('w/many/x/%05d'%i,'w').close()\nos.mkdir('w/fin')"))
	seen := map[string]int{}
	complete := func() bool {
		for i := range 10000 {
			if seen[fmt.Sprintf("created many/x/%05d", i)] == 0 {
				return false
			}
		}
		return true
	}
	for _, c := range w.until("created fin") {
		seen[c]++
	}
	for seen["overflow ."] == 0 && !complete() { // what is in a new directory may come behind
		for _, c := range w.until("created many/x/09999") {
			seen[c]++
		}
	}
	for c, n := range seen {
		if strings.HasPrefix(c, "created") && n != 1 {
			t.Fatalf("bug 127: %q is told %d times", c, n)
		}
	}
}

// TestWatchTellsOnce: what is made in a directory while it is looked through is told once too.
func TestWatchTellsOnce(t *testing.T) {
	m := startAgent(t, options{})
	m.run(t, shell("mkdir w"))
	w := m.watch(t, "w", true)
	for round := range 3 {
		m.run(t, argv("python3", "-c", fmt.Sprintf("import os\nos.mkdir('big')\nfor i in range(4000): open('big/a%%d'%%i,'w').close()\nos.rename('big','w/%[1]d')\nfor i in range(1500): os.mknod('w/%[1]d/b%%d'%%i)\nos.mkdir('w/end%[1]d')", round)))
		seen := map[string]int{}
		for seen["overflow ."] == 0 && len(seen) < 4000+1500+2 {
			select {
			case c, ok := <-w.all:
				if !ok {
					t.Fatal(w.end)
				}
				seen[string(c.Kind)+" "+w.short(c.Path)]++
			case <-time.After(testLimit):
				t.Fatalf("only %d were told", len(seen))
			}
		}
		m.run(t, shell(fmt.Sprintf("mkdir w/behind%d", round)))
		for _, c := range w.until(fmt.Sprintf("created behind%d", round)) {
			seen[c]++
		}
		for c, n := range seen {
			if n != 1 {
				t.Fatalf("bug 127: %q is told %d times", c, n)
			}
		}
	}
}

// TestWatchOverflow: a reader that does not read gets an overflow, and then what comes after it.
func TestWatchOverflow(t *testing.T) {
	m := startAgent(t, options{})
	m.run(t, shell("mkdir w"))
	s, err := m.Watch(t.Context(), "w", true)
	if err != nil {
		t.Fatal(err)
	}
	m.run(t, argv("python3", "-c", "import os\nos.makedirs('w/x')\nfor i in range(20000):\n n='w/x/'+str(i)*20\n open(n,'w').close()\n os.unlink(n)"))
	w := readWatch(t, m, "w", s)
	w.until("overflow .")
	// A directory made while events were lost is watched all the same.
	m.run(t, shell("mkdir -p w/x/late && touch w/x/late/f"))
	w.until("created x/late/f")
	m.run(t, shell("touch w/x/late/g"))
	w.until("created x/late/g")
}

func TestWatchOneDirectory(t *testing.T) {
	m := startAgent(t, options{})
	m.run(t, shell("mkdir -p w/sub"))
	w := m.watch(t, "w", false)
	m.run(t, shell("touch w/sub/unseen && mkdir w/made && touch w/made/unseen && rm w/sub/unseen && rmdir w/sub && mv w/made w/end"))
	if got := strings.Join(w.until("moved made to end"), "|"); got != "created made|deleted sub|moved made to end" {
		t.Errorf("told %q", got)
	}
	m.run(t, shell("mv w elsewhere"))
	if err := w.ends(); err != io.EOF {
		t.Errorf("after the directory was moved away: %v", err)
	}
}

func TestWatchFile(t *testing.T) {
	m := startAgent(t, options{})
	m.run(t, shell("mkdir d && echo x > d/f && ln -s d/f link"))
	for _, path := range []string{"d/f", "link"} {
		w := m.watch(t, path, true)
		m.run(t, shell("touch d/other; echo y >> d/f"))
		w.until("modified .")
		m.run(t, shell("chmod 600 d/f"))
		w.until("metadata .")
		m.write(t, "d/f", []byte("replaced"))
		w.until("modified .")
		m.run(t, shell("echo z >> d/f"))
		w.until("modified .")
		m.run(t, shell("mv d/f d/g"))
		if err := w.ends(); err != io.EOF {
			t.Errorf("after the file went: %v", err)
		}
		m.run(t, shell("mv d/g d/f"))
	}
}

func TestWatchRefuses(t *testing.T) {
	m := startAgent(t, options{root: true})
	_, err := m.Watch(t.Context(), "none", true)
	wantCode(t, err, dayfly.CodeFileNotFound)
	m.run(t, shell("mkdir w"))
	if err := os.Mkdir(filepath.Join(m.home, "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = m.Watch(t.Context(), "closed", true)
	wantCode(t, err, dayfly.CodeFilePermission)
	var all []dayfly.ChangeStream
	for range 100 {
		s, watchErr := m.Watch(t.Context(), "w", true)
		if err = watchErr; err != nil {
			break
		}
		all = append(all, s)
	}
	wantCode(t, err, dayfly.CodeUnavailable)
	for _, s := range all {
		_ = s.Close()
	}
	eventually(t, "closed watches give their room back", func() bool {
		s, err := m.Watch(t.Context(), "w", true)
		if err == nil {
			all = append(all[:0], s)
		}
		return err == nil
	})
	// Not readable now, but later: from then on it is watched.
	w := readWatch(t, m, "w", all[0])
	m.run(t, shell("mkdir -m 0 w/shut && chmod 755 w/shut"))
	w.until("metadata shut")
	m.run(t, shell("touch w/shut/f"))
	w.until("created shut/f")
}
