package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/driver/gvisor/cell"
	"dayfly.dev/dayfly/internal/failpoint"
)

const (
	undoWait  = 10 * time.Second // for a failed start to be undone
	logWait   = 100 * time.Millisecond
	openFiles = 1 << 20 // descriptors of a process inside, if the host allows
	logMax    = 4 << 10

	// The user-space kernel has threads of its own on the host: its group's limit of processes must not be what a program
	// inside meets first. That is RLIMIT_NPROC, set inside.
	pidsShare = 4
	pidsBase  = 1000

	// Memory of the user-space kernel itself, on top of the limit of what runs inside.
	overheadBytes = 96 << 20

	namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC
)

// Start implements dayfly.Driver.
func (d *Driver) Start(ctx context.Context, spec dayfly.InstanceSpec) (dayfly.Instance, error) {
	if err := check(spec); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	if d.unfit != nil {
		return nil, d.unfit
	}
	inst, err := d.start(ctx, d.installation, spec)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		return nil, fmt.Errorf("start %s: %w", spec.ID, err)
	}
	return inst, nil
}

// check refuses what only a fault of the node can ask for.
func check(spec dayfly.InstanceSpec) error {
	if !dayfly.ValidID(dayfly.PrefixSandbox, spec.ID) {
		return fmt.Errorf("%q is no sandbox id", spec.ID)
	}
	if len(spec.Root.Lower) == 0 {
		return errors.New("no lower directory")
	}
	for _, dir := range append([]string{spec.RunDir, spec.Root.Upper}, spec.Root.Lower...) {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("%q is no absolute path", dir)
		}
	}
	return nil
}

func (d *Driver) start(ctx context.Context, installation string, spec dayfly.InstanceSpec) (*instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if spec.Limits.PIDs == 0 {
		spec.Limits.PIDs = dayfly.PIDsDefault
	}
	var undo cleanup.Stack
	defer undo.Clean()
	group, err := d.host.Group(installation, spec.ID)
	if err != nil {
		return nil, err
	}
	outer := spec.Limits
	outer.PIDs = outer.PIDs*pidsShare + pidsBase
	outer.MemoryBytes += overheadBytes
	if err := group.Create(outer); err != nil {
		return nil, err
	}
	inst := newInstance(d, spec.ID, group)
	undo.Add(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWait)
		defer cancel()
		_ = inst.Destroy(ctx) // what it cannot remove is in List, for Reclaim
	})
	failpoint.Hit("gvisor.start.group")
	if err := mountPoints(spec.RunDir); err != nil {
		return nil, err
	}
	c, err := d.spawn(inst)
	if err != nil {
		return nil, err
	}
	defer c.close()
	failpoint.Hit("gvisor.start.spawned")
	if err := d.raise(ctx, c, spec); err != nil {
		return nil, err
	}
	failpoint.Hit("gvisor.start.raised")
	if err := inst.Settle(spec.RunDir, nil /* none dealt */); err != nil {
		return nil, err
	}
	undo.Release()
	return inst, nil
}

// mountPoints makes what the cell mounts on in the directory that is shown inside.
func mountPoints(runDir string) error {
	in := filepath.Join(runDir, "in")
	if err := os.Mkdir(filepath.Join(in, "sock"), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make mount point: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(in, "agent"), os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o755)
	if err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	return f.Close()
}

// starting is a cell that starts, and the driver's ends of what connects them.
type starting struct {
	pid     int
	channel *net.UnixConn
	log     *os.File // what the cell says on standard error
}

func (s *starting) close() {
	_ = s.channel.Close()
	_ = s.log.Close()
}

// said gives what the cell wrote to standard error.
func (s *starting) said() error {
	_ = s.log.SetReadDeadline(time.Now().Add(logWait))
	b, _ := io.ReadAll(io.LimitReader(s.log, logMax))
	if text := strings.TrimSpace(string(b)); text != "" {
		return fmt.Errorf("cell said: %q", text)
	}
	return nil
}

// spawn starts the cell, in its group and in namespaces of its own.
func (d *Driver) spawn(inst *instance) (*starting, error) {
	channel, end, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("make channel: %w", err)
	}
	defer end.Close()
	log, logEnd, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, channel.Close())
	}
	defer logEnd.Close()
	cmd := exec.Command(d.agent, "cell")
	cmd.Args[0] = "dayfly-cell"
	cmd.Env = []string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0,updatemaxprocs=0"}
	cmd.Stderr = logEnd
	cmd.ExtraFiles = []*os.File{end}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Setsid: true}
	if err := inst.Group.StartCmd(cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("start cell: %w", err), channel.Close(), log.Close())
	}
	inst.PID, inst.Ours = cmd.Process.Pid, true
	_ = cmd.Process.Release() // Machine waits for it, by its pid
	return &starting{pid: inst.PID, channel: channel, log: log}, nil
}

// raise brings a cell to life: its network in parallel with its root directory, then runsc.
func (d *Driver) raise(ctx context.Context, s *starting, spec dayfly.InstanceSpec) error {
	stop := context.AfterFunc(ctx, func() { _ = s.channel.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := cell.Send(s.channel, d.config(spec))
	if err == nil {
		if err = attach(ctx, s.pid, spec); err != nil {
			return fmt.Errorf("attach network: %w", err)
		}
		failpoint.Hit("gvisor.start.attached")
		err = cell.Go(s.channel)
	}
	if rerr := cell.Await(s.channel); rerr != nil { // even after a failed send: the cell may have said why it hung up
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errors.Join(rerr, err, s.said())
	}
	return err
}

func attach(ctx context.Context, pid int, spec dayfly.InstanceSpec) error {
	netns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer netns.Close()
	if spec.AttachNetwork == nil {
		return loopbackUp(netns)
	}
	return spec.AttachNetwork(ctx, netns)
}

func (d *Driver) config(spec dayfly.InstanceSpec) cell.Config {
	cfg := cell.Config{
		ID: spec.ID, Root: spec.Root, RunDir: spec.RunDir, Runsc: d.runsc, Agent: d.agent, Flags: flags(), Limits: spec.Limits,
		OpenMax: openFiles,
		Guest: cell.Guest{
			User: spec.User, Workdir: spec.Workdir, Env: spec.Env, Granted: int64(spec.Granted), Memory: spec.Limits.MemoryBytes,
			Network: spec.AttachNetwork != nil,
		},
	}
	for path, content := range spec.Files {
		cfg.Guest.Files = append(cfg.Guest.Files, cell.File{Path: path, Content: content})
	}
	return cfg
}

// socketPair gives the driver's end and the cell's.
func socketPair() (*net.UnixConn, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "cell channel"), os.NewFile(uintptr(pair[1]), "cell channel")
	defer ours.Close() // FileConn makes a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}
