package boot

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/beneath"
	"dayfly.dev/dayfly/internal/driver/channel"
)

// Machine is a booted machine, seen from its PID 1. The caller owns its descriptors.
type Machine struct {
	ID      string
	User    dayfly.User
	Workdir string // where commands run by default; empty means the user's home
	Env     map[string]string
	Granted time.Duration
	Limits  dayfly.Limits
	// Listener accepts connections from the node.
	Listener net.Listener
	// Cgroup is the machine's own cgroup directory, of a mount that nothing inside can see. Groups may be made below it.
	Cgroup *os.File
	// Run is the node's read-only directory for this machine, with the file "grant" in it. A path inside could be moved away.
	Run *os.File
	// OOMScore is this process's oom_score_adj, open for writing: later it could not be opened any more.
	OOMScore *os.File
	// OOMEvents has a line "oom_kill N": processes of the machine that were killed for lack of memory.
	OOMEvents *os.File

	channel *os.File
}

// boot is one run.
type boot struct {
	cfg    Config
	fds    [fdCount]int
	mounts pseudo
	cgroup int
	run    int // directory
	score  int // oom_score_adj
	// emptyUsed tells that mounts.empty is attached already.
	emptyUsed bool
}

// step is one thing to do. Its name is reported when it fails.
type step struct {
	name string
	do   func(*boot) error
}

// early steps need nothing from the driver: they run while it makes the root file system. The driver has made the namespaces
// and limited the bounding set before the exec, when this process had one thread.
var early = []step{
	{"set name", (*boot).setName},
	{"make mounts private", (*boot).privateMounts},
	{"make file systems", (*boot).makePseudo},
	{"open own cgroup", (*boot).openCgroup},
	{"open own score", (*boot).openScore},
	{"set kernel switches", (*boot).setSwitches},
}

// late steps run once the Config is here, in this order.
var late = []step{
	{"limit IPC memory", (*boot).limitIPC},
	{"close network", (*boot).closeNetwork},
	{"write files", func(b *boot) error { return beneath.WriteFiles(b.fds[fdRoot], b.cfg.Files) }},
	{"mount root", (*boot).mountRoot},
	{"mount file systems", (*boot).mountPseudo},
	{"mask paths", (*boot).maskPaths},
	{"enter root", (*boot).enterRoot},
	{"set hostname", (*boot).setHostname},
	{"set limits", (*boot).setLimits},
	{"close standard error", (*boot).closeStderr},
	{"confine", (*boot).confine},
}

// Run boots the machine that this process is PID 1 of. It must be the first thing the process does. On an error the driver
// has been told and the process should exit.
func Run() (*Machine, error) {
	runtime.LockOSThread() // mount work stays on one thread; namespaces and rights are changed on all
	defer runtime.UnlockOSThread()
	end := os.NewFile(channel.FD, "boot channel")
	fail := func(step string, err error) error {
		_ = channel.Answer(end, channel.Failed(step, err))
		return fmt.Errorf("boot: %s: %w", step, err)
	}
	var b boot
	if err := unix.CloseRange(channel.FD+1, ^uint(0), 0); err != nil {
		return nil, fail("close descriptors", err)
	}
	unix.CloseOnExec(channel.FD)
	for _, s := range early {
		if err := s.do(&b); err != nil {
			return nil, fail(s.name, err)
		}
	}
	if err := channel.Receive(channel.FD, &b.cfg, b.fds[:]); err != nil {
		return nil, fail("receive config", err)
	}
	for _, s := range late {
		if err := s.do(&b); err != nil {
			return nil, fail(s.name, err)
		}
	}
	m, err := b.machine()
	if err != nil {
		return nil, fail("open listener", err)
	}
	m.channel = end
	return m, nil
}

// machine wraps what the agent needs.
func (b *boot) machine() (*Machine, error) {
	f := os.NewFile(uintptr(b.fds[fdListen]), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return &Machine{
		ID:        b.cfg.ID,
		User:      b.cfg.User,
		Workdir:   b.cfg.Workdir,
		Env:       b.cfg.Env,
		Granted:   time.Duration(b.cfg.Granted),
		Limits:    b.cfg.Limits,
		Listener:  l,
		Cgroup:    os.NewFile(uintptr(b.cgroup), "cgroup"),
		Run:       os.NewFile(uintptr(b.run), "run"),
		OOMScore:  os.NewFile(uintptr(b.score), "oom_score_adj"),
		OOMEvents: os.NewFile(uintptr(b.fds[fdOOM]), "oom events"),
	}, nil
}

// Ready tells the driver that the agent accepts connections. It is called once.
func (m *Machine) Ready() error {
	if err := channel.Answer(m.channel, channel.Reply{}); err != nil {
		return fmt.Errorf("boot: tell that the machine is ready: %w", err)
	}
	return nil
}

// Fail tells the driver that the agent could not start. It is called instead of Ready.
func (m *Machine) Fail(err error) {
	_ = channel.Answer(m.channel, channel.Reply{Step: "start agent", Error: err.Error()})
}
