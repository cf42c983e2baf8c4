package measure

import (
	"errors"
	"os"
	"testing"
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
