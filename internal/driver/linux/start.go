package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/driver/beneath"
	"dayfly.dev/dayfly/internal/driver/birth"
	"dayfly.dev/dayfly/internal/driver/channel"
	"dayfly.dev/dayfly/internal/driver/ground"
	"dayfly.dev/dayfly/internal/driver/linux/boot"
	"dayfly.dev/dayfly/internal/driver/machine"
	"dayfly.dev/dayfly/internal/driver/sealed"
	"dayfly.dev/dayfly/internal/failpoint"
)

const (
	openFiles  = 1 << 20 // descriptors of a process inside, if the host allows
	backlog    = 1024    // connections to an agent that wait to be accepted
	socketName = "sock"
	socketMode = 0o600
)

// agentSlack is how late the agent's timers may be. While it does anything at all, the Go runtime looks every 20 µs whether something
// is stuck; the kernel's usual 50 µs make that every 90 µs, each a turn on the CPU that the command needs. The agent gives
// commands the usual slack.
const agentSlack = time.Millisecond

// Start implements dayfly.Driver.
func (d *Driver) Start(ctx context.Context, spec dayfly.InstanceSpec) (dayfly.Instance, error) {
	return ground.Start(ctx, d.Ground, spec, d.start)
}

func (d *Driver) start(ctx context.Context, installation string, spec dayfly.InstanceSpec) (*instance, error) {
	begun, err := d.Begin(ctx, installation, spec.ID, spec.Limits)
	if err != nil {
		return nil, err
	}
	inst, group := &instance{begun, spec.RunDir}, begun.Group
	undo := cleanup.Make(ground.Undo(ctx, inst.Destroy))
	defer undo.Clean()
	failpoint.Hit("linux.start.group")
	if err := group.Delegate(int(spec.UIDBase), int(spec.UIDBase)); err != nil {
		return nil, err
	}
	listen, err := listenAt(spec.RunDir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(listen)
	oom, err := unix.Open(group.OOMPath(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", group.OOMPath(), err)
	}
	defer unix.Close(oom)
	c, err := d.Bear(begun, order(spec))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	failpoint.Hit("linux.start.spawned")
	if err := d.raise(ctx, c, spec, offer{listen: listen, oom: oom}); err != nil {
		return nil, err
	}
	failpoint.Hit("linux.start.raised")
	c.Free() // the agent runs: it left this memory long ago
	if err := inst.Settle(inst.runDir, inst.CPUs); err != nil {
		return nil, err
	}
	undo.Release()
	return inst, nil
}

// offer is what a machine gets besides its mounts: descriptors of the caller.
type offer struct {
	listen, oom int
}

// raise brings a cloned machine to life: its network in parallel with everything else.
func (d *Driver) raise(ctx context.Context, c *birth.Child, spec dayfly.InstanceSpec, o offer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	attached := make(chan error, 1)
	go func() { attached <- ground.Attach(ctx, c, spec) }()
	err := d.boot(ctx, c, spec, o)
	if err != nil {
		cancel()
	}
	if aerr := <-attached; aerr != nil && (err == nil || !errors.Is(aerr, context.Canceled)) {
		err = errors.Join(err, fmt.Errorf("attach network: %w", aerr))
	}
	return err
}

// boot sends the machine what it needs and waits until it is ready.
func (d *Driver) boot(ctx context.Context, c *birth.Child, spec dayfly.InstanceSpec, o offer) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Channel.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.MapIDs(spec.UIDBase); err != nil {
		return err
	}
	failpoint.Hit("linux.start.mapped")
	userns, err := c.Open("user")
	if err != nil {
		return errors.Join(err, c.Died())
	}
	defer userns.Close()
	m, err := d.Roots.Make(spec.Root, int(userns.Fd()), spec.UIDBase)
	if err != nil {
		return err
	}
	defer m.Close()
	run, err := machine.Shown(spec.RunDir)
	if err != nil {
		return err
	}
	defer unix.Close(run)
	failpoint.Hit("linux.start.mounted")
	fds := boot.Descriptors{Root: m.Root, Dev: m.Dev, Run: run, Listen: o.listen, OOM: o.oom}
	err = boot.Send(c.Channel, d.config(spec), fds)
	if rerr := channel.Await(c.Channel); rerr != nil { // even after a failed send: the machine may have said why it hung up
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errors.Join(rerr, err, c.Died())
	}
	return errors.Join(err, c.FixScore(boot.Score))
}

// order says what PID 1 of a machine is.
func order(spec dayfly.InstanceSpec) birth.Order {
	return birth.Order{UIDBase: spec.UIDBase, Name: sealed.Name, Mode: "boot", TimerSlack: agentSlack, Capabilities: boot.Capabilities}
}

func (d *Driver) config(spec dayfly.InstanceSpec) boot.Config {
	cfg := boot.Config{
		ID:       spec.ID,
		Hostname: spec.ID,
		User:     spec.User,
		Workdir:  spec.Workdir,
		Env:      spec.Env,
		Granted:  int64(spec.Granted),
		Limits:   spec.Limits,
		Network:  spec.AttachNetwork != nil,
		Masked:   d.masked,
		ReadOnly: readOnlyPaths,
		Seccomp:  d.seccomp,
		OpenMax:  openFiles,
	}
	for path, content := range spec.Files {
		cfg.Files = append(cfg.Files, beneath.File{Path: path, Content: content})
	}
	return cfg
}

// listenAt makes the socket that the agent will accept on. The node dials it by its path, so it outlives the node.
func listenAt(runDir string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("make socket: %w", err)
	}
	undo := cleanup.Make(func() { _ = unix.Close(fd) })
	defer undo.Clean()
	if err := unix.Fchmod(fd, socketMode); err != nil { // bind gives the file this mode
		return -1, fmt.Errorf("protect socket: %w", err)
	}
	err = shortPath(runDir, func(path string) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: path}) })
	if err != nil {
		return -1, fmt.Errorf("bind socket in %s: %w", runDir, err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return -1, fmt.Errorf("listen: %w", err)
	}
	undo.Release()
	return fd, nil
}

// shortPath calls f with a path of the socket in runDir that fits into a socket address (107 bytes), however deep runDir is.
func shortPath(runDir string, f func(path string) error) error {
	dir, err := os.OpenFile(runDir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName))
}
