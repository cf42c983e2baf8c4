package load_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// full tells whether the tests run at full length.
func full() bool { return os.Getenv("DAYFLY_LOAD") == "full" }

// length is how often to do something: short in every run, or at full length. A machine of gVisor's costs as much as several of
// linux's, and leaves of server and warden what every machine leaves: a short run has fewer of them.
func length(short, long int) int {
	switch {
	case full():
		return long
	case os.Getenv(host.EnvIsolation) == "linux":
		return short
	}
	return short * 2 / 5
}

// use is what a process has of the host's.
type use struct {
	residentKiB, files, threads int
}

func (u use) String() string {
	return fmt.Sprintf("%.1f MiB, %d descriptors, %d threads", float64(u.residentKiB)/1024, u.files, u.threads)
}

// goroutines asks the server how many it has.
func goroutines(t *testing.T, s *host.Server) int {
	t.Helper()
	resp, err := http.Get(s.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), "\ngo_goroutines ")
	n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(after, "\n", 2)[0]))
	if err != nil {
		t.Fatalf("the server does not tell: %v", err)
	}
	return n
}

// usage reads what a process has. Of memory it counts what is its own: pages of its program come and go.
func usage(t *testing.T, pid int) use {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d", pid)
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		t.Fatal(err)
	}
	var u use
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.Atoi(f[1])
		switch f[0] {
		case "RssAnon:":
			u.residentKiB = n
		case "Threads:":
			u.threads = n
		}
	}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	u.files = len(fds)
	return u
}

// Bounds of what a process may have more than after its warm-up.
const (
	growthKiB     = 24 << 10 // the runtime's own ups and downs
	growthFiles   = 16
	growthThreads = 12
	growthRoutine = 20 // of them some serve idle connections
)

// flat fails the test if a process has much more than it had.
func flat(t *testing.T, who string, before, after use) {
	t.Helper()
	t.Logf("%s: %s after the warm-up, %s at the end", who, before, after)
	if after.residentKiB > before.residentKiB+growthKiB || after.files > before.files+growthFiles || after.threads > before.threads+growthThreads {
		t.Errorf("%s has grown: %s, then %s", who, before, after)
	}
}

// nothingOf fails the test unless no sandbox has left anything soon.
func nothingOf(t *testing.T, s *host.Server) {
	t.Helper()
	const reclaimMax = 10 * time.Second
	deadline := time.Now().Add(reclaimMax)
	for tick := time.Tick(200 * time.Millisecond); ; <-tick {
		left := sandboxThings(t, s)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d objects are left: %.2000s", len(left), strings.Join(left, "\n"))
			return
		}
	}
}

// sandboxThings lists what there is of the installation's sandboxes: what audit knows, control groups, and files.
func sandboxThings(t *testing.T, s *host.Server) []string {
	t.Helper()
	out := s.Dayfly(context.WithoutCancel(t.Context()), "audit", "-o", "json")
	var a struct {
		Objects []struct{ Kind, Name, Owner, State string }
	}
	if err := json.Unmarshal([]byte(out.Stdout), &a); err != nil {
		t.Fatalf("audit: exit %d: %s%s", out.Code, out.Stdout, out.Stderr)
	}
	var left []string
	for _, o := range a.Objects {
		if strings.HasPrefix(o.Owner, "sb") || o.State == "unaccounted" || o.State == "reclaiming" {
			left = append(left, o.State+" "+o.Kind+" "+o.Name+" "+o.Owner)
		}
	}
	groups, err := s.Machines()
	if err != nil {
		t.Fatal(err)
	}
	left = append(left, groups...)
	for _, dir := range []string{filepath.Join(s.Data, "leases"), filepath.Join(s.Data, "state"), filepath.Join(s.Data, "pool", "*"), "/run/dayfly/" + s.Installation} {
		files, _ := filepath.Glob(filepath.Join(dir, "sb*"))
		left = append(left, files...)
	}
	return left
}

// common is the server of the tests that leave it as it was; others link its image.
var common struct {
	sync.Mutex
	server *host.Server
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if s := common.server; s != nil {
		if err := s.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "take the server away:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// shared gives the common server and a client of its first account.
func shared(t *testing.T) (*host.Server, *sdk.Client) {
	t.Helper()
	host.Need(t)
	common.Lock()
	defer common.Unlock()
	if common.server == nil && common.err == nil {
		common.server, common.err = host.Start(context.Background(), host.Options{})
	}
	if common.err != nil {
		t.Fatalf("start a server: %v", common.err)
	}
	c, err := common.server.Client()
	if err != nil {
		t.Fatal(err)
	}
	return common.server, c
}
