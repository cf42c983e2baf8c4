package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"dayfly.dev/dayfly"
)

const (
	stateVersion = 1 // changes when an older driver could no longer read a state
	stateMax     = 64 << 10
	statMax      = 4 << 10 // bytes of /proc/PID/stat
	statStart    = 19      // field of the start time, counted from the one behind the name
)

// State is what Recover needs. The cgroup is found by the id.
type State struct {
	Version    int    `json:"version"`
	PID        int    `json:"pid"` // of the machine's first process, on the host
	StartTicks uint64 `json:"start_ticks"`
	RunDir     string `json:"run_dir"`
	CPUs       []int  `json:"cpus,omitempty"` // that it was dealt, where a driver does that
}

// Settle takes a machine that runs into the books: runDir and cpus go into its state.
func (m *Machine) Settle(runDir string, cpus []int) error {
	ticks, err := startTicks(m.PID)
	if err != nil {
		return err
	}
	m.state, err = json.Marshal(State{Version: stateVersion, PID: m.PID, StartTicks: ticks, RunDir: runDir, CPUs: cpus})
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	return m.watch()
}

// Recover takes hold of a machine that runs. raw is what State gave, st what Parse made of it; CodeGone: it has ended. A
// machine is known by its cgroup; the recorded pid alone would prove nothing, as pids are used again.
func (m *Machine) Recover(ctx context.Context, raw json.RawMessage, st State) error {
	populated, err := m.Group.Populated()
	if err != nil {
		return err
	}
	if !populated {
		return ErrEnded
	}
	m.PID, m.state = st.PID, bytes.Clone(raw)
	if err := m.watch(); err != nil {
		return err
	}
	if m.identify(st) == nil {
		return nil
	}
	// The first process is gone, so the kernel is ending the others right now.
	select {
	case <-m.done:
		return ErrEnded
	case <-ctx.Done():
		m.forget()
		return ctx.Err()
	}
}

// identify tells whether the first process of the record still lives in the group.
func (m *Machine) identify(st State) error {
	pids, err := m.Group.Processes()
	if err != nil {
		return err
	}
	ticks, err := startTicks(st.PID)
	if err != nil {
		return err
	}
	if !slices.Contains(pids, st.PID) || ticks != st.StartTicks {
		return fmt.Errorf("process %d is not PID 1 of %s", st.PID, m.id)
	}
	return nil
}

// Parse reads a State.
func Parse(raw json.RawMessage) (State, error) {
	var st State
	if len(raw) > stateMax {
		return st, fmt.Errorf("state of %d bytes", len(raw))
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&st); err != nil {
		return st, fmt.Errorf("read state: %w", err)
	}
	if st.Version != stateVersion {
		return st, dayfly.Errorf(dayfly.CodeInvalid, "the machine's state has version %d, this binary reads %d", st.Version, stateVersion)
	}
	if st.PID <= 0 || st.RunDir == "" || slices.ContainsFunc(st.CPUs, func(c int) bool { return c < 0 }) {
		return st, fmt.Errorf("state is incomplete")
	}
	return st, nil
}

// startTicks reads when a process started, in clock ticks since boot: with the pid it names a process for good.
func startTicks(pid int) (uint64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read start time: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, statMax))
	if err != nil {
		return 0, fmt.Errorf("read start time: %w", err)
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // the name before may hold anything
	if len(fields) <= statStart {
		return 0, fmt.Errorf("read start time of %d: %d fields", pid, len(fields))
	}
	return strconv.ParseUint(string(fields[statStart]), 10, 64)
}
