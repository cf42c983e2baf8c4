package drivertest

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// Times of the cases about pausing.
const (
	pauseLook  = 300 * time.Millisecond // for which a paused machine is watched
	pauseNoise = 50 * time.Millisecond  // of CPU time that may be booked late
	clockApart = time.Second            // between the clocks of host and machine
	pauses     = 200                    // of a machine that is paused often
)

// pauser is the machine's way to be paused, which every driver has. It is resumed at the end of the case, unless it has ended.
func pauser(t *testing.T, inst dayfly.Instance) dayfly.Pauser {
	t.Helper()
	p, ok := inst.(dayfly.Pauser)
	if !ok {
		t.Fatalf("%T is no dayfly.Pauser", inst)
	}
	return p
}

// pause pauses a machine, checks that it is, and gives what resumes it.
func pause(t *testing.T, inst dayfly.Instance) (resume func()) {
	t.Helper()
	p := pauser(t, inst)
	if err := p.Pause(soon(t)); err != nil {
		t.Fatalf("Pause: %v", err)
	}
	isPaused(t, p, true)
	return func() {
		t.Helper()
		if err := p.Resume(soon(t)); err != nil {
			t.Fatalf("Resume: %v", err)
		}
		isPaused(t, p, false)
	}
}

func isPaused(t *testing.T, p dayfly.Pauser, want bool) {
	t.Helper()
	if is, err := p.Paused(); err != nil || is != want {
		t.Fatalf("Paused = %t, %v, want %t", is, err, want)
	}
}

// pauseTwice pauses and resumes, each twice: the second changes nothing.
func pauseTwice(t *testing.T, s *suite) {
	m := s.start(t)
	p := pauser(t, m.Instance)
	isPaused(t, p, false)
	for range 3 {
		for range 2 {
			pause(t, m.Instance)
		}
		for range 2 {
			if err := p.Resume(soon(t)); err != nil {
				t.Fatal(err)
			}
			isPaused(t, p, false)
		}
		m.run(t, asUser, "true")
	}
}

// pausedUsesNothing pauses a machine that works as hard as it can.
func pausedUsesNothing(t *testing.T, s *suite) {
	m := s.start(t)
	m.background(t, asUser, "hold")
	busy, _, err := m.shell.Start(ctx(t), dayfly.ProcessSpec{
		ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{s.Inside, "burn", fmt.Sprint(caseWait.Milliseconds())}, Timeout: caseWait,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	cpu := func() time.Duration {
		t.Helper()
		u, err := m.Usage(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		return u.CPU
	}
	idle := cpu()
	eventually(t, "it works", func() bool { return cpu()-idle > pauseNoise })
	resume := pause(t, m.Instance)
	before := cpu()
	<-time.After(pauseLook)
	if used := cpu() - before; used > pauseNoise {
		t.Errorf("used %s of CPU in %s while paused", used, pauseLook)
	}
	resume()
	before = cpu()
	eventually(t, "it works again", func() bool { return cpu()-before > pauseNoise })
}

// endPaused ends a paused machine in each way in which one ends.
func endPaused(t *testing.T, s *suite) {
	for _, tt := range []struct {
		name string
		end  func(m *machine) error
	}{
		{"destroy", func(m *machine) error { return m.Destroy(ctx(t)) }},
		{"reclaim by another node", func(m *machine) error { return s.Open(t).Reclaim(ctx(t), m.ID()) }},
		{"kill of its first process", func(m *machine) error { return syscall.Kill(statePID(t, m.State()), syscall.SIGKILL) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := s.start(t)
			m.background(t, asUser, "hold")
			pause(t, m.Instance)
			if err := tt.end(m); err != nil {
				t.Fatal(err)
			}
			wait(t, m.Done())
			if err := m.Destroy(ctx(t)); err != nil {
				t.Fatal(err)
			}
			isPaused(t, pauser(t, m.Instance), false)
			if _, err := m.Dial(ctx(t)); dayfly.ErrorCode(err) != dayfly.CodeGone {
				t.Errorf("Dial = %v, want %s", err, dayfly.CodeGone)
			}
		})
	}
}

// endsAmidPause destroys a machine while it is being paused and resumed without end.
func endsAmidPause(t *testing.T, s *suite) {
	m := s.start(t)
	m.background(t, asUser, "hold")
	p := pauser(t, m.Instance)
	begun, left := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		for n := 0; ; n++ {
			_ = p.Pause(ctx(t)) // fails when it has ended
			_ = p.Resume(ctx(t))
			if n == 3 {
				close(begun)
			}
			select {
			case <-m.Done():
				return
			default:
			}
		}
	}()
	wait(t, begun)
	if err := m.Destroy(ctx(t)); err != nil {
		t.Fatal(err)
	}
	wait(t, m.Done())
	wait(t, left)
}

// recoverPaused takes a paused machine over as a node does that starts again, which finds it as it was.
func recoverPaused(t *testing.T, s *suite) {
	m := s.start(t)
	m.background(t, asUser, "hold")
	pause(t, m.Instance)
	inst, err := s.Open(t).Recover(ctx(t), m.ID(), bytes.Clone(m.State()))
	if err != nil {
		t.Fatal(err)
	}
	isPaused(t, pauser(t, inst), true)
	if _, err := inst.Usage(ctx(t)); err != nil {
		t.Error(err)
	}
	ids, err := s.Open(t).List(ctx(t))
	if err != nil || !strings.Contains(strings.Join(ids, " "), m.ID()) {
		t.Errorf("listed %v, %v", ids, err)
	}
	if err := pauser(t, inst).Resume(ctx(t)); err != nil {
		t.Fatal(err)
	}
	isPaused(t, pauser(t, m.Instance), false)
	if err := s.use(ctx(t), inst); err != nil {
		t.Error(err)
	}
	m.run(t, asUser, "true") // the old connection works too
	if err := inst.Destroy(ctx(t)); err != nil {
		t.Error(err)
	}
	wait(t, m.Done())
}

// wallClock looks at the clock right after a resume.
func wallClock(t *testing.T, s *suite) {
	g := s.guest(t)
	resume := pause(t, g.Instance)
	<-time.After(2 * clockApart)
	resume()
	earliest := time.Now()
	r, err := g.Run(soon(t), shell("date +%s%N"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(kept(r.Stdout)), 10, 64)
	if inside := time.Unix(0, ns); err != nil || inside.Before(earliest.Add(-clockApart)) || inside.After(time.Now().Add(clockApart)) {
		t.Errorf("the clock inside says %s at %s, %v", inside, earliest, err)
	}
	clock := "cut -d' ' -f1 /proc/uptime"
	before := kept(g.call(t, shell(clock)).Stdout)
	pause(t, g.Instance)()
	if after := kept(g.call(t, shell(clock)).Stdout); seconds(t, after) < seconds(t, before) {
		t.Errorf("the clock that only runs forward went from %s to %s", before, after)
	}
}

func seconds(t *testing.T, s string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// timeoutWhilePaused has a command's time run out while nothing can end it: that happens once the machine goes on.
func timeoutWhilePaused(t *testing.T, s *suite) {
	g := s.guest(t)
	n := nap()
	spec := shell("echo up; setsid " + n + " & " + nap())
	spec.Timeout = 2 * pauseLook
	stream, p := g.begin(t, spec)
	line(t, stream)
	resume := pause(t, g.Instance)
	<-time.After(3 * pauseLook)
	resume()
	r, err := g.Result(soon(t), p.ID)
	if err != nil || !r.Exit.TimedOut {
		t.Errorf("%+v, %v: want that it ran out of time", r.Exit, err)
	}
	if g.runs(t, n) {
		t.Error("a child outlived the timeout")
	}
}

// longAfterPause pauses for less than a command has left: it goes on as if nothing had happened.
func longAfterPause(t *testing.T, s *suite) {
	g := s.guest(t)
	spec := shell("echo up; sleep 1; echo done; exit 3")
	spec.Timeout = caseWait
	stream, p := g.begin(t, spec)
	line(t, stream)
	resume := pause(t, g.Instance)
	<-time.After(pauseLook)
	resume()
	if got := line(t, stream); got != "done\n" {
		t.Errorf("went on with %q", got)
	}
	if r, err := g.Result(soon(t), p.ID); err != nil || r.Exit.Code != 3 {
		t.Errorf("%+v, %v", r.Exit, err)
	}
}

// pauseOften pauses a machine again and again in the midst of its commands' beginnings and ends: whatever it was at goes on.
func pauseOften(t *testing.T, s *suite) {
	m := s.start(t)
	for range pauses {
		pause(t, m.Instance)()
		m.run(t, asUser, "true")
	}
}
