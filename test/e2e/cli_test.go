package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

func TestRunExitsWithTheCommandsCode(t *testing.T) {
	s, c := shared(t)
	for _, tt := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string // parts
	}{
		{"success", []string{"run", "--", "echo", "hi"}, 0, "hi\n", ""},
		{"the command's own", []string{"run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"}, 7, "out\n", "err\n"},
		{"1, which is also that of a failure", []string{"run", "--", "sh", "-c", "exit 1"}, 1, "", ""},
		{"2, which is also that of a wrong use", []string{"run", "--", "sh", "-c", "exit 2"}, 2, "", ""},
		{"death by a signal", []string{"run", "--", "sh", "-c", "kill -9 $$"}, 137, "", ""},
		{"bug 82: no such program", []string{"run", "--", "nosuchprog"}, 127, "", "nosuchprog"},
		{"bug 82: not executable", []string{"run", "--", "/etc/passwd"}, 126, "", "/etc/passwd"},
		{"the command exits 125 itself", []string{"run", "--", "sh", "-c", "exit 125"}, 125, "", ""},
		{"unknown image", []string{"run", "--image", "nope", "--", "true"}, 125, "", "nope"},
		{"wrong use: no command", []string{"run"}, 125, "", "missing"},
		{"wrong use: unknown flag", []string{"run", "--no-such-flag", "--", "true"}, 125, "", "no-such-flag"},
		{"wrong use: a bad timeout", []string{"run", "--timeout", "25h", "--", "true"}, 125, "", "24h"},
		{"environment and labels", []string{"run", "--env", "A=b c", "--label", "x=y", "--", "sh", "-c", `echo "$A"`}, 0, "b c\n", ""},
		{"exec in no sandbox", []string{"exec", "sb00000000000000000000", "--", "true"}, 125, "", "sb00000000000000000000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := s.Dayfly(t.Context(), tt.args...)
			if out.Code != tt.code || !strings.Contains(out.Stdout, tt.stdout) || !strings.Contains(out.Stderr, tt.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %q", out.Code, out.Stdout, out.Stderr)
			}
		})
	}
	sameLists(t, s, c)
}

func TestRunPassesStandardInput(t *testing.T) {
	s, _ := shared(t)
	t.Run("50 MB", func(t *testing.T) {
		data := make([]byte, 50<<20)
		_, _ = rand.NewChaCha8([32]byte{5}).Read(data)
		sum := sha256.Sum256(data)
		out := s.Run(t.Context(), host.Command{Args: []string{"run", "--", "sha256sum"}, Stdin: bytes.NewReader(data)})
		if want := hex.EncodeToString(sum[:]) + "  -\n"; out.Code != 0 || out.Stdout != want {
			t.Errorf("exit %d: %q, want %q: %s", out.Code, out.Stdout, want, out.Stderr)
		}
		out = s.Run(t.Context(), host.Command{Args: []string{"run", "--", "cat"}, Stdin: bytes.NewReader(data[:20<<20])})
		if out.Code != 0 || !bytes.Equal([]byte(out.Stdout), data[:20<<20]) {
			t.Errorf("bug 74: 20 MB through cat: exit %d, %d bytes: %s", out.Code, len(out.Stdout), out.Stderr)
		}
	})
	t.Run("bug 25: an open pipe that nobody reads", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close() // open until the test ends
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		began := time.Now()
		out := s.Run(ctx, host.Command{Args: []string{"run", "--", "echo", "hi"}, Stdin: r})
		if out.Code != 0 || out.Stdout != "hi\n" {
			t.Errorf("exit %d after %s: %q %s", out.Code, time.Since(began), out.Stdout, out.Stderr)
		}
	})
	t.Run("no input is the end of file", func(t *testing.T) {
		if out := s.Dayfly(t.Context(), "run", "--", "cat"); out.Code != 0 || out.Stdout != "" {
			t.Errorf("exit %d: %q %s", out.Code, out.Stdout, out.Stderr)
		}
	})
}

func TestCtrlCDestroysTheSandbox(t *testing.T) {
	s, c := shared(t)
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			label := strings.ToLower(unix.SignalName(sig))
			cmd := s.Cmd(t.Context(), host.Command{Args: []string{"run", "--label", "sig=" + label, "--", "sh", "-c", "trap '' INT TERM; echo started; sleep 600"}})
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(stdout, make([]byte, len("started\n"))); err != nil {
				t.Fatal(err)
			}
			var id string
			for b, err := range c.List(t.Context(), sdk.ListOptions{Labels: map[string]string{"sig": label}}) {
				if err != nil {
					t.Fatal(err)
				}
				id = b.ID
			}
			alive(t, s, id)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			_ = cmd.Wait()
			if code, took := cmd.ProcessState.ExitCode(), time.Since(began); code != 128+int(sig) || took > 10*time.Second {
				t.Errorf("exit %d after %s", code, took)
			}
			if lives, err := s.Lives(id); lives || err != nil {
				t.Errorf("the sandbox lives (%v)", err)
			}
			if info := mustGet(t, c, id); info.EndReason != "requested" {
				t.Errorf("it ended as %q", info.EndReason)
			}
		})
	}
}

func TestBug72CpKeepsFoldersAsTheyAre(t *testing.T) {
	s, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	from := filepath.Join(t.TempDir(), "tree")
	for path, content := range map[string]string{
		"plain.txt": "text\n", "empty": "", "dir/deep/er/file": "x", " spaces and\ttabs ": "s", "ümläut-日本.txt": "u", "-dash": "d",
		"a+b%20#?&=;'\"$(x).txt": "odd", "new\nline": "n", "binary": string([]byte{0, 255, 13, 10, 254}), strings.Repeat("l", 255): "long", ".hidden": "h",
	} {
		path = filepath.Join(from, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []error{
		os.WriteFile(filepath.Join(from, "script"), []byte("#!/bin/sh\n"), 0o755), os.Chmod(filepath.Join(from, "empty"), 0o600),
		os.Mkdir(filepath.Join(from, "empty-dir"), 0o755), os.Symlink("plain.txt", filepath.Join(from, "link")),
		os.Symlink("dir/deep", filepath.Join(from, "dir-link")), os.Symlink("nowhere", filepath.Join(from, "dangling")),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	if out := s.Dayfly(t.Context(), "cp", from, b.ID+":work"); out.Code != 0 {
		t.Fatalf("cp in: exit %d: %s", out.Code, out.Stderr)
	}
	if got := sh(t, b, "cat work/plain.txt; readlink work/link work/dangling; stat -c '%a %U' work/script; cat work/dir-link/er/file"); got != "text\nplain.txt\nnowhere\n755 user\nx" {
		t.Errorf("inside it is %q", got)
	}
	back := filepath.Join(t.TempDir(), "back")
	if out := s.Dayfly(t.Context(), "cp", b.ID+":work", back); out.Code != 0 {
		t.Fatalf("cp out: exit %d: %s", out.Code, out.Stderr)
	}
	want, got := tree(t, from), tree(t, back)
	if !slices.Equal(got, want) {
		t.Errorf("came back as\n%swant\n%s", lines(got), lines(want))
	}
	single := filepath.Join(t.TempDir(), "single")
	if out := s.Dayfly(t.Context(), "cp", b.ID+":work/binary", single); out.Code != 0 {
		t.Fatalf("cp of one file: %s", out.Stderr)
	}
	if b, err := os.ReadFile(single); err != nil || !bytes.Equal(b, []byte{0, 255, 13, 10, 254}) {
		t.Errorf("one file came as %q (%v)", b, err)
	}
	if out := s.Dayfly(t.Context(), "cp", b.ID+":no/such", back); out.Code == 0 || !strings.Contains(out.Stderr, "no/such") {
		t.Errorf("cp of nothing: exit %d: %s", out.Code, out.Stderr)
	}
}

// tree describes every entry below dir: name, mode, content or target.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		content := ""
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			content, err = os.Readlink(path)
			out = append(out, fmt.Sprintf("%q -> %q", rel, content))
			return err
		case d.Type().IsRegular():
			b, readErr := os.ReadFile(path)
			content, err = string(b), readErr
		}
		out = append(out, fmt.Sprintf("%q %v %q", rel, info.Mode(), content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func TestEveryCommandSpeaksJSON(t *testing.T) {
	s, c := shared(t)
	run := func(args ...string) map[string]any {
		t.Helper()
		out := s.Dayfly(t.Context(), append(args, "-o", "json")...)
		var v any
		if out.Code != 0 || json.Unmarshal([]byte(out.Stdout), &v) != nil {
			t.Errorf("%v: exit %d: %q %s", args, out.Code, out.Stdout, out.Stderr)
		}
		m, _ := v.(map[string]any)
		return m
	}
	text := func(m map[string]any, name string) string {
		s, _ := m[name].(string)
		return s
	}
	id := text(run("create", "--label", "kind=json"), "id")
	second := text(run("create", "--label", "kind=json", "--name", "json-2"), "id")
	if id == "" || second == "" {
		t.Fatal("create gives no id")
	}
	if got := text(run("show", id), "id"); got != id {
		t.Errorf("show gives %q", got)
	}
	run("ls")
	run("ls", "--all", "--label", "kind=json")
	run("extend", id, "10m")
	run("images", "ls")
	run("keys", "ls")
	var process struct{ ID string }
	if out := s.Dayfly(t.Context(), "exec", "-o", "json", "-d", "--name", "sleeper", id, "--", "sleep", "1000"); json.Unmarshal([]byte(out.Stdout), &process) != nil {
		t.Errorf("exec -d: exit %d: %q %s", out.Code, out.Stdout, out.Stderr)
	}
	run("ps", id)
	run("kill", id, process.ID)
	run("wait", id, "sleeper")
	for _, args := range [][]string{{"mkdir", id, "d"}, {"ls", id}, {"stat", id, "d"}, {"chmod", id, "700", "d"}, {"mv", id, "d", "e"}, {"find", id}, {"rm", id, "e"}} {
		run(append([]string{"files"}, args...)...)
	}
	if key := text(run("keys", "create", "--account", "json"), "id"); key != "" {
		run("keys", "rm", key)
	} else {
		t.Error("keys create gives no id")
	}
	run("status")
	run("audit")
	run("version")
	run("up")
	for _, args := range [][]string{{"exec", "-o", "json", id, "--", "echo", "hi"}, {"run", "-o", "json", "--", "sh", "-c", "echo hi; exit 3"}, {"doctor", "-o", "json"}, {"cp", "-o", "json", id + ":/etc/hostname", filepath.Join(t.TempDir(), "x")}} {
		out := s.Dayfly(t.Context(), args...)
		for dec := json.NewDecoder(strings.NewReader(out.Stdout)); dec.More(); {
			var v any
			if err := dec.Decode(&v); err != nil {
				t.Errorf("%v: %v: %q", args, err, out.Stdout)
				break
			}
		}
	}
	out := s.Dayfly(t.Context(), "show", "sb00000000000000000000", "-o", "json")
	var failed struct {
		Error struct{ Type, Message string }
	}
	if err := json.Unmarshal([]byte(out.Stdout+out.Stderr), &failed); err != nil || out.Code == 0 || failed.Error.Message == "" {
		t.Errorf("an error: exit %d: %q %q (%v)", out.Code, out.Stdout, out.Stderr, err)
	}
	if out := s.Dayfly(t.Context(), "ls", "--label", "kind=json"); !strings.Contains(out.Stdout, id) || !strings.Contains(out.Stdout, second) {
		t.Errorf("ls --label: %s", out.Stdout)
	}
	if out := s.Dayfly(t.Context(), "rm", "--label", "kind=json", "-o", "json"); out.Code != 0 {
		t.Errorf("rm --label: exit %d: %s", out.Code, out.Stderr)
	}
	for _, gone := range []string{id, second} {
		if info := mustGet(t, c, gone); info.Status != sdk.StatusDeleted {
			t.Errorf("%s is %s after rm --label", gone, info.Status)
		}
	}
	if out := s.Dayfly(t.Context(), "rm", id); out.Code != 0 {
		t.Errorf("rm of what is gone already: exit %d: %s", out.Code, out.Stderr)
	}
}

func TestWithTheServerDownTheCommandsSayWhatToDo(t *testing.T) {
	t.Parallel()
	s, _ := own(t)
	if out := s.Dayfly(t.Context(), "down"); out.Code != 0 {
		t.Fatalf("down: %s", out.Stderr)
	}
	for _, args := range [][]string{{"ls"}, {"create"}, {"run", "--", "true"}, {"images", "ls"}, {"keys", "ls"}} {
		out := s.Run(t.Context(), host.Command{Args: args, Env: []string{"DAYFLY_URL=" + s.URL}})
		want := 1
		if args[0] == "run" {
			want = 125
		}
		if out.Code != want || !strings.Contains(out.Stderr, s.URL) || !strings.Contains(out.Stderr, "hint:") || strings.Contains(out.Stderr, "goroutine") {
			t.Errorf("%v: exit %d, want %d: %s", args, out.Code, want, out.Stderr)
		}
	}
	if out := s.Dayfly(t.Context(), "status"); out.Code != 1 || !strings.Contains(out.Stdout, "dayfly up") {
		t.Errorf("status: exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
	}
	if out := s.Dayfly(t.Context(), "down"); out.Code != 0 {
		t.Errorf("down twice: exit %d: %s", out.Code, out.Stderr)
	}
	if a := audit(t, s); a.code != 0 {
		t.Errorf("audit: %+v", a)
	}
}
