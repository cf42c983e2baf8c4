package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"dayfly.dev/dayfly"
)

// state is what the node remembers of one machine over a restart, and what a lost record is rebuilt from. It holds no
// environment values.
type state struct {
	Version  int              `json:"version"`
	Sandbox  dayfly.Sandbox   `json:"sandbox"`
	Slot     int              `json:"slot"`
	Driver   dayfly.Isolation `json:"driver"`
	Attached bool             `json:"attached"` // has a network
	Instance json.RawMessage  `json:"instance,omitempty"`
}

const (
	stateVersion  = 1
	stateMaxBytes = 1 << 20
	stateSuffix   = ".json"
	tempPrefix    = ".new-"
)

func (m *Manager) stateDir() string            { return filepath.Join(m.opt.DataDir, "state") }
func (m *Manager) statePath(id string) string  { return filepath.Join(m.stateDir(), id+stateSuffix) }
func (m *Manager) removeState(id string) error { return removeFile(m.statePath(id)) }
func (m *Manager) writeState(s state) error    { return writeJSON(m.statePath(s.Sandbox.ID), s) }
func (m *Manager) grantPath(id string) string  { return filepath.Join(m.runDir(id), "in", "grant") }
func (m *Manager) writeGrant(l dayfly.Lease, id string) error {
	return replaceFile(m.grantPath(id), fmt.Appendf(nil, "%d\n", int64(l.Granted().Seconds())), 0o444)
}

// appendState adds a newer state of a machine to its file, which must be there. That is one write instead of a new file.
func (m *Manager) appendState(s state) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode state of %s: %w", s.Sandbox.ID, err)
	}
	f, err := os.OpenFile(m.statePath(s.Sandbox.ID), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("add to state of %s: %w", s.Sandbox.ID, err)
	}
	_, err = f.Write(append([]byte{'\n'}, b...))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("add to state of %s: %w", s.Sandbox.ID, err)
	}
	return nil
}

// readState reads one state file. CodeNotFound: there is none. Any other error means unreadable, not absent.
func (m *Manager) readState(id string) (state, error) {
	var s state
	b, err := readLimited(m.statePath(id), stateMaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return s, dayfly.Errorf(dayfly.CodeNotFound, "no state of %s", id)
	}
	if err != nil {
		return s, fmt.Errorf("read state of %s: %w", id, err)
	}
	if s, err = lastState(b); err != nil {
		return s, fmt.Errorf("parse state of %s: %w: %w", id, errGarbage, err)
	}
	if s.Version != stateVersion && s.Version > 0 {
		return s, fmt.Errorf("state of %s has version %d: another version of dayfly wrote it; start that one", id, s.Version)
	}
	if s.Sandbox.ID != id || s.Version != stateVersion {
		return s, fmt.Errorf("state of %s has version %d and id %.40q: %w", id, s.Version, s.Sandbox.ID, errGarbage)
	}
	return s, nil
}

// lastState parses the last whole line of a state file: a process may have died while it added one.
func lastState(b []byte) (state, error) {
	first, rest, _ := bytes.Cut(b, []byte{'\n'})
	var s state
	if err := json.Unmarshal(first, &s); err != nil {
		return state{}, err
	}
	for line := range bytes.Lines(rest) {
		var newer state
		if json.Unmarshal(line, &newer) == nil {
			s = newer
		}
	}
	return s, nil
}

// errGarbage marks a state file that was read and says nothing, and never will.
var errGarbage = errors.New("it is damaged")

// removeTemps removes what a write left that a crash cut off.
func (m *Manager) removeTemps() error {
	left, err := filepath.Glob(filepath.Join(m.stateDir(), tempPrefix+"*"))
	for _, path := range left {
		err = errors.Join(err, removeFile(path))
	}
	return err
}

// listStates gives the ids of all state files.
func (m *Manager) listStates() ([]string, error) {
	entries, err := os.ReadDir(m.stateDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list state files: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), stateSuffix); ok && dayfly.ValidID(dayfly.PrefixSandbox, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// listRunDirs gives the ids of all run directories.
func (m *Manager) listRunDirs() ([]string, error) {
	entries, err := os.ReadDir(m.opt.RunDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list run directories: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if dayfly.ValidID(dayfly.PrefixSandbox, e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return replaceFile(path, b, 0o600)
}

// replaceFile writes a file whole or not at all. It does not wait for the disk: no machine survives a power loss.
func replaceFile(path string, b []byte, mode fs.FileMode) error {
	tmp := filepath.Join(filepath.Dir(path), tempPrefix+filepath.Base(path))
	if err := writeFile(tmp, b, mode); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", filepath.Base(path), err), removeFile(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", filepath.Base(path), err), removeFile(tmp))
	}
	return nil
}

// writeFile makes a file of exactly this mode, over what a crash may have left.
func writeFile(path string, b []byte, mode fs.FileMode) error {
	if err := removeFile(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Chmod(mode), f.Close())
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func readLimited(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", filepath.Base(path), limit)
	}
	return b, err
}
