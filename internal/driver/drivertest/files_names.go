package drivertest

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"dayfly.dev/dayfly"
)

// listingSurvives lists what others fail at.
func listingSurvives(t *testing.T, s *suite) {
	g := s.guest(t)
	const many = 10_000
	user := strings.TrimSpace(g.sh(t, fmt.Sprintf(`mkdir d; cd d; ln -s nowhere dangling; ln -s loop loop; ln -s .. up; mkfifo fifo
		mkdir shut; touch shut/in; chmod 0 shut; seq %d | xargs touch; id -u`, many)))
	defer g.sh(t, "chmod 700 d/shut")
	found := make(map[string]dayfly.FileInfo)
	for _, e := range g.list(t, "d", false, 1000) {
		if _, twice := found[e.Name]; twice {
			t.Errorf("%q is listed twice", e.Name)
		}
		found[e.Name] = e
	}
	if len(found) != many+5 {
		t.Errorf("%d entries, want %d", len(found), many+5)
	}
	for name, target := range map[string]string{"dangling": "nowhere", "loop": "loop", "up": ".."} {
		if e := found[name]; e.Type != dayfly.FileSymlink || e.Target != target || e.Error != "" {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if e := found["fifo"]; e.Type != dayfly.FileOther {
		t.Errorf("fifo: %+v", e)
	}
	deep := g.list(t, "d", true, 1000)
	faults := 0
	for _, e := range deep {
		if e.Error != "" {
			faults++
		}
	}
	if user != "0" && (faults != 1 || len(deep) != many+5) || user == "0" && (faults != 0 || len(deep) != many+6) {
		t.Errorf("recursive, as user %s: %d entries, %d with an error", user, len(deep), faults)
	}
	vanishing(t, g, many)
}

// vanishing lists a directory while its files go: what stays is there, once.
func vanishing(t *testing.T, g *guest, many int) {
	t.Helper()
	var gone sync.WaitGroup
	gone.Go(func() {
		if r, err := g.Run(ctx(t), shell(fmt.Sprintf("cd d && seq 2 2 %d | xargs rm -f", many)), nil); err != nil || r.Exit.Code != 0 {
			t.Errorf("%+v, %v", r.Exit, err)
		}
	})
	seen := make(map[string]int)
	for range 3 {
		clear(seen)
		for _, e := range g.list(t, "d", false, 100) {
			seen[e.Name]++
		}
		for i := 1; i <= many; i += 2 {
			if seen[fmt.Sprint(i)] != 1 {
				t.Fatalf("%d is listed %d times while others go", i, seen[fmt.Sprint(i)])
			}
		}
	}
	gone.Wait()
}

func everyName(t *testing.T, s *suite) {
	g := s.guest(t)
	names := []string{
		"a b+c%20#?&é\u202e日本.txt", "new\nline", "-dash", strings.Repeat("x", 255), "raw\xff\xfe", "e\u0301", "é", ".hidden", "quote'\"`$(x)\\", " ",
	}
	if _, err := g.Mkdir(ctx(t), "moved", nil, false /* its parent is there */); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		g.put(t, "names/"+name, []byte(name))
		if got := g.content(t, "names/"+name); got != name {
			t.Errorf("%q holds %q", name, got)
		}
	}
	entries := g.list(t, "names", false, 3)
	if len(entries) != len(names) {
		t.Errorf("%d entries, want %d", len(entries), len(names))
	}
	for _, e := range entries {
		if got := g.content(t, e.Path); got != e.Name {
			t.Errorf("%q holds %q", e.Name, got)
		}
		moved, err := g.Move(ctx(t), e.Path, "moved/"+e.Name, false /* there is nothing */)
		if err != nil || moved.Name != e.Name {
			t.Errorf("move %q: %q, %v", e.Name, moved.Name, err)
		}
		if err := g.Remove(ctx(t), "moved/"+e.Name, false /* one file */); err != nil {
			t.Errorf("remove %q: %v", e.Name, err)
		}
	}
	if got := g.sh(t, "find names moved -type f | wc -l"); got != "0\n" {
		t.Errorf("%s are left", got)
	}
	for _, bad := range []string{"", "a\x00b", strings.Repeat("y", 256), strings.Repeat("y/", 3000)} {
		_, err := g.Stat(ctx(t), bad)
		wantCode(t, fmt.Sprintf("stat of %.20q", bad), err, dayfly.CodeInvalid)
	}
}

// fullDisk fills /dev/shm, the one file system of every machine that has an end of its own under every pool.
func fullDisk(t *testing.T, s *suite) {
	if !s.Isolated {
		t.Skip("under this driver it would be the host's")
	}
	g := s.guest(t, func(spec *dayfly.InstanceSpec) { spec.Limits.MemoryBytes = 256 << 20 })
	if g.call(t, shell("head -c 1G /dev/zero >/dev/shm/fill; test $(df --output=avail /dev/shm | tail -1) -eq 0")).Exit.Code != 0 {
		t.Skip("its shared memory has no end but the memory limit")
	}
	_, err := g.Write(ctx(t), "/dev/shm/more", nil, zeros(1<<20))
	wantCode(t, "an upload", err, dayfly.CodeDiskFull)
	if got := g.sh(t, "echo ok"); got != "ok\n" {
		t.Errorf("a command: %q", got)
	}
	if err := g.Remove(ctx(t), "/dev/shm/fill", false /* one file */); err != nil {
		t.Errorf("removing the file that fills it: %v", err)
	}
	if _, err := g.Write(ctx(t), "/dev/shm/more", nil, zeros(1<<20)); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
