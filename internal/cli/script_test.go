package cli_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// script runs a file of testdata. Each line is one of
//
//	dayfly WORD…        run the command line; words may be in '…', $NAME is replaced
//	stdin TEXT          what the next dayfly reads
//	env NAME=VALUE      for all that follow
//	file PATH TEXT      make a file in the script's folder, with its parents
//	exit N              the last exit code; without it a code other than 0 fails the script
//	stdout|stderr RE    the last output matches, on some line; !stdout RE and !stderr RE: it does not
//	golden FILE         the last stdout is testdata/golden/FILE, but for what changes with time
//	capture NAME RE     keep the first group of a match in stdout
//
// \n in a text is a line's end.
type script struct {
	t        *testing.T
	home     string
	vars     map[string]string
	env      []string
	stdin    string
	last     *command
	code     int
	expected bool // the exit code was looked at
	line     int
}

// TestScripts runs testdata/local against a server of the test.
func TestScripts(t *testing.T) {
	each(t, "local", func(t *testing.T, file string) {
		s := newServer(t)
		runScript(t, file, map[string]string{"URL": s.URL, "KEY": testKey})
	})
}

// TestServerScripts runs testdata/server against the real server that DAYFLY_URL names, with DAYFLY_API_KEY or the key in
// DAYFLY_DATA.
func TestServerScripts(t *testing.T) {
	url := os.Getenv("DAYFLY_URL")
	if url == "" {
		t.Skip("DAYFLY_URL names no server")
	}
	key := os.Getenv("DAYFLY_API_KEY")
	if key == "" {
		b, err := os.ReadFile(filepath.Join(os.Getenv("DAYFLY_DATA"), "admin.key"))
		if err != nil {
			t.Skip("neither DAYFLY_API_KEY nor DAYFLY_DATA gives a key")
		}
		key = strings.TrimSpace(string(b))
	}
	each(t, "server", func(t *testing.T, file string) {
		runScript(t, file, map[string]string{"URL": url, "KEY": key, "RUN": strconv.Itoa(os.Getpid())})
	})
}

func each(t *testing.T, dir string, run func(*testing.T, string)) {
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts: ", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			t.Parallel()
			run(t, f)
		})
	}
}

func runScript(t *testing.T, file string, vars map[string]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, home: t.TempDir(), vars: vars, env: []string{"DAYFLY_URL=" + vars["URL"], "DAYFLY_API_KEY=" + vars["KEY"]}}
	vars["HOME"] = s.home
	for i, line := range strings.Split(string(text), "\n") {
		s.line = i + 1
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			s.step(line)
		}
	}
	s.settled()
}

func (s *script) step(line string) {
	verb, rest, _ := strings.Cut(line, " ")
	rest = os.Expand(rest, func(name string) string {
		if v, ok := s.vars[name]; ok {
			return v
		}
		return "$" + name
	})
	text := strings.ReplaceAll(rest, `\n`, "\n")
	switch verb {
	case "dayfly":
		s.settled()
		s.dayfly(s.words(rest))
	case "stdin":
		s.stdin = text
	case "env":
		s.env = append(s.env, rest)
	case "file":
		name, content, _ := strings.Cut(text, " ")
		name = filepath.Join(s.home, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			s.t.Fatal(err)
		}
	case "exit":
		s.expected = true
		if strconv.Itoa(s.code) != rest {
			s.failf("exit %d, want %s", s.code, rest)
		}
	case "stdout", "stderr", "!stdout", "!stderr":
		out := s.last.stdout.String()
		if strings.HasSuffix(verb, "stderr") {
			out = s.last.stderr.String()
		}
		if regexp.MustCompile("(?m)"+rest).MatchString(out) == strings.HasPrefix(verb, "!") {
			s.failf("%s %s", verb, rest)
		}
	case "golden":
		s.golden(rest)
	case "capture":
		name, re, _ := strings.Cut(rest, " ")
		m := regexp.MustCompile("(?m)" + re).FindStringSubmatch(s.last.stdout.String())
		if len(m) < 2 {
			s.failf("nothing to capture as %s", name)
		}
		s.vars[name] = m[1]
	default:
		s.t.Fatalf("line %d: unknown verb %q", s.line, verb)
	}
}

func (s *script) failf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("line %d: %s\nexit %d\nstdout: %s\nstderr: %s", s.line, fmt.Sprintf(format, args...), s.code, &s.last.stdout, &s.last.stderr)
}

// settled fails for an exit code that nobody expected.
func (s *script) settled() {
	if s.last != nil && !s.expected && s.code != 0 {
		s.failf("before this line: the command failed")
	}
}

func (s *script) dayfly(words []string) {
	ctx, cancel := context.WithTimeout(s.t.Context(), wait)
	defer cancel()
	s.last = newCommand(s.t, ctx, s.home, s.env, words...)
	s.code = s.last.run(s.t, strings.NewReader(s.stdin))
	s.stdin, s.expected = "", false
	for _, out := range []string{s.last.stdout.String(), s.last.stderr.String()} {
		if strings.Contains(out, s.vars["KEY"]) {
			s.failf("the output shows the key")
		}
		if strings.Contains(out, "\x1b") {
			s.failf("the output has terminal codes, and is no terminal")
		}
	}
}

// words splits like a shell that knows '…' alone.
func (s *script) words(line string) []string {
	var words []string
	for _, m := range regexp.MustCompile(`(?:[^\s']|'[^']*')+`).FindAllString(line, -1) {
		words = append(words, strings.ReplaceAll(m, "'", ""))
	}
	return words
}

var changing = regexp.MustCompile(`"(expires_at|go|platform|remaining_ms|pid|waited_ms|stdout_bytes|stderr_bytes)": ("[^"]*"|[0-9]+)`)

// golden compares with a file that documents a command's JSON. DAYFLY_UPDATE=1 writes it anew.
func (s *script) golden(name string) {
	path := filepath.Join("testdata", "golden", name)
	got := changing.ReplaceAllString(s.last.stdout.String(), `"$1": "changes"`)
	if os.Getenv("DAYFLY_UPDATE") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	if got != string(want) {
		s.failf("stdout is not %s:\n%s", path, want)
	}
}
