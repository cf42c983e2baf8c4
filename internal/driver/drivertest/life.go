package drivertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func probe(t *testing.T, s *suite) {
	c := s.driver.Probe(ctx(t))
	if !c.Works {
		t.Fatalf("does not work: %v; install: %v", c.Reasons, c.Install)
	}
	if c.IdleBytes <= 0 || c.OOM == "" {
		t.Errorf("idle bytes %d, oom %q", c.IdleBytes, c.OOM)
	}
	t.Logf("idle machine: %d KiB; reasons %v", c.IdleBytes>>10, c.Reasons)
}

func startDialRun(t *testing.T, s *suite) {
	m := s.start(t)
	if m.ID() != m.spec.ID {
		t.Errorf("id %q, want %q", m.ID(), m.spec.ID)
	}
	m.run(t, asUser, "true")
	if !json.Valid(m.State()) {
		t.Errorf("state is no JSON: %q", m.State())
	}
	select {
	case <-m.Done():
		t.Error("done while it runs")
	default:
	}
}

func environment(t *testing.T, s *suite) {
	m := s.start(t, func(spec *dayfly.InstanceSpec) {
		spec.Env = map[string]string{"CANARY": "a b\nc=☕"}
		spec.Files = map[string][]byte{"/etc/resolv.conf": []byte("nameserver 192.0.2.1\n"), "/deep/er/file": []byte("x")}
	})
	if got := m.run(t, asUser, "env", "CANARY"); got != "a b\nc=☕" {
		t.Errorf("CANARY = %q", got)
	}
	if !s.Isolated {
		return // without a root file system of its own there is nowhere to put files
	}
	if got := m.run(t, asUser, "cat", "/etc/resolv.conf"); got != "nameserver 192.0.2.1" {
		t.Errorf("resolv.conf = %q", got)
	}
	if got := m.run(t, asUser, "stat", "/deep/er/file"); got != "100644 0:0 0:0" {
		t.Errorf("file made: %s", got)
	}
	if got := m.run(t, asUser, "cat", "/run/dayfly/grant"); got != "60" {
		t.Errorf("grant = %q", got)
	}
	if got := m.run(t, asUser, "stat", "/tmp"); got != "41777 0:0 0:0" {
		t.Errorf("/tmp: %s", got)
	}
}

// descriptors looks at what a command gets.
func descriptors(t *testing.T, s *suite) {
	m := s.start(t)
	for _, user := range []string{asUser, asRoot} {
		if user == asRoot && !s.Isolated {
			continue
		}
		var numbers []string
		for line := range strings.Lines(m.run(t, user, "ls", "/proc/self/fd")) {
			number, target, _ := strings.Cut(strings.TrimSpace(line), " ")
			if target != "" && !ownDescriptor(target) {
				numbers = append(numbers, number)
			}
		}
		if !slices.Equal(numbers, []string{"0", "1", "2"}) {
			t.Errorf("user %q has descriptors %v", user, numbers)
		}
	}
}

// ownDescriptor tells what the inside program and its runtime open themselves: the directory, epoll, their cgroup's limits.
func ownDescriptor(target string) bool {
	return strings.HasSuffix(target, "/fd") || strings.Contains(target, "[event") || strings.HasPrefix(target, "/sys/fs/cgroup/")
}

func twentyAtOnce(t *testing.T, s *suite) {
	var all sync.WaitGroup
	errs := make(chan error, 20)
	begun := time.Now()
	for range cap(errs) {
		spec := s.Spec(t)
		all.Go(func() { errs <- s.once(spec) })
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d machines made, used and destroyed in %s", cap(errs), time.Since(begun).Round(time.Millisecond))
}

// once is a whole life of a machine.
func (s *suite) once(spec dayfly.InstanceSpec) error {
	ctx, cancel := context.WithTimeout(context.Background(), caseWait)
	defer cancel()
	inst, err := s.driver.Start(ctx, spec)
	if err != nil {
		return err
	}
	err = s.use(ctx, inst)
	return errors.Join(err, inst.Destroy(ctx))
}

func (s *suite) use(ctx context.Context, inst dayfly.Instance) error {
	conn, err := inst.Dial(ctx)
	if err != nil {
		return err
	}
	shell, err := s.Connect(ctx, conn)
	if err != nil {
		return err
	}
	defer shell.Close()
	r, err := shell.Run(ctx, dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{s.Inside, "true"}}, nil)
	if err == nil && r.Exit.Code != 0 {
		err = fmt.Errorf("exit %d: %s", r.Exit.Code, r.Stderr.Head)
	}
	return err
}

func sameIDTwice(t *testing.T, s *suite) {
	m := s.start(t)
	spec := s.Spec(t)
	spec.ID = m.spec.ID
	if _, err := s.driver.Start(ctx(t), spec); err == nil {
		t.Error("a second machine of the same id was made")
	}
	m.run(t, asUser, "true") // the first is unharmed
}

func wrongSpecs(t *testing.T, s *suite) {
	for _, tt := range []struct {
		name   string
		change func(*dayfly.InstanceSpec)
	}{
		{"no id", func(spec *dayfly.InstanceSpec) { spec.ID = "" }},
		{"id with a path", func(spec *dayfly.InstanceSpec) { spec.ID = "../" + spec.ID }},
		{"run directory missing", func(spec *dayfly.InstanceSpec) { spec.RunDir += "/missing" }},
		{"run directory relative", func(spec *dayfly.InstanceSpec) { spec.RunDir = "run" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := s.Spec(t)
			tt.change(&spec)
			inst, err := s.driver.Start(ctx(t), spec)
			if err == nil {
				_ = inst.Destroy(ctx(t))
				t.Error("started")
			}
		})
	}
}

func cancelledStart(t *testing.T, s *suite) {
	for _, after := range []time.Duration{0, 100 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 4 * time.Millisecond, 6 * time.Millisecond,
		20 * time.Millisecond, 50 * time.Millisecond, 80 * time.Millisecond, 120 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			before := s.Residue(t)
			ctx, cancel := context.WithTimeout(context.Background(), after)
			defer cancel()
			inst, err := s.driver.Start(ctx, s.Spec(t))
			if err != nil {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v hides that the context ended", err)
				}
				s.sameResidue(t, before)
				return
			}
			if err := inst.Destroy(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}

func failingNetwork(t *testing.T, s *suite) {
	spec := s.Spec(t)
	fault := errors.New("no cable")
	spec.AttachNetwork = func(context.Context, *os.File) error { return fault }
	if !s.Isolated {
		t.Skip("this driver has no network of its own to attach")
	}
	if _, err := s.driver.Start(ctx(t), spec); !errors.Is(err, fault) {
		t.Errorf("Start = %v, want the hook's error", err)
	}
}

func destroyTwice(t *testing.T, s *suite) {
	m := s.start(t)
	m.background(t, asUser, "hold")
	for range 2 {
		if err := m.Destroy(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, m.Done())
	if _, err := m.Dial(ctx(t)); dayfly.ErrorCode(err) != dayfly.CodeGone {
		t.Errorf("Dial = %v, want %s", err, dayfly.CodeGone)
	}
	if _, err := m.Usage(ctx(t)); dayfly.ErrorCode(err) != dayfly.CodeGone {
		t.Errorf("Usage = %v, want %s", err, dayfly.CodeGone)
	}
}

func wait(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(slowWait):
		t.Fatal("not done")
	}
}

// killedAgent kills PID 1 from outside; its pid is in the state of every driver.
func killedAgent(t *testing.T, s *suite) {
	m := s.start(t)
	m.background(t, asUser, "hold")
	if err := syscall.Kill(statePID(t, m.State()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait(t, m.Done())
	if _, err := m.Dial(ctx(t)); dayfly.ErrorCode(err) != dayfly.CodeGone {
		t.Errorf("Dial = %v, want %s", err, dayfly.CodeGone)
	}
}

func statePID(t *testing.T, state json.RawMessage) int {
	t.Helper()
	var st struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(state, &st); err != nil || st.PID <= 1 {
		t.Fatalf("no pid in state %s: %v", state, err)
	}
	return st.PID
}

func recoverRunning(t *testing.T, s *suite) {
	m := s.start(t)
	m.background(t, asUser, "hold")
	second := s.Open(t)
	inst, err := second.Recover(ctx(t), m.ID(), bytes.Clone(m.State()))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(inst.State(), m.State()) {
		t.Errorf("state changed from %s to %s", m.State(), inst.State())
	}
	if err := s.use(ctx(t), inst); err != nil {
		t.Error(err)
	}
	if _, err := inst.Usage(ctx(t)); err != nil {
		t.Error(err)
	}
	if err := inst.Destroy(ctx(t)); err != nil {
		t.Error(err)
	}
	wait(t, inst.Done())
	wait(t, m.Done())
}

func recoverEnded(t *testing.T, s *suite) {
	m := s.start(t)
	state := bytes.Clone(m.State())
	if err := m.Destroy(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t).Recover(ctx(t), m.ID(), state); dayfly.ErrorCode(err) != dayfly.CodeGone {
		t.Errorf("Recover = %v, want %s", err, dayfly.CodeGone)
	}
}

func recoverDamaged(t *testing.T, s *suite) {
	m := s.start(t)
	for _, tt := range []struct{ name, state string }{
		{"empty", ""}, {"no object", "[]"}, {"cut", string(m.State()[:len(m.State())/2])}, {"no pid", `{"version":1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := s.Open(t).Recover(ctx(t), m.ID(), json.RawMessage(tt.state)); err == nil || dayfly.ErrorCode(err) == dayfly.CodeGone {
				t.Errorf("Recover = %v, want an error that is not gone", err)
			}
		})
	}
	m.run(t, asUser, "true")
}

func reclaimUnrecorded(t *testing.T, s *suite) {
	m := s.start(t)
	m.background(t, asUser, "hold")
	second := s.Open(t)
	ids, err := second.List(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(ids, m.ID()) {
		t.Fatalf("List = %v, %s is missing", ids, m.ID())
	}
	for range 2 {
		if err := second.Reclaim(ctx(t), m.ID()); err != nil {
			t.Fatal(err)
		}
	}
	if ids, err = second.List(ctx(t)); err != nil || slices.Contains(ids, m.ID()) {
		t.Errorf("List after Reclaim = %v, %v", ids, err)
	}
	wait(t, m.Done())
	if err := second.Reclaim(ctx(t), dayfly.NewID(dayfly.PrefixSandbox)); err != nil {
		t.Errorf("Reclaim of nothing: %v", err)
	}
}

func usage(t *testing.T, s *suite) {
	m := s.start(t)
	before, err := m.Usage(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	const mib, burnt = 64, 200 * time.Millisecond
	m.background(t, asUser, "alloc", fmt.Sprint(mib))
	m.run(t, asUser, "burn", fmt.Sprint(burnt.Milliseconds()))
	after, err := m.Usage(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if grown := after.MemoryBytes - before.MemoryBytes; grown < mib<<20*9/10 {
		t.Errorf("memory grew by %d bytes after %d MiB were allocated", grown, mib)
	}
	least := burnt * 9 / 10
	if s.UserKernel {
		least = burnt / 2 // inside, time is counted in ticks of the user-space kernel
	}
	if s.Isolated && after.CPU-before.CPU < least {
		t.Errorf("cpu grew by %s after %s were used", after.CPU-before.CPU, burnt)
	}
	if after.PIDs <= before.PIDs {
		t.Errorf("processes: %d, then %d with one more", before.PIDs, after.PIDs)
	}
}

func destroyStopped(t *testing.T, s *suite) {
	m := s.start(t)
	m.background(t, asUser, "stopped")
	if err := m.Destroy(ctx(t)); err != nil {
		t.Fatal(err)
	}
	wait(t, m.Done())
}
