package warden_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/reserve"
	"dayfly.dev/dayfly/internal/warden"
)

// serverLife is the lease of the machine that the server process makes.
const serverLife = 1500 * time.Millisecond

// runServer makes a warden and one machine, says its id, and then does nothing more.
func runServer(arg string) int {
	data, installation, _ := strings.Cut(arg, ":")
	err := func() error {
		if _, err := reserve.Lock(filepath.Join(data, "server.lock")); err != nil {
			return err
		}
		c, err := clock.NewHost()
		if err != nil {
			return err
		}
		h, err := cgroup.Detect("/")
		if err != nil {
			return err
		}
		g, err := warden.NewGuard(warden.GuardOptions{
			DataDir: data, Installation: installation, Host: h, Exe: must(os.Executable()), Build: "one",
			Env: []string{roleEnv + "=one"}, Clock: c, Log: discard(),
		})
		if err != nil {
			return err
		}
		if err := g.Ensure(ctxFor(waitLong)); err != nil {
			return err
		}
		id := dayfly.NewID(dayfly.PrefixSandbox)
		if err := g.Write(id, dayfly.NewLease(c.Now(), serverLife, 0)); err != nil {
			return err
		}
		group, err := h.Group(installation, id)
		if err != nil {
			return err
		}
		if err := group.Create(dayfly.Limits{}); err != nil {
			return err
		}
		if err := group.StartCmd(sleeper()); err != nil {
			return err
		}
		fmt.Println(id)
		select {}
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// With the server killed, or stopped for good, its machines still die at their deadline.
func TestServerDeadOrStopped(t *testing.T) {
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
	}{
		{"killed", syscall.SIGKILL},
		{"stopped", syscall.SIGSTOP},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.unlock() // the other process is the server
			server := exec.Command(must(os.Executable()))
			server.Env = append(os.Environ(), serverEnv+"="+s.data+":"+s.installation)
			server.Stderr = os.Stderr
			out, err := server.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatalf("the server says nothing: %v", err)
			}
			id := strings.TrimSpace(line)
			lease, err := s.guard.Read(id)
			if err != nil {
				t.Fatal(err)
			}
			if err := server.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			e := s.end(id)
			if late := e.Boot - lease.Deadline; e.Cause != warden.CauseLeaseExpired || !e.Killed || late < 0 || late > lateMax {
				t.Errorf("end = %+v, %v after the deadline", e, late)
			}
		})
	}
}

func TestWatchBringsTheWardenBack(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.guard.Watch(ctx, func(ctx context.Context) {
			if err := s.guard.Ensure(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("Ensure: %v", err)
			}
		})
	}()
	last := 0
	for _, signal := range []syscall.Signal{0, syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGKILL} {
		if signal != 0 {
			_ = syscall.Kill(last, signal)
		}
		eventually(t, "another warden is there", func() bool {
			pid := s.wardenPID()
			if pid == 0 || pid == last || s.guard.Alive() != nil {
				return false
			}
			last = pid
			return true
		})
	}
	cancel()
	<-done
}

// BenchmarkLateness: 500 machines whose deadlines fall into ten seconds; how late each end is, from its record.
func BenchmarkLateness(b *testing.B) {
	const machines, spread = 500, 10 * time.Second
	for b.Loop() {
		s := newSite(b)
		s.ensure()
		lead := 6 * time.Second // to make them all
		deadlines := map[string]time.Duration{}
		for i := range machines {
			at := lead + spread*time.Duration(i)/machines
			m := s.machine(at)
			lease, err := s.guard.Read(m.id)
			if err != nil {
				b.Fatal(err)
			}
			deadlines[m.id] = lease.Deadline
			lead -= clock.Boot() - lease.Born // the next one is born later
		}
		<-time.After(lead + spread)
		var late []time.Duration
		for id, at := range deadlines {
			late = append(late, s.end(id).Boot-at)
		}
		report(b, late)
	}
}
