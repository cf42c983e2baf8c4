package load_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

const (
	rate      = 300 // creates a second
	poolMiB   = 1024
	answerMax = 10 * time.Second // for any create, however many others there are
	refuseMax = 2 * time.Second  // for a create on a box that is full
)

// answer is what a create was answered.
type answer struct {
	status int
	kind   string // of the error
	id     string
	retry  string // Retry-After
	took   time.Duration
}

func TestFarMoreCreatesThanFitAreRefusedAndHarmNothing(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "disk: {size_gb: %d}\nlog: {level: warn}\nsandbox: {sizes: {small: {vcpu: 1, memory_mb: 512, disk_mb: 256}}}\n", poolMiB>>10), 0o600); err != nil {
		t.Fatal(err)
	}
	base, _ := shared(t)
	s := host.StartFor(t, host.Options{Image: base, Flags: []string{"--config", config}})
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	before := usage(t, s.PID)
	filler := fill(t, s, c, 350<<20)
	count := length(300, 3000)

	t.Run("while it fills up", func(t *testing.T) {
		answers := storm(t, s, count, func(id string) error { // each takes what the next ones would need
			_, err := c.Sandbox(id).Exec(t.Context(), sdk.Command("head -c 8M /dev/urandom > big; sync"), sdk.ExecOptions{})
			return err
		})
		made := check(t, answers, answerMax)
		live, err := s.Machines()
		if err != nil || len(live) != made+1 {
			t.Errorf("%d were made, %d and the filler live (%v)", made, len(live)-1, err)
		}
		if made == 0 || made == count {
			t.Errorf("%d of %d were made", made, count)
		}
	})
	t.Run("while it is full", func(t *testing.T) {
		if made := check(t, storm(t, s, count, nil), refuseMax); made != 0 {
			t.Errorf("%d were made on a full box", made)
		}
	})
	if err := c.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
	if r, err := c.Ready(t.Context()); err != nil || !r.Ready {
		t.Errorf("afterwards: %+v (%v)", r, err)
	}
	if res, err := filler.Exec(t.Context(), sdk.Command("echo ok"), sdk.ExecOptions{}); err != nil || res.Stdout != "ok\n" {
		t.Errorf("a sandbox from before: %+v (%v)", res, err)
	}
	for b, err := range c.List(t.Context(), sdk.ListOptions{}) {
		if err == nil {
			err = b.Delete(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	nothingOf(t, s)
	if err := life(t.Context(), c, 1); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	nothingOf(t, s)
	before.files, before.threads = before.files+64, before.threads+32 // a fresh server has neither connections nor threads for many
	flat(t, "server", before, usage(t, s.PID))
}

// fill has one sandbox take the pool's room, bit by bit, until less than so many bytes are left.
func fill(t *testing.T, s *host.Server, c *sdk.Client, left int64) *sdk.Sandbox {
	t.Helper()
	const stepMiB, stepsMax = 32, 64
	b, err := c.Create(t.Context(), sdk.CreateOptions{DiskMB: poolMiB})
	if err != nil {
		t.Fatal(err)
	}
	for range stepsMax {
		var st unix.Statfs_t
		if err := unix.Statfs(filepath.Join(s.Data, "pool"), &st); err != nil {
			t.Skip("no btrfs pool: ", err)
		}
		if int64(st.Bavail)*st.Bsize < left {
			return b
		}
		if _, err := b.Exec(t.Context(), sdk.Command(fmt.Sprintf("head -c %dM /dev/urandom >> big; sync", stepMiB)), sdk.ExecOptions{Check: true}); err != nil {
			t.Fatal(err)
		}
	}
	t.Skip("the pool has more room than it should: is it a btrfs of its own?")
	return nil
}

// storm fires creates at the rate, whatever becomes of the earlier ones, and then does something with each that was made.
func storm(t *testing.T, s *host.Server, count int, then func(id string) error) []answer {
	t.Helper()
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: rate}}
	defer client.CloseIdleConnections()
	var g errgroup.Group
	var mu sync.Mutex
	var answers []answer
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for range count {
		<-tick.C
		g.Go(func() error {
			a, err := create(t.Context(), client, s.URL, key)
			if err != nil {
				return err
			}
			mu.Lock()
			answers = append(answers, a)
			mu.Unlock()
			if a.status == http.StatusCreated && then != nil {
				return then(a.id)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	return answers
}

// create asks for a sandbox once.
func create(ctx context.Context, client *http.Client, url, key string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/sandboxes", strings.NewReader(`{"timeout_seconds":600,"disk_mb":256}`))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	var m struct {
		ID    string
		Error struct{ Type string }
	}
	err = errors.Join(err, json.Unmarshal(b, &m))
	return answer{resp.StatusCode, m.Error.Type, m.ID, resp.Header.Get("Retry-After"), time.Since(began)}, err
}

// check looks at what a storm was answered and tells how many sandboxes were made.
func check(t *testing.T, answers []answer, most time.Duration) (made int) {
	t.Helper()
	var took []time.Duration
	for _, a := range answers {
		took = append(took, a.took.Round(time.Millisecond))
		refused := a.status == http.StatusServiceUnavailable && a.kind == "no_capacity" || a.status == http.StatusTooManyRequests
		switch {
		case a.status == http.StatusCreated:
			made++
		case !refused || a.retry == "":
			t.Errorf("answered %+v", a)
		}
	}
	if len(took) == 0 {
		t.Fatal("no answers")
	}
	slices.Sort(took)
	t.Logf("%d creates, %d a second: %d made, %d refused; answered in %s (p50), %s (p99), %s (max)", len(answers), rate, made, len(answers)-made,
		took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	if slowest := took[len(took)-1]; slowest > most {
		t.Errorf("an answer took %s, more than %s", slowest, most)
	}
	return made
}
