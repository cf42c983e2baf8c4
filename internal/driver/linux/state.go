package linux

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

// state is what Recover needs. The cgroup is found by the id.
type state struct {
	Version    int    `json:"version"`
	PID        int    `json:"pid"` // of the machine's PID 1, on the host
	StartTicks uint64 `json:"start_ticks"`
	RunDir     string `json:"run_dir"`
	CPUs       []int  `json:"cpus,omitempty"`
}

// settle takes a machine that runs into the books.
func (i *instance) settle() error {
	ticks, err := startTicks(i.pid)
	if err != nil {
		return err
	}
	i.state, err = json.Marshal(state{Version: stateVersion, PID: i.pid, StartTicks: ticks, RunDir: i.runDir, CPUs: i.cpus})
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	return i.watch()
}

// Recover implements dayfly.Driver. A machine is known by its cgroup; the recorded pid alone would prove nothing, as pids
// are used again.
func (d *Driver) Recover(ctx context.Context, id string, raw json.RawMessage) (dayfly.Instance, error) {
	if d.unfit != nil {
		return nil, d.unfit
	}
	st, err := parseState(raw)
	if err != nil {
		return nil, fmt.Errorf("recover %s: %w", id, err)
	}
	group, err := d.host.Group(d.installation, id)
	if err != nil {
		return nil, err
	}
	populated, err := group.Populated()
	if err != nil {
		return nil, fmt.Errorf("recover %s: %w", id, err)
	}
	if !populated {
		return nil, errEnded
	}
	inst := newInstance(d, id, group, st.RunDir)
	inst.pid, inst.cpus, inst.state = st.PID, st.CPUs, bytes.Clone(raw)
	d.cpus.hold(inst.cpus)
	if err := inst.watch(); err != nil {
		d.cpus.give(inst.cpus)
		return nil, fmt.Errorf("recover %s: %w", id, err)
	}
	if err := inst.identify(st); err == nil {
		return inst, nil
	}
	// PID 1 is gone, so the kernel is ending the others right now.
	select {
	case <-inst.done:
		return nil, errEnded
	case <-ctx.Done():
		inst.forget()
		return nil, ctx.Err()
	}
}

// identify tells whether PID 1 of the record still lives in the group.
func (i *instance) identify(st state) error {
	pids, err := i.group.Processes()
	if err != nil {
		return err
	}
	ticks, err := startTicks(st.PID)
	if err != nil {
		return err
	}
	if !slices.Contains(pids, st.PID) || ticks != st.StartTicks {
		return fmt.Errorf("process %d is not PID 1 of %s", st.PID, i.id)
	}
	return nil
}

// parseState reads what settle wrote.
func parseState(raw json.RawMessage) (state, error) {
	var st state
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
