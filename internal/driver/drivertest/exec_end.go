package drivertest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func timeoutEndsAll(t *testing.T, s *suite) {
	g := s.guest(t)
	for _, tt := range []struct{ name, command string }{
		{"a child that ignores TERM", `(trap "" TERM; exec %s) & echo out; %s`},
		{"a session of its own", `setsid sh -c 'trap "" TERM; %s; :' & echo out; %s`},
		{"forked twice", `(setsid %s &); echo out; %s`},
		{"stopped", `%s & kill -STOP $!; echo out; %s`},
		{"stops itself", `%s & echo out; kill -STOP $$; %s`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := nap(), nap()
			spec := shell(fmt.Sprintf(tt.command, a, b))
			spec.Timeout = 500 * time.Millisecond
			r, err := g.Run(soon(t), spec, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Exit.TimedOut || kept(r.Stdout) != "out\n" {
				t.Errorf("%+v, stdout %q", r.Exit, kept(r.Stdout))
			}
			if g.runs(t, a) || g.runs(t, b) {
				t.Error("part of it lives")
			}
		})
	}
}

func timeoutIsTheEnd(t *testing.T, s *suite) {
	g := s.guest(t)
	n := nap()
	spec := shell("sleep 2; touch late; " + n)
	spec.Timeout = 500 * time.Millisecond
	r, err := g.Run(soon(t), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Exit.TimedOut || r.Exit.Code == 0 || r.Exit.Duration < spec.Timeout {
		t.Errorf("%+v", r.Exit)
	}
	g.sh(t, "sleep 2.2; ! test -e late")
	if g.runs(t, n) {
		t.Error("it went on")
	}
}

func backgroundChild(t *testing.T, s *suite) {
	g := s.guest(t)
	for _, tt := range []struct{ name, command string }{
		{"background", "%s & echo ok"},
		{"nohup", "nohup %s & echo ok"},
		{"both outputs", "%s 2>&1 & echo ok; echo ok >&2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := nap()
			defer g.endNap(t, n)
			r, err := g.Run(soon(t), shell(fmt.Sprintf(tt.command, n)), nil)
			if err != nil || kept(r.Stdout) != "ok\n" || r.Exit.Code != 0 {
				t.Errorf("%+v, %q, %v", r.Exit, kept(r.Stdout), err)
			}
			eventually(t, "the background process, which begins on its own, runs", func() bool { return g.runs(t, n) })
		})
	}
}

// waitersHear ends a machine under everyone who waits for something of it.
func waitersHear(t *testing.T, s *suite) {
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, g *guest)
	}{
		{"destroyed", func(t *testing.T, g *guest) {
			if err := g.Destroy(ctx(t)); err != nil {
				t.Error(err)
			}
		}},
		{"its first process killed", func(t *testing.T, g *guest) {
			if err := syscall.Kill(statePID(t, g.State()), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := s.guest(t)
			g.sh(t, "head -c 16777216 /dev/zero >big; mkfifo pipe")
			_, p := g.begin(t, shell("echo up; "+nap()))
			never, hold := io.Pipe()
			defer hold.Close()
			waits := []struct {
				name string
				do   func(began func()) error
			}{
				{"an exec", func(began func()) error { began(); _, err := g.Run(ctx(t), shell(nap()), nil); return err }},
				{"a stream", func(began func()) error {
					stream, err := g.Output(ctx(t), p.ID, dayfly.Offsets{}, true /* follow */)
					for began(); err == nil; {
						_, err = stream.Next()
					}
					return err
				}},
				{"a wait", func(began func()) error { began(); _, err := g.Result(ctx(t), p.ID); return err }},
				{"a terminal", func(began func()) error {
					out, _, err := g.Start(ctx(t), onTerminal(nap()), nil)
					for began(); err == nil; {
						_, err = out.Next()
					}
					return err
				}},
				{"a watch", func(began func()) error {
					w, err := g.Watch(ctx(t), ".", true /* recursive */)
					for began(); err == nil; {
						_, err = w.Next()
					}
					return err
				}},
				{"a port", func(began func()) error { began(); return g.AwaitPort(ctx(t), 1) }},
				{"an upload", func(began func()) error { began(); _, err := g.Write(ctx(t), "up", nil, never); return err }},
				{"a download", func(began func()) error {
					_, r, err := g.Read(ctx(t), "big", dayfly.FileRange{Length: -1})
					began()
					if err != nil {
						return err
					}
					defer r.Close()
					<-g.Done()
					_, err = io.Copy(io.Discard, r)
					return err
				}},
			}
			var begun sync.WaitGroup
			ends := make([]chan error, len(waits))
			for i, w := range waits {
				ends[i] = make(chan error, 1)
				begun.Add(1)
				go func() { ends[i] <- w.do(begun.Done) }()
			}
			begun.Wait()
			tt.end(t, g)
			wait(t, g.Done())
			for i, w := range waits {
				select {
				case err := <-ends[i]:
					lost(t, w.name, err)
				case <-time.After(slowWait):
					t.Errorf("%s still waits", w.name)
				}
			}
		})
	}
}

func memoryExhaustion(t *testing.T, s *suite) {
	if !s.Isolated {
		t.Skip("this driver has no memory limit")
	}
	ends := s.driver.Probe(ctx(t)).OOM
	g := s.guest(t, func(spec *dayfly.InstanceSpec) { spec.Limits.MemoryBytes = 256 << 20 })
	for _, tt := range []struct{ name, command string }{
		{"one process", s.Inside + " alloc 4096"},
		{"many workers", "for i in $(seq 16); do " + s.Inside + " alloc 64 & done; wait -n; code=$?; kill -KILL $(jobs -p); exit $code"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := shell(tt.command)
			spec.Timeout = slowWait
			r, err := g.Run(ctx(t), spec, nil)
			if err != nil && ends == dayfly.OOMEndsSandbox { // what the user-space kernel had itself was the most
				wait(t, g.Done())
				if !g.Instance.(interface{ OutOfMemory() bool }).OutOfMemory() {
					t.Error("the machine does not say that memory was its end")
				}
				t.Skip("it ended the machine, as this driver may")
			}
			if err != nil || r.Exit.Code == 0 || !r.Exit.OOMKilled && ends == dayfly.OOMEndsCommand {
				t.Errorf("%+v, %v: want it killed for lack of memory", r.Exit, err)
			}
			if got := g.sh(t, "echo ok"); got != "ok\n" {
				t.Errorf("afterwards: %q", got)
			}
		})
	}
}

// independence: twenty commands that each wait for the other nineteen, beside one that never ends; then two hundred at once.
func independence(t *testing.T, s *suite) {
	g := s.guest(t)
	const count = 20
	n := nap()
	defer g.endNap(t, n)
	g.begin(t, shell(n))
	g.sh(t, "mkdir here")
	var all sync.WaitGroup
	errs := make([]error, count)
	for i := range count {
		all.Go(func() {
			spec := shell(fmt.Sprintf("touch here/%d; while [ $(ls here | wc -l) -lt %d ]; do sleep 0.05; done", i, count))
			r, err := g.Run(ctx(t), spec, nil)
			if err == nil && r.Exit.Code != 0 {
				err = fmt.Errorf("%+v: %s", r.Exit, kept(r.Stderr))
			}
			errs[i] = err
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	for range 200 {
		all.Go(func() {
			if r, err := g.Run(ctx(t), argv("true"), nil); err != nil || r.Exit.Code != 0 {
				t.Errorf("one of 200: %+v, %v", r.Exit, err)
			}
		})
	}
	all.Wait()
}

func killTree(t *testing.T, s *suite) {
	g := s.guest(t)
	a, b := nap(), nap()
	stream, p := g.begin(t, shell(fmt.Sprintf("%s listen 0 & sleep 0; (%s & setsid %s & wait) & wait", s.Inside, a, b)))
	port := strings.TrimSpace(line(t, stream))
	eventually(t, "the children run", func() bool { return g.runs(t, a) && g.runs(t, b) })
	for range 2 { // killing twice is harmless
		if err := g.Signal(ctx(t), p.ID, "KILL", true /* the whole tree */); err != nil {
			t.Fatal(err)
		}
		if g.runs(t, a) || g.runs(t, b) {
			t.Error("a child outlived the kill")
		}
	}
	pause(t, g.Instance)() // what is dead does not come back
	if g.runs(t, a) || g.runs(t, b) {
		t.Error("a child came back with a resume")
	}
	second, q := g.begin(t, shell(s.Inside+" listen "+port))
	if got := strings.TrimSpace(line(t, second)); got != port {
		t.Errorf("listening again on %s gave %q", port, got)
	}
	if err := g.Signal(ctx(t), q.ID, "TERM", false /* its group only */); err != nil {
		t.Fatal(err)
	}
	for id, signal := range map[string]string{p.ID: "KILL", q.ID: "TERM"} {
		if r, err := g.Result(soon(t), id); err != nil || r.Exit.Signal != signal || r.Exit.Code < 128 {
			t.Errorf("%+v, %v: want death by %s", r.Exit, err, signal)
		}
	}
	lone := nap()
	defer g.endNap(t, lone)
	third, l := g.begin(t, shell(fmt.Sprintf("setsid %s & echo up; wait", lone)))
	line(t, third)
	eventually(t, "the child has a session of its own", func() bool { return g.runs(t, lone) })
	if err := g.Signal(ctx(t), l.ID, "KILL", false /* its group only */); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Result(soon(t), l.ID); err != nil || !g.runs(t, lone) {
		t.Errorf("a signal to the group reached another session, or the leader lives: %v", err)
	}
}

// everyProcessOwned drops the connection of many streams: each process is listed still, and can be ended.
func everyProcessOwned(t *testing.T, s *suite) {
	g := s.guest(t)
	const count, spare = 30, 8 // an agent may keep some things ready
	n := nap()
	defer g.endNap(t, n)
	descriptors := func() int {
		all, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", statePID(t, g.State())))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	g.sh(t, "true")
	before := descriptors()
	started := make(map[string]bool)
	for range count {
		spec := shell("echo up; exec " + n)
		spec.OnDisconnect = dayfly.DisconnectContinue
		stream, p := g.begin(t, spec)
		line(t, stream)
		started[p.ID] = true
	}
	_ = g.shell.Close()
	other := g.again(t)
	list, err := other.Processes(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	running := 0
	for _, p := range list {
		if !started[p.ID] {
			continue
		}
		if p.Status == dayfly.ProcessRunning {
			running++
		}
		if err := other.Signal(ctx(t), p.ID, "KILL", true /* the whole tree */); err != nil {
			t.Error(err)
		}
	}
	if running != count {
		t.Errorf("%d of %d are listed as running", running, count)
	}
	g.Machine = other
	if g.runs(t, n) {
		t.Error("one outlived its kill")
	}
	eventually(t, "the agent's descriptors are as before", func() bool { return descriptors() <= before+spare })
}

func noZombies(t *testing.T, s *suite) {
	g := s.guest(t)
	for range 100 {
		g.sh(t, "sh -c '(sleep 0.1 &); exit'")
	}
	first := statePID(t, g.State())
	eventually(t, "every orphan is reaped", func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, f := range files {
			b, _ := os.ReadFile(f) // it may have ended
			_, rest, _ := strings.Cut(string(b), ") ")
			if strings.HasPrefix(rest, fmt.Sprintf("Z %d ", first)) {
				return false
			}
		}
		return true
	})
}
