// Package agent is what runs inside a sandbox: it starts commands, keeps their output, reads and writes files as the
// sandbox's user, reaps every orphan, and ends the machine itself when its lease is long over. It is PID 1 of a real machine,
// or a plain process without privileges under the fake driver, where it does the same with weaker means (no leaf cgroups,
// no change of user).
//
// It holds no credential, opens no connection and knows nothing of HTTP, images or leases beyond the seconds it was granted.
// It imports little, because its memory is paid once per sandbox. The protocol is agentwire's; Agent is its Machine.
//
// To add an ability, add a method to agentwire.Machine and a file here named after the verb. Whatever touches a path runs on
// a thread with the user's own rights (threads.go); whatever starts a process goes through children (children.go).
package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
)

// Config says whom and what the agent serves. It travels as JSON where the agent is started; descriptors do not.
type Config struct {
	User    dayfly.User       `json:"user"`    // default user of commands, and the user of all file operations
	Workdir string            `json:"workdir"` // where commands run by default; empty means the user's home
	Env     map[string]string `json:"env"`     // the image's and the sandbox's environment; overrides the agent's own
	// MemoryBytes is the sandbox's memory limit, from which the retention of output follows. 0 means unknown.
	MemoryBytes int64 `json:"memory_bytes"`
	// SwitchUser: the agent is root inside and runs everything as its user. Otherwise all runs as the agent's own user.
	SwitchUser bool `json:"switch_user"`
	// Granted is the life that was granted at birth; 0 means that the agent ends nothing by itself.
	Granted time.Duration `json:"granted_ns"`
	// GrantFile holds the seconds granted since birth and is replaced when they grow, or is empty.
	GrantFile string `json:"grant_file"`

	// Cgroup is the open directory of the sandbox's delegated v2 cgroup, in which each command gets a leaf, or nil.
	Cgroup *os.File `json:"-"`
	// OOMScore is /proc/self/oom_score_adj opened for writing before privileges were dropped, or nil to open it here.
	OOMScore *os.File `json:"-"`
	// OOMEvents is a file with a line "oom_kill N" (memory.events, or memory.oom_control of v1), or nil when unknown.
	OOMEvents *os.File `json:"-"`
}

// acceptRetry is how long the agent waits when it has no descriptor for a new connection.
const acceptRetry = 200 * time.Millisecond

// connectionsMax bounds the connections that are served at once: a node has one, two while it restarts.
const connectionsMax = 16

// Agent does inside what a node asks for.
type Agent struct {
	cfg      Config
	clock    *clock // set before anything is served
	children *children
	table    *table
	untidied untidied
	threads  *threads
	null     *os.File      // standard input of commands that were given none; nil when the machine has no /dev/null
	disk     chan struct{} // slots for blocking reads and writes of files
	watches  chan struct{} // slots for watches
	idle     *idler
	oom      *oomLedger
	ports    *portWatch
	buffers  sync.Pool // of the pumps, so that a silent background child holds none
	passwd   accountFile
	group    accountFile
	warm     chan struct{} // closed when all threads exist; nothing is served before
}

var _ agentwire.Machine = (*Agent)(nil)

// Aged implements agentwire.Aged.
func (a *Agent) Aged(age time.Duration) { a.clock.aged(age) }

// Serve runs the agent on a listener until ctx ends or the listener fails. It takes over the process: it reaps every child,
// handles signals, and sets the umask and the garbage collector. It is called once.
func Serve(ctx context.Context, l net.Listener, cfg Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := takeOver(cfg.MemoryBytes); err != nil {
		return err
	}
	a, err := newAgent(cfg)
	if err != nil {
		return err
	}
	listenAgain()
	a.catchSignals()
	if a.clock, err = newClock(cfg.Granted, cfg.GrantFile); err != nil {
		return err
	}
	go a.clock.run(ctx, func() { a.die(exitLeaseOver) })
	err = a.accept(ctx, l)
	if os.Getpid() != 1 {
		a.children.killAll() // the end of a PID 1 does this by itself
	}
	return err
}

func newAgent(cfg Config) (*Agent, error) {
	if cfg.User.Home == "" || !path.IsAbs(cfg.User.Home) {
		return nil, fmt.Errorf("the default user's home %q is not absolute", cfg.User.Home)
	}
	if cfg.Workdir == "" {
		cfg.Workdir = cfg.User.Home
	}
	kids, err := newChildren(cfg.OOMScore, cfg.Cgroup)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg, children: kids, table: newTable(retainBytes(cfg.MemoryBytes)), threads: newThreads(cfg.SwitchUser),
		disk: make(chan struct{}, diskSlots), watches: make(chan struct{}, watchStreamsMax), idle: newIdler(), oom: newLedger(cfg.OOMEvents), ports: newPortWatch(), warm: make(chan struct{}),
		buffers: sync.Pool{New: func() any { return new([pumpBuffer]byte) }},
		passwd:  accountFile{name: "/etc/passwd"}, group: accountFile{name: "/etc/group"},
	}
	if null, err := openNull(); err == nil {
		a.null = null
	}
	go kids.reap()
	go func() {
		defer close(a.warm)
		warmThreads()
	}()
	return a, nil
}

// openNull opens /dev/null if it is the real one: the image is hostile.
func openNull() (*os.File, error) {
	f, err := os.OpenFile("/dev/null", os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(1, 3) {
		_ = f.Close()
		return nil, errors.New("/dev/null is not the null device")
	}
	_ = unix.SetNonblock(int(f.Fd()), false)
	return f, nil
}

// accept serves connections until ctx ends. Then it waits for those that are left.
func (a *Agent) accept(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	slots := make(chan struct{}, connectionsMax)
	for {
		slots <- struct{}{}
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
			<-slots
			pause(ctx, acceptRetry) // commands hold what is missing; the agent must outlive that
			continue
		}
		if err != nil {
			return fmt.Errorf("accept connection: %w", err)
		}
		conns.Go(func() {
			defer func() { <-slots }()
			<-a.warm
			_ = agentwire.ServeConn(ctx, conn, a) // an error of one connection concerns only its node
		})
	}
}

// pause waits for d, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
