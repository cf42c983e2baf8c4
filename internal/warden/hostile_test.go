package warden_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/warden"
)

// damage overwrites the lease file of id.
func (s *site) damage(id, how string) {
	s.t.Helper()
	path := filepath.Join(s.dir.Path(), id)
	good, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	temp := path + ".x"
	switch how {
	case "torn":
		err = os.WriteFile(temp, good[:len(good)/2], 0o600)
	case "empty":
		err = os.WriteFile(temp, nil, 0o600)
	case "garbage":
		err = os.WriteFile(temp, []byte("\x00\xff{not json"), 0o600)
	case "huge":
		err = os.WriteFile(temp, []byte(strings.Repeat("x", 1<<20)), 0o600)
	case "directory":
		if err = os.Remove(path); err == nil {
			err = os.Mkdir(temp, 0o700)
		}
	case "fifo":
		err = syscall.Mkfifo(temp, 0o600)
	case "link":
		err = os.Symlink("/dev/zero", temp)
	case "of another":
		err = os.WriteFile(temp, []byte(strings.ReplaceAll(string(good), id, dayfly.NewID(dayfly.PrefixSandbox))), 0o600)
	case "unknown version":
		err = os.WriteFile(temp, []byte(strings.Replace(string(good), `"version":1`, `"version":2`, 1)), 0o600)
	case "unknown field":
		err = os.WriteFile(temp, []byte(strings.Replace(string(good), `{"version"`, `{"x":1,"version"`, 1)), 0o600)
	case "foreign cgroup":
		err = os.WriteFile(temp, []byte(strings.ReplaceAll(string(good), "/dayfly-"+s.installation, "")), 0o600)
	case "trailing data":
		err = os.WriteFile(temp, append(good, "{}"...), 0o600)
	case "endless":
		var f map[string]any
		_ = json.Unmarshal(good, &f)
		f["deadline_ns"], f["ceiling_ns"] = int64(1)<<62, int64(1)<<62
		b, _ := json.Marshal(f)
		err = os.WriteFile(temp, b, 0o600)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

var damages = []string{"torn", "empty", "garbage", "huge", "directory", "fifo", "link", "of another", "unknown version",
	"unknown field", "foreign cgroup", "trailing data", "endless"}

func TestReadLeaseRefuses(t *testing.T) {
	s := newSite(t)
	for _, how := range damages {
		t.Run(how, func(t *testing.T) {
			id := dayfly.NewID(dayfly.PrefixSandbox)
			if err := s.guard.Write(id, dayfly.NewLease(s.clock.Now(), time.Hour, 0)); err != nil {
				t.Fatal(err)
			}
			s.damage(id, how)
			if _, err := s.dir.ReadLease(id); !errors.Is(err, warden.ErrUnreadable) || dayfly.ErrorCode(err) == dayfly.CodeNotFound {
				t.Errorf("ReadLease = %v, want unreadable", err)
			}
		})
	}
	if _, err := s.dir.ReadLease(dayfly.NewID(dayfly.PrefixSandbox)); dayfly.ErrorCode(err) != dayfly.CodeNotFound {
		t.Errorf("ReadLease of nothing = %v", err)
	}
}

// A lease that becomes unreadable stays in force as it was last known: no earlier end, no later one.
func TestDamagedLeaseStaysInForce(t *testing.T) {
	s := newSite(t)
	s.ensure()
	var soon, later []machine
	var deadline time.Duration
	for _, how := range damages {
		a, b := s.machine(1500*time.Millisecond), s.machine(time.Hour)
		lease, _ := s.guard.Read(a.id)
		deadline = max(deadline, lease.Deadline)
		soon, later = append(soon, a), append(later, b)
		_ = how
	}
	s.end(s.machine(100 * time.Millisecond).id) // by then the warden has read them all
	for i, how := range damages {
		s.damage(soon[i].id, how)
		s.damage(later[i].id, how)
	}
	for i, how := range damages {
		s.dies(soon[i])
		if late := clock.Boot() - deadline; late > lateMax {
			t.Errorf("%s: ended %v late", how, late)
		}
		if !s.alive(later[i]) {
			t.Errorf("%s: ended long before its time", how)
		}
	}
}

// A lease that never could be read gives its machine a bounded time; it is neither killed at once nor forgotten.
func TestNeverReadableLease(t *testing.T) {
	s := newSite(t)
	m := s.machine(200 * time.Millisecond)
	s.damage(m.id, "garbage")
	s.ensure()
	s.end(s.machine(300 * time.Millisecond).id)
	if !s.alive(m) {
		t.Error("a machine with an unreadable lease was killed at once")
	}
	// Repaired, it counts at once.
	if err := s.guard.Write(m.id, dayfly.NewLease(s.clock.Now(), 100*time.Millisecond, 0)); err != nil {
		t.Fatal(err)
	}
	s.dies(m)
}

func TestRemovedLeaseOfALivingMachine(t *testing.T) {
	s := newSite(t)
	s.ensure()
	m := s.machine(1200 * time.Millisecond)
	lease, _ := s.guard.Read(m.id)
	s.end(s.machine(100 * time.Millisecond).id)
	if err := os.Remove(filepath.Join(s.dir.Path(), m.id)); err != nil {
		t.Fatal(err)
	}
	if late := s.until(m, lease.Deadline); late < 0 || late > lateMax {
		t.Errorf("ended %v after its deadline", late)
	}
}

// Nothing can be written any more, not even a mark: the machine dies all the same, and an extend is not answered wrongly.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	data := t.TempDir()
	if err := syscall.Mount("tmpfs", data, "tmpfs", 0, "size=256k,nr_inodes=64"); err != nil {
		t.Skipf("cannot mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(data, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := newSiteAt(t, data)
	s.ensure()
	m := s.machine(time.Second)
	lease, _ := s.guard.Read(m.id)
	filled := false
	for i := range 100 {
		if err := os.WriteFile(filepath.Join(data, fmt.Sprint("x", i)), make([]byte, 64<<10), 0o600); errors.Is(err, syscall.ENOSPC) && i > 60 {
			filled = true
			break
		}
	}
	longer, _, _ := lease.Extend(s.clock.Now(), time.Hour)
	if err := s.guard.Renew(ctxFor(waitLong), m.id, longer); !filled || err == nil {
		t.Errorf("filled = %v, Renew = %v", filled, err)
	}
	if late := s.until(m, lease.Deadline); late < 0 || late > lateMax {
		t.Errorf("ended %v after its deadline", late)
	}
}

// After a reboot every lease of the boot before has ended.
func TestOtherBoot(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine(time.Hour)
	s.guard = s.newGuard("one", bootEnv+"=00000000-0000-0000-0000-000000000000")
	if err := s.guard.Ensure(ctxFor(2 * time.Second)); err == nil {
		t.Error("a warden that lives in another boot counts as alive")
	}
	s.dies(m)
}

func TestMarksOfADeadWarden(t *testing.T) {
	for _, tt := range []struct {
		name, mark string
		lives      bool
	}{
		{"had only looked", "", true},
		{"had begun to kill", "killing", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			m := s.machine(time.Hour)
			mark := filepath.Join(s.dir.Path(), m.id+".ending.warden")
			if err := os.WriteFile(mark, []byte(tt.mark), 0o600); err != nil {
				t.Fatal(err)
			}
			s.ensure()
			eventually(t, "the mark is resolved", func() bool { _, err := os.Lstat(mark); return os.IsNotExist(err) })
			if s.alive(m) != tt.lives {
				t.Errorf("alive = %v", s.alive(m))
			}
			lease, _ := s.guard.Read(m.id)
			longer, _, _ := lease.Extend(s.clock.Now(), time.Minute)
			if err := s.guard.Renew(ctxFor(waitLong), m.id, longer); (err == nil) != tt.lives {
				t.Errorf("Renew = %v", err)
			}
		})
	}
}

// With a shared mark the first enforcer to finish would let an extend through while the other still kills.
func TestRenewWaitsForEveryMark(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine(time.Hour)
	var marks []string
	for _, name := range []string{"warden", "server"} {
		mark := filepath.Join(s.dir.Path(), m.id+".ending."+name)
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		marks = append(marks, mark)
	}
	lease, _ := s.guard.Read(m.id)
	longer, _, _ := lease.Extend(s.clock.Now(), time.Minute)
	done := make(chan error, 1)
	go func() { done <- s.guard.Renew(ctxFor(waitLong), m.id, longer) }()
	eventually(t, "the new lease is in place", func() bool { l, _ := s.guard.Read(m.id); return l == longer })
	_ = os.Remove(marks[0])
	select {
	case err := <-done:
		t.Fatalf("Renew = %v with a mark still there", err)
	case <-time.After(100 * time.Millisecond):
	}
	_ = os.Remove(marks[1])
	if err := <-done; err != nil {
		t.Errorf("Renew = %v", err)
	}
	if err := os.WriteFile(marks[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.guard.Renew(ctxFor(waitLong), m.id, longer); dayfly.ErrorCode(err) != dayfly.CodeUnavailable {
		t.Errorf("Renew against a mark that stays = %v, want unavailable", err)
	}
}

func TestRenewNeverRevives(t *testing.T) {
	s := newSite(t)
	id := dayfly.NewID(dayfly.PrefixSandbox)
	if err := s.guard.Renew(ctxFor(waitLong), id, dayfly.NewLease(s.clock.Now(), time.Hour, 0)); dayfly.ErrorCode(err) != dayfly.CodeGone {
		t.Errorf("Renew of nothing = %v, want gone", err)
	}
	if ids, err := s.guard.List(); err != nil || len(ids) > 0 {
		t.Errorf("List = %v, %v", ids, err)
	}
	if names, _ := os.ReadDir(s.dir.Path()); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}

// The deadline passes before the machine's group exists; what is born afterwards must die too.
func TestBornAfterTheDeadline(t *testing.T) {
	s := newSite(t)
	s.ensure()
	id := dayfly.NewID(dayfly.PrefixSandbox)
	if err := s.guard.Write(id, dayfly.NewLease(s.clock.Now(), 100*time.Millisecond, 0)); err != nil {
		t.Fatal(err)
	}
	if e := s.end(id); e.Killed {
		t.Errorf("end = %+v", e)
	}
	g, err := s.host.Group(s.installation, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Create(dayfly.Limits{}); err != nil {
		t.Fatal(err)
	}
	m := machine{id: id, group: g, cmd: sleeper()}
	if err := g.StartCmd(m.cmd); err != nil {
		t.Fatal(err)
	}
	s.dies(m)
}

func FuzzLease(f *testing.F) {
	f.Add([]byte(`{"version":1,"id":"sbaaaaaaaaaaaaaaaaaaaa","installation":"abcdef","boot_id":"x","born_ns":1,"deadline_ns":2,"ceiling_ns":3,"cgroup":{"v2":"/sys/fs/cgroup/dayfly-abcdef/sbaaaaaaaaaaaaaaaaaaaa"}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := warden.DecodeLease("sbaaaaaaaaaaaaaaaaaaaa", b)
		if err != nil {
			return
		}
		if again, err := warden.EncodeLease(l); err != nil {
			t.Errorf("a lease that was read cannot be written: %v", err)
		} else if l2, err := warden.DecodeLease(l.ID, again); err != nil || l2.Lease != l.Lease {
			t.Errorf("written and read again: %+v, %v", l2, err)
		}
	})
}
