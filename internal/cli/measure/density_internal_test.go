package measure

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"

	sdk "dayfly.dev/dayfly/sdk/go"
)

func TestWhoseProcessItIs(t *testing.T) {
	ids := map[string]bool{"sbaaaaaaaaaaaaaaaaaaaa": true, "sbbbbbbbbbbbbbbbbbbbbb": true}
	for _, tt := range []struct{ name, cgroups, want string }{
		{"version 2", "0::/dayfly-x1y2z3/sbaaaaaaaaaaaaaaaaaaaa\n", "sbaaaaaaaaaaaaaaaaaaaa"},
		{"a group inside", "0::/dayfly-x1y2z3/sbbbbbbbbbbbbbbbbbbbbb/init/pr1\n", "sbbbbbbbbbbbbbbbbbbbbb"},
		{"version 1, in some trees only", "9:name=systemd:/\n4:memory:/dayfly-x1y2z3/sbaaaaaaaaaaaaaaaaaaaa\n0::/\n", "sbaaaaaaaaaaaaaaaaaaaa"},
		{"the warden", "0::/dayfly-x1y2z3/warden\n", ""},
		{"another's sandbox", "0::/dayfly-x1y2z3/sbcccccccccccccccccccc\n", ""},
		{"an id within a name", "0::/dayfly-x1y2z3/sbaaaaaaaaaaaaaaaaaaaa.old\n", ""},
		{"ended", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := groupOf(tt.cgroups, ids); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestAProcessIsWeighed(t *testing.T) {
	w, err := weighProcess("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	if w.pssKiB < 512 || w.privateKiB <= 0 || w.privateKiB > w.pssKiB || w.threads < 2 {
		t.Errorf("this process weighs %+v", w)
	}
	if _, err := weighProcess("/proc/0"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a process that there is not: %v", err)
	}
	if n := threadsFree(); n <= 0 {
		t.Errorf("%d threads are free", n)
	}
}

func TestWhatASlopeCanBe(t *testing.T) {
	for _, tt := range []struct {
		name       string
		slope, own float64
		want       bool
	}{
		{"pages and the kernel's part", 2.1, 1.4, true},
		{"a heavy one", 21, 19.5, true},
		{"pages that are not known", 2.1, 0, true},
		{"the memory grew", -7.2, 1.4, false},
		{"nothing", 0, 0, false},
		{"less than its own pages", 7.5, 19.5, false},
		{"another program took memory", 40, 1.4, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := plausible(tt.slope, tt.own); got != tt.want {
				t.Errorf("%v", got)
			}
		})
	}
}

// roomFor is a server that has room for so many sandboxes, and tells more with an error of code.
func roomFor(t *testing.T, n int, status int, code sdk.Code) *sdk.Client {
	var mu sync.Mutex
	known := map[string]bool{} // keys: a try again is no other create
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if key := r.Header.Get("Idempotency-Key"); len(known) < n || known[key] {
			known[key] = true
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"id":"sb%020d","status":"running","isolation":"linux"}`, len(known))
			return
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error":{"type":%q,"message":"there is no room"}}`, code)
	}))
	t.Cleanup(s.Close)
	client, err := sdk.New(sdk.Options{URL: s.URL, APIKey: "dfk_test"})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestIdleSandboxesEndWhereNoMoreFit(t *testing.T) {
	for _, tt := range []struct {
		name    string
		room    int
		status  int
		code    sdk.Code
		made    int
		refused bool
		fails   bool
	}{
		{"all fit", 100, 0, "", 40, false, false},
		{"the host is full", 21, http.StatusServiceUnavailable, sdk.CodeNoCapacity, 21, true, false},
		{"the account has all it may", 7, http.StatusConflict, sdk.CodeQuotaExceeded, 7, true, false},
		{"none fits", 0, http.StatusServiceUnavailable, sdk.CodeNoCapacity, 0, true, false},
		{"something else is wrong", 21, http.StatusInternalServerError, sdk.CodeInternal, 21, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := &crowd{run: &run{boxes: newBoxes(roomFor(t, tt.room, tt.status, tt.code))}, isolation: "linux"}
			err := c.grow(t.Context(), 40)
			if len(c.boxes) != tt.made || (c.refused != nil) != tt.refused || (err != nil) != tt.fails {
				t.Errorf("%d made, refused: %v, error: %v", len(c.boxes), c.refused, err)
			}
		})
	}
}
