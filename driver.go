package dayfly

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"time"
)

// Driver is an isolation backend: it supplies isolated machines and a byte stream to the agent in each. Everything else
// (commands, files, ports) is the agent's, so it behaves the same under every driver. The conformance suite is drivertest.
type Driver interface {
	// Name is the isolation that this driver gives.
	Name() Isolation
	// Probe tells whether this host can run the driver. It may start short-lived processes and leaves nothing behind.
	Probe(ctx context.Context) Capability
	// Start makes a machine and returns once its agent accepts connections. On an error nothing of it is left: no process,
	// cgroup, mount or descriptor. It blocks for as long as ctx allows; ending ctx undoes the start.
	Start(ctx context.Context, spec InstanceSpec) (Instance, error)
	// Recover takes hold of a running machine after a restart of the node, from what Instance.State gave.
	// CodeGone: no process of it lives any more; nothing else of it is touched (the caller reclaims).
	Recover(ctx context.Context, id string, state json.RawMessage) (Instance, error)
	// List gives the ids of everything this driver finds on the host for this installation, recorded or not.
	// An error means "could not look", never "nothing there".
	List(ctx context.Context) ([]string, error)
	// Reclaim removes everything of id that is left on the host, whether or not it was ever recorded. It kills what still
	// lives, is idempotent, and returns nil once nothing is left.
	Reclaim(ctx context.Context, id string) error
}

// Instance is a driver's running machine. Its methods may be called from several goroutines.
type Instance interface {
	ID() string
	// Dial opens one byte stream to the agent. CodeGone: the machine has ended.
	Dial(ctx context.Context) (net.Conn, error)
	// Done is closed once no process of the machine lives, whoever ended it.
	Done() <-chan struct{}
	// Usage reads the machine's counters from the host.
	Usage(ctx context.Context) (Usage, error)
	// Destroy ends every process and returns once none lives, its network is cut and its disk is not in use. Space,
	// namespaces and interfaces follow within seconds. Idempotent; it does every step and joins the errors.
	Destroy(ctx context.Context) error
	// State is what Recover needs after a restart. It never changes during the machine's life.
	State() json.RawMessage
}

// InstanceSpec says what machine to make. All paths are host paths owned by the node.
type InstanceSpec struct {
	ID     string
	Limits Limits
	// UIDBase is the host uid (and gid) that 0 inside is mapped to; IDCount ids belong to this machine alone.
	UIDBase uint32
	Root    RootFS
	// RunDir is a directory made by the node for this machine (mode 0711). Its subdirectory "in" (0755) is shown inside, read-only,
	// at /run/dayfly (it holds the file "grant"); the driver keeps its sockets beside it.
	RunDir string
	User   User // whom commands run as by default
	// Workdir is where commands run unless they say otherwise; empty means the user's home.
	Workdir string
	// Env is set for every process inside, beside what the agent sets by itself (HOME, USER, PATH, LANG).
	Env map[string]string
	// Files are put into the root file system before the first process runs, path → content, mode 0644, owner root:
	// /etc/hosts, /etc/hostname, /etc/resolv.conf.
	Files map[string][]byte
	// AttachNetwork connects the machine's network namespace to the outside, brings its loopback up and turns IPv6 off in it;
	// nil for loopback only, which is the driver's work then. The driver calls it once, as soon as the namespace exists,
	// perhaps while the agent still boots, and waits for it before Start returns.
	AttachNetwork func(ctx context.Context, netns *os.File) error
	// Lease is the grant at birth, for the agent's own last-resort clock.
	Granted time.Duration
}

// IDCount is how many user ids each machine has of its own.
const IDCount = 65536

// RootFS is the root file system of a machine: an overlay of read-only lower directories under an upper one of its own.
// Ids on disk are native (0 is root inside): the driver maps both with idmapped mounts.
type RootFS struct {
	Lower []string // topmost first
	Upper string   // directory that holds "u" (upper) and "w" (work), both on one file system; belongs to this machine alone
}

// User is who commands run as inside.
type User struct {
	Name string // login name, as in the image's /etc/passwd, or empty
	UID  uint32
	GID  uint32
	Home string // absolute
}

// Usage are counters of a running machine.
type Usage struct {
	MemoryBytes int64
	CPU         time.Duration
	PIDs        int
	OOMKills    int64 // processes killed for lack of memory since the start
}

// OOMEnds says what memory exhaustion ends under a driver.
type OOMEnds string

// What memory exhaustion ends.
const (
	OOMEndsCommand OOMEnds = "command"
	OOMEndsSandbox OOMEnds = "sandbox" // or a command of it, where that one had the most
)

// Capability is what a probe of a driver found.
type Capability struct {
	Works   bool
	Reasons []string // why it does not work or works with less, one sentence each
	Install []string // what to install or change, one sentence each
	OOM     OOMEnds
	// IdleBytes is the measured memory of one idle machine.
	IdleBytes int64
	// StartsPerCPU is for how many starts at once a CPU does the most of them in all; 0: more do no harm.
	StartsPerCPU int
}
