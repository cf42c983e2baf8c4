package seeds_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
	"dayfly.dev/dayfly/test/outside"
)

const (
	envShared     = "DAYFLY_SHARED" // where the published programs are
	sharedDefault = "../../../shared"
	python        = "/usr/bin/python3" // the system's, which has the packages that scripts/deps.sh installs
	harness       = "testdata/harness.py"
	programMax    = 4 * time.Minute
	leaseMax      = 90 * time.Second // of the server, so that a lease of the published length meets its ceiling
)

// common is the server and the outside of all programs.
var common struct {
	sync.Mutex
	server *host.Server
	world  *outside.World
	err    error
}

func TestMain(m *testing.M) {
	host.Parallel()
	code := m.Run()
	if s := common.server; s != nil {
		if err := s.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "take the server away:", err)
			code = 1
		}
	}
	if w := common.world; w != nil {
		if err := w.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "take the outside away:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// bed gives the server, the outside and a client.
func bed(t *testing.T) (*host.Server, *outside.World, *sdk.Client) {
	t.Helper()
	host.Need(t)
	if out, err := exec.Command(python, "-c", "import requests").CombinedOutput(); err != nil {
		t.Skipf("%s has no requests (Debian: python3-requests): %s", python, out)
	}
	if _, err := os.Stat(host.Wheels()); err != nil {
		t.Skipf("no Python packages to serve: %v (make wheels)", err)
	}
	common.Lock()
	defer common.Unlock()
	if common.server == nil && common.err == nil {
		common.server, common.err = host.Start(context.Background(), host.Options{Flags: []string{"--lease-max", leaseMax.String()}})
	}
	if common.world == nil && common.err == nil {
		common.world, common.err = outside.Start(context.Background(), outside.Options{Wheels: host.Wheels()})
	}
	if common.err != nil {
		t.Fatal(common.err)
	}
	c, err := common.server.Client()
	if err != nil {
		t.Fatal(err)
	}
	return common.server, common.world, c
}

// published is the path of a published program. Without the directory the test is skipped.
func published(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv(envShared)
	if dir == "" {
		dir = sharedDefault
	}
	path := filepath.Join(dir, "seeds", name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		t.Skipf("%s is not there; %s names the directory of the published programs", path, envShared)
	} else if err != nil {
		t.Fatal(err)
	}
	return path
}

// said is one line of what the harness says.
type said struct {
	Done     bool    `json:"done"`
	Report   *string `json:"report"`
	ExitCode *int    `json:"exit_code"`
	Pushes   int     `json:"pushes"`
	Extend   int     `json:"extend"`
	Clamped  bool    `json:"clamped"`
	Type     string  `json:"type"`
	Tail     string  `json:"tail"`
	Progress bool    `json:"progress"`
}

// settings are what the harness gives to a program.
type settings struct {
	API      string            `json:"api"`
	Given    map[string]string `json:"given"`
	SleepMax float64           `json:"sleep_max,omitempty"` // seconds; 0: time is Python's own
}

// run runs a program and gives everything that the harness said.
func run(t *testing.T, s *host.Server, program string, set settings) []said {
	t.Helper()
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	set.API = s.URL + "/v1"
	input, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), programMax)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, harness, program)
	cmd.Stdin, cmd.Env = bytes.NewReader(input), append(os.Environ(), "AAS_API_KEY="+key, "NO_PROXY=*")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s%s\nthe server's log: %s", program, err, out, stderr.String(), s.LogTail())
	}
	var all []said
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var line said
		if err := dec.Decode(&line); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s said %s: %v", program, out, err)
		}
		all = append(all, line)
	}
}

func TestThePublishedProgramsAreRunAsTheyAre(t *testing.T) {
	host.Need(t)
	const url = "http://127.0.0.1:1/v1"
	for name, lines := range map[string]int{"aas_program1.py": 1, "aas_program2.py": 0} {
		path := published(t, name)
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := exec.Command(python, harness, "--show", path, url).Output()
		if err != nil {
			t.Fatal(err)
		}
		assignment := regexp.MustCompile(`(?m)^API = .*$`)
		if n := len(assignment.FindAll(got, -1)); n != lines {
			t.Errorf("%s: %d lines assign API, want %d", name, n, lines)
		}
		blank := func(b []byte) []byte { return assignment.ReplaceAll(b, nil) }
		if !bytes.Equal(blank(got), blank(want)) || lines == 0 && !bytes.Equal(got, want) {
			t.Errorf("%s: the text that is run differs from the published one in more than API:\n%s", name, got)
		}
	}
}

func TestTheJob(t *testing.T) {
	for _, tt := range []struct {
		name    string
		program func(*testing.T) string
		given   func(w *outside.World, upload string) map[string]string
	}{
		{"published", func(t *testing.T) string { return published(t, "aas_program1.py") }, func(w *outside.World, upload string) map[string]string {
			return map[string]string{"job_id": upload, "short_lived_clone_url": w.CloneURL(), "presigned_put_url": w.UploadURL(upload)}
		}},
		{"our own", func(*testing.T) string { return "testdata/job.py" }, func(w *outside.World, upload string) map[string]string {
			return map[string]string{"job_id": upload, "clone_url": w.CloneURL(), "upload_url": w.UploadURL(upload)}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			program := tt.program(t)
			_, w, _ := bed(t)
			s := longLeases(t)
			upload := strings.ReplaceAll(tt.name, " ", "-")
			all := run(t, s, program, settings{Given: tt.given(w, upload)})
			last := all[len(all)-1]
			if !last.Done || last.ExitCode == nil || *last.ExitCode != 0 || last.Report == nil || !strings.Contains(*last.Report, "5 passed") {
				t.Errorf("it ended with %+v", last)
			}
			artifacts(t, w.Uploads.Get(upload))
			if live, err := s.Machines(); err != nil || len(live) != 0 {
				t.Errorf("machines are left: %v (%v)", live, err)
			}
			c, err := s.Client()
			if err != nil {
				t.Fatal(err)
			}
			ended := 0
			for b, err := range c.List(t.Context(), sdk.ListOptions{IncludeEnded: true}) {
				if err != nil || b.Info().EndReason != "requested" {
					t.Errorf("%s ended as %q (%v)", b.ID, b.Info().EndReason, err)
				}
				ended++
			}
			if ended != 1 {
				t.Errorf("it made %d sandboxes", ended)
			}
		})
	}
}

// longLeases is a server without a lowered ceiling: the job asks for 20 minutes.
func longLeases(t *testing.T) *host.Server {
	t.Helper()
	return host.StartFor(t, host.Options{Image: common.server})
}

// artifacts fails the test unless the upload is the repository's folder, byte for byte, with the report of the tests.
func artifacts(t *testing.T, b []byte) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("what was uploaded (%d bytes): %v", len(b), err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("what was uploaded: %v", err)
		}
		if h.Typeflag == tar.TypeReg {
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			files[h.Name] = string(content)
		}
	}
	readme, err := os.ReadFile("../outside/shop/artifacts/README")
	if err != nil {
		t.Fatal(err)
	}
	if files["artifacts/README"] != string(readme) {
		t.Errorf("README came as %q", files["artifacts/README"])
	}
	report := files["artifacts/report.xml"]
	if !strings.Contains(report, `tests="5"`) || !strings.Contains(report, `failures="0"`) || !strings.HasSuffix(strings.TrimSpace(report), "</testsuites>") {
		t.Errorf("the report came as %q", report)
	}
	if len(files) != 2 {
		t.Errorf("%d files came", len(files))
	}
}

func TestTheLongJob(t *testing.T) {
	for _, tt := range []struct {
		name     string
		program  func(*testing.T) string
		lease    time.Duration
		builds   int     // seconds of progress
		sleepMax float64 // of the program's clock; 0: it sleeps its 60 s
		extends  int     // at least
		clamped  bool    // the first one meets the ceiling
		stops    bool    // it looks often enough to see that progress stopped
		life     time.Duration
	}{
		{"published", func(t *testing.T) string { return published(t, "aas_program2.py") }, 30 * time.Second, 20, 0, 1, true, false, leaseMax},
		{"published, with shorter sleeps", func(t *testing.T) string { return published(t, "aas_program2.py") }, 30 * time.Second, 12, 5, 2, true, true, leaseMax},
		{"our own", func(*testing.T) string { return "testdata/build.py" }, 8 * time.Second, 6, 0, 2, false, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			program := tt.program(t)
			s, _, c := bed(t)
			b, err := c.Create(t.Context(), sdk.CreateOptions{Timeout: tt.lease})
			if err != nil {
				t.Fatal(err)
			}
			build := fmt.Sprintf("nohup sh -c 'for i in $(seq %d); do echo step $i >> build.log; sleep 1; done; sleep 1000' >/dev/null 2>&1 & until test -s build.log; do sleep 0.01; done", tt.builds)
			if _, err := b.Exec(t.Context(), sdk.Command(build), sdk.ExecOptions{Check: true}); err != nil {
				t.Fatal(err)
			}
			all := run(t, s, program, settings{Given: map[string]string{"sid": b.ID}, SleepMax: tt.sleepMax})
			last := all[len(all)-1]
			extends, stopped := 0, false
			for _, line := range all {
				if line.Tail != "" && !line.Progress {
					stopped = true
				}
				if line.Extend == 0 {
					continue
				}
				extends++
				switch {
				case tt.clamped && extends == 1 && (line.Extend != 200 || !line.Clamped):
					t.Errorf("the first extend: %+v", line)
				case tt.clamped && extends > 1 && (line.Extend != 409 || line.Type != "lease_ceiling"):
					t.Errorf("extend %d, at the ceiling: %+v", extends, line)
				case !tt.clamped && line.Extend != 200:
					t.Errorf("extend %d: %+v", extends, line)
				}
			}
			if !last.Done || extends < tt.extends || last.Pushes != extends || tt.stops && !stopped {
				t.Errorf("%d extends, %d pushes, progress stopped: %v, last %+v", extends, last.Pushes, stopped, last)
			}
			info, err := b.Refresh(t.Context())
			if err != nil || info.Status != sdk.StatusDeleted || info.EndReason != "lease_expired" || info.EndedAt == nil {
				t.Fatalf("it ended as %s, %s (%v)", info.Status, info.EndReason, err)
			}
			life := info.EndedAt.Sub(*info.CreatedAt)
			want := tt.life
			if want == 0 {
				want = tt.lease + time.Duration(extends)*5*time.Second
			}
			t.Logf("%d extends; it lived %s of %s", extends, life, want)
			if late := life - want; late < -5*time.Millisecond || late > time.Second {
				t.Errorf("it lived %s, its lease was %s", life, want)
			}
		})
	}
}
