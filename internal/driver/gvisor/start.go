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
	"dayfly.dev/dayfly/internal/driver/beneath"
	"dayfly.dev/dayfly/internal/driver/channel"
	"dayfly.dev/dayfly/internal/driver/fsmount"
	"dayfly.dev/dayfly/internal/driver/gvisor/cell"
	"dayfly.dev/dayfly/internal/driver/machine"
	"dayfly.dev/dayfly/internal/failpoint"
)

const (
	undoWait   = 10 * time.Second // for a failed start to be undone
	logWait    = 100 * time.Millisecond
	hangUpWait = time.Second // for a cell to say why it hung up
	openFiles  = 1 << 20     // descriptors of a process inside, if the host allows
	logMax     = 4 << 10
	runscAttrs = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	uidBaseMin = dayfly.IDCount // ids below belong to the host

	// The user-space kernel has threads of its own on the host: its group's limit of processes must not be what a program
	// inside meets first. That is RLIMIT_NPROC, set inside.
	pidsShare = 4
	pidsBase  = 1000

	// Memory of the user-space kernel itself, on top of the limit of what runs inside.
	overheadBytes = 96 << 20

	namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC
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
	if spec.UIDBase < uidBaseMin {
		return fmt.Errorf("host uid %d is not for machines", spec.UIDBase)
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
	inst.cpus = d.cpus.Take(spec.Limits.VCPU)
	c, err := d.spawn(inst, spec)
	if err != nil {
		return nil, err
	}
	defer c.close()
	failpoint.Hit("gvisor.start.spawned")
	if err := d.raise(ctx, c, spec, inst.cpus); err != nil {
		if kills, kerr := group.OOMKills(); kerr == nil && kills > 0 && ctx.Err() == nil {
			return nil, tooSmall(spec.Limits.MemoryBytes, err)
		}
		return nil, err
	}
	failpoint.Hit("gvisor.start.raised")
	if err := inst.Settle(spec.RunDir, inst.cpus); err != nil {
		return nil, err
	}
	undo.Release()
	return inst, nil
}

// tooSmall tells that a machine ran out of memory before it could do anything.
func tooSmall(limitBytes int64, err error) error {
	return dayfly.Errorf(dayfly.CodeInvalid, "the memory limit of %d MiB is too small for a sandbox under gVisor to start", limitBytes>>20).
		WithHint("give it more memory").WithCause(err)
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
func (d *Driver) spawn(inst *instance, spec dayfly.InstanceSpec) (*starting, error) {
	conn, end, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	defer end.Close()
	log, logEnd, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	defer logEnd.Close()
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", d.agent), "cell")
	cmd.Args[0] = "dayfly-cell"
	cmd.Env = []string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0,updatemaxprocs=0"}
	cmd.Stderr = logEnd
	cmd.ExtraFiles = []*os.File{end}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(spec.UIDBase), Size: dayfly.IDCount}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: namespaces, Setsid: true, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{},
	}
	if err := inst.Group.StartCmd(cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("start cell: %w", err), conn.Close(), log.Close())
	}
	inst.PID, inst.Ours = cmd.Process.Pid, true
	_ = cmd.Process.Release() // Machine waits for it, by its pid
	return &starting{pid: inst.PID, channel: conn, log: log}, nil
}

// raise brings a cell to life: its network in parallel with its root directory, then runsc.
func (d *Driver) raise(ctx context.Context, s *starting, spec dayfly.InstanceSpec, cpus []int) error {
	stop := context.AfterFunc(ctx, func() { _ = s.channel.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := d.furnish(s, spec, cpus)
	if err == nil {
		if err := attach(ctx, s.pid, spec); err != nil {
			return fmt.Errorf("attach network: %w", err)
		}
		failpoint.Hit("gvisor.start.attached")
		if err := s.fixScore(); err != nil {
			return err
		}
		err = cell.Go(s.channel)
	}
	// Even after a failed send: the cell may have said why it hung up.
	aerr := s.await(err)
	if aerr != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return aerr
}

// await waits until the machine is ready. sendErr, or nil, is what the driver met before.
func (s *starting) await(sendErr error) error {
	if sendErr != nil { // it may not be waiting for anything
		_ = s.channel.SetDeadline(time.Now().Add(hangUpWait))
	}
	err := channel.Await(s.channel)
	switch {
	case errors.Is(err, channel.ErrDied):
		return errors.Join(err, sendErr, s.said())
	case err != nil && sendErr != nil:
		return errors.Join(sendErr, err)
	case err != nil:
		return err
	}
	return sendErr
}

// furnish sends the cell what it needs of the host.
func (d *Driver) furnish(s *starting, spec dayfly.InstanceSpec, cpus []int) error {
	userns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", s.pid))
	if err != nil {
		return fmt.Errorf("open user namespace: %w", err)
	}
	defer userns.Close()
	m, err := d.roots.Make(spec.Root, int(userns.Fd()), spec.UIDBase)
	if err != nil {
		return err
	}
	defer m.Close()
	shown, err := machine.Shown(spec.RunDir)
	if err != nil {
		return err
	}
	defer unix.Close(shown)
	runsc, err := fsmount.Clone(d.runsc)
	if err != nil {
		return err
	}
	defer unix.Close(runsc)
	if err := fsmount.Restrict(runsc, runscAttrs); err != nil {
		return fmt.Errorf("make runsc read-only: %w", err)
	}
	failpoint.Hit("gvisor.start.mounted")
	return cell.Send(s.channel, config(spec, cpus), cell.Descriptors{Root: m.Root, Dev: m.Dev, Shown: shown, Runsc: runsc, Agent: d.agent})
}

func attach(ctx context.Context, pid int, spec dayfly.InstanceSpec) error {
	if spec.AttachNetwork == nil {
		return nil // the cell brings loopback up
	}
	netns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer netns.Close()
	return spec.AttachNetwork(ctx, netns)
}

// fixScore writes the oom_score_adj that the cell gave itself once more, before it starts anything: nothing of the machine can
// lower what a writer with CAP_SYS_RESOURCE wrote.
func (s *starting) fixScore() error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/oom_score_adj", s.pid), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open oom_score_adj: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(cell.Score)); err != nil && !errors.Is(err, unix.EACCES) { // the node's own is higher
		return fmt.Errorf("write oom_score_adj: %w", err)
	}
	return nil
}

func config(spec dayfly.InstanceSpec, cpus []int) cell.Config {
	cfg := cell.Config{
		ID: spec.ID, Flags: flags(), Limits: spec.Limits, CPUs: cpus, Network: spec.AttachNetwork != nil, OpenMax: openFiles,
		Guest: cell.Guest{
			ID: spec.ID, User: spec.User, Workdir: spec.Workdir, Env: spec.Env, Granted: int64(spec.Granted), Memory: spec.Limits.MemoryBytes,
		},
	}
	for path, content := range spec.Files {
		cfg.Files = append(cfg.Files, beneath.File{Path: path, Content: content})
	}
	return cfg
}
