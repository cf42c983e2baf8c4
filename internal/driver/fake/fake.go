// Package fake is a driver for tests that need no root: it runs the real agent as a plain process of the same user, in a
// home directory of its own. It isolates nothing, enforces no limit, has no network and no root file system; Files of a
// spec are not written, and commands see the host. What it keeps is the contract: lifetimes, recovery, reclaiming, counters.
//
// Every process of a machine carries a mark in its environment, by which it is found again; one that clears its environment
// escapes. To make the fake do more, give it what drivertest asks of every driver; isolation belongs into a real one.
package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
)

const (
	markName     = "DAYFLY_FAKE" // of the environment variable installation/id
	socketName   = "sock"
	homeName     = "home"
	configMax    = 1 << 20 // bytes of an agent's configuration
	stateVersion = 1
	stateMax     = 64 << 10
	idleBytes    = 8 << 20 // roughly; the fake admits nobody
)

// Driver implements dayfly.Driver.
type Driver struct {
	installation string
	agent        string
}

// New makes a driver that runs the agent's binary at the path agent.
func New(installation, agent string) (*Driver, error) {
	if !dayfly.ValidInstallation(installation) {
		return nil, fmt.Errorf("fake driver: %q is no installation id", installation)
	}
	return &Driver{installation: installation, agent: agent}, nil
}

// Name implements dayfly.Driver.
func (d *Driver) Name() dayfly.Isolation { return dayfly.IsolationFake }

// Probe implements dayfly.Driver.
func (d *Driver) Probe(context.Context) dayfly.Capability {
	c := dayfly.Capability{OOM: dayfly.OOMEndsCommand, IdleBytes: idleBytes}
	c.Reasons = []string{"it isolates nothing and is for tests only"}
	if _, err := os.Stat(d.agent); err != nil {
		c.Reasons = append(c.Reasons, "the agent is missing: "+err.Error())
		c.Install = []string{"build the agent first"}
		return c
	}
	c.Works = true
	return c
}

// agentConfig is what "dayfly-agent serve" reads from descriptor 4.
type agentConfig struct {
	User        dayfly.User       `json:"user"`
	Workdir     string            `json:"workdir"`
	Env         map[string]string `json:"env"`
	MemoryBytes int64             `json:"memory_bytes"`
	Granted     int64             `json:"granted_ns"`
	GrantFile   string            `json:"grant_file"`
}

// Start implements dayfly.Driver.
func (d *Driver) Start(ctx context.Context, spec dayfly.InstanceSpec) (dayfly.Instance, error) {
	inst, err := d.start(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	return inst, nil
}

func (d *Driver) start(ctx context.Context, spec dayfly.InstanceSpec) (*instance, error) {
	if !dayfly.ValidID(dayfly.PrefixSandbox, spec.ID) || !filepath.IsAbs(spec.RunDir) {
		return nil, fmt.Errorf("%q in %q is no machine", spec.ID, spec.RunDir)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if living := marked(d.mark(spec.ID)); len(living) > 0 {
		return nil, dayfly.Errorf(dayfly.CodeConflict, "there is a machine %s already", spec.ID)
	}
	var undo cleanup.Stack
	defer undo.Clean()
	home := filepath.Join(spec.RunDir, homeName)
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, err
	}
	undo.Add(func() { _ = os.RemoveAll(home) })
	socket := filepath.Join(spec.RunDir, socketName)
	l, err := listen(socket)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	undo.Add(func() { _ = os.Remove(socket) })
	config, err := d.config(spec, home)
	if err != nil {
		return nil, err
	}
	defer config.Close()
	p, err := d.spawn(spec.ID, home, l, config)
	if err != nil {
		return nil, err
	}
	inst, err := d.newInstance(spec.ID, spec.RunDir, p.Pid)
	if err != nil {
		return nil, errors.Join(err, p.Kill(), reap(p))
	}
	inst.child = p
	inst.watch()
	undo.Release()
	return inst, nil
}

func reap(p *os.Process) error { _, err := p.Wait(); return err }

// spawn runs the agent: descriptor 3 is its listener, 4 its configuration.
func (d *Driver) spawn(id, home string, l, config *os.File) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return os.StartProcess(d.agent, []string{"dayfly-agent", "serve"}, &os.ProcAttr{
		Dir: home, Env: []string{d.mark(id)}, Files: []*os.File{null, null, null, l, config},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

func (d *Driver) mark(id string) string { return markName + "=" + d.installation + "/" + id }

// config puts the agent's configuration into memory that it can read.
func (d *Driver) config(spec dayfly.InstanceSpec, home string) (*os.File, error) {
	env := map[string]string{markName: d.installation + "/" + spec.ID}
	for k, v := range spec.Env {
		env[k] = v
	}
	who, err := user.LookupId(fmt.Sprint(os.Getuid()))
	if err != nil {
		who = &user.User{}
	}
	b, err := json.Marshal(agentConfig{
		User: dayfly.User{Name: who.Username, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Home: home},
		Env:  env, MemoryBytes: spec.Limits.MemoryBytes, Granted: int64(spec.Granted),
		GrantFile: filepath.Join(spec.RunDir, "in", "grant"),
	})
	if err != nil {
		return nil, err
	}
	if len(b) > configMax {
		return nil, fmt.Errorf("the agent's configuration has %d bytes", len(b))
	}
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "config")
	if _, err = f.Write(b); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// listen makes the socket; the caller owns the file.
func listen(path string) (*os.File, error) {
	dir, short, err := shortened(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	return l.File()
}

// shortened gives a path of the same file that fits into a socket address while dir is open.
func shortened(path string) (dir *os.File, short string, err error) {
	if dir, err = os.Open(filepath.Dir(path)); err != nil {
		return nil, "", err
	}
	return dir, fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), nil
}

// state is what Recover needs.
type state struct {
	Version int    `json:"version"`
	PID     int    `json:"pid"`
	RunDir  string `json:"run_dir"`
}

// Recover implements dayfly.Driver.
func (d *Driver) Recover(ctx context.Context, id string, raw json.RawMessage) (dayfly.Instance, error) {
	var st state
	if len(raw) > stateMax {
		return nil, fmt.Errorf("recover %s: state of %d bytes", id, len(raw))
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&st); err != nil {
		return nil, fmt.Errorf("recover %s: read state: %w", id, err)
	}
	if st.Version != stateVersion || st.PID <= 0 || st.RunDir == "" {
		return nil, fmt.Errorf("recover %s: state is incomplete", id)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !slices.Contains(marked(d.mark(id)), st.PID) {
		return nil, errEnded
	}
	inst, err := d.newInstance(id, st.RunDir, st.PID)
	if errors.Is(err, unix.ESRCH) {
		return nil, errEnded
	}
	if err != nil {
		return nil, fmt.Errorf("recover %s: %w", id, err)
	}
	inst.watch()
	return inst, nil
}

// List implements dayfly.Driver.
func (d *Driver) List(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return ids(markName + "=" + d.installation + "/")
}

// Reclaim implements dayfly.Driver.
func (d *Driver) Reclaim(ctx context.Context, id string) error {
	if !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		return dayfly.Errorf(dayfly.CodeInvalid, "%q is no sandbox id", id)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if left := killMarked(d.mark(id)); left > 0 {
		return fmt.Errorf("reclaim %s: %d processes are left", id, left)
	}
	return nil
}
