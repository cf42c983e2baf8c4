package dayfly

import "time"

// OnDisconnect says what becomes of a process whose last client went away.
type OnDisconnect string

// The choices. Grace is the default of a plain exec, Continue of a background process.
const (
	DisconnectGrace    OnDisconnect = "grace"    // killed DisconnectGracePeriod after the last client left
	DisconnectKill     OnDisconnect = "kill"     // killed at once
	DisconnectContinue OnDisconnect = "continue" // never killed for it
)

// Restart says whether a process is started again after it ended.
type Restart string

// The choices. Never is the default.
const (
	RestartNever     Restart = "never"
	RestartOnFailure Restart = "on-failure" // after an end with an exit code other than 0 that nobody asked for
)

// TerminalSize is the size of a pseudo terminal in characters, each side 1 to TerminalSizeMax.
type TerminalSize struct {
	Cols int
	Rows int
}

// TerminalSizeMax bounds each side of a terminal.
const TerminalSizeMax = 1000

// NoTimeout as ProcessSpec.Timeout lets a process run until it ends or its sandbox does.
const NoTimeout time.Duration = -1

// StdinNext as the offset of a write to standard input means behind all that was accepted; as a count it means that an older agent does
// not count.
const StdinNext int64 = -1

// Limits of processes.
const (
	RestartsDefault       = 5 // how often a failing process is started again unless told otherwise
	RestartsMax           = 100
	ProcessNameMax        = 63 // bytes of a process's name
	DisconnectGracePeriod = 30 * time.Second
	ExecTimeoutDefault    = 10 * time.Minute
	ExecTimeoutMax        = 24 * time.Hour
	CaptureDefaultBytes   = 1 << 20 // of each stream; half head, half tail
)

// ProcessSpec is a command to run inside a sandbox. An exec and a process are one thing.
type ProcessSpec struct {
	ID      string // pr…, chosen by the caller
	Name    string // unique among the sandbox's running processes, or empty; 1–63 of [a-zA-Z0-9_.-]
	Command string // run by bash -c, else sh -c; or empty
	Argv    []string
	Cwd     string // relative to the user's home; empty means the home
	User    string // name or uid inside; empty means the image's user
	Env     map[string]string
	Timeout time.Duration // 0 means ExecTimeoutDefault; NoTimeout
	// Terminal runs the command on a pseudo terminal of this size, which is its standard input and output at once: all output is
	// stdout, and stdin stays open. nil means pipes.
	Terminal *TerminalSize
	// Restart is empty for RestartNever. What a failed try left running is killed before the next one. The timeout covers all tries,
	// the given input is for the first; a signal that ends processes (TERM, KILL, INT, QUIT, ABRT, or the one it died of) ends them all.
	Restart  Restart
	Restarts int // at most so often, 1–RestartsMax; 0 means RestartsDefault
	// Follow: output is slowed to the pace of its attached reader instead of dropping the middle of it.
	Follow bool
	// OpenStdin: stdin stays open after the given input ended, until a later write closes it.
	OpenStdin    bool
	OnDisconnect OnDisconnect // empty means DisconnectGrace
	CaptureBytes int          // of each stream; 0 means CaptureDefaultBytes
}

// ProcessStatus is running or exited.
type ProcessStatus string

// The statuses of a process.
const (
	ProcessRunning ProcessStatus = "running"
	ProcessExited  ProcessStatus = "exited"
)

// Process is the agent's record of one command.
type Process struct {
	ID           string
	PID          int // inside the sandbox; 0 while it rests between two tries
	Status       ProcessStatus
	Name         string
	Command      string        // as given, or the argv joined by spaces, cut to 4 KiB
	Terminal     *TerminalSize // as it is now; nil for pipes
	Restart      Restart
	Restarts     int           // how often it was started again
	CPU          time.Duration // used by it and all its descendants, as far as the sandbox can tell
	MemoryBytes  int64         // resident, of it and all its living descendants
	Processes    int           // living ones, itself among them
	StartedAgo   time.Duration
	OnDisconnect OnDisconnect
	Exit         *Exit // nil while it runs
	StdoutBytes  int64 // written so far
	StderrBytes  int64
}

// Exit is how a process ended.
type Exit struct {
	Code        int    // 128+n after death by signal n; 126, 127 as a shell gives them
	Signal      string // KILL, TERM, …; empty unless it died of one
	TimedOut    bool
	OOMKilled   bool
	Duration    time.Duration
	StdoutBytes int64
	StderrBytes int64
}

// Captured is what was kept of one output stream: its head and tail. Bytes counts everything that was written.
type Captured struct {
	Head  []byte
	Tail  []byte // follows Head directly when nothing was dropped
	Bytes int64
}

// Truncated tells whether bytes between head and tail were dropped.
func (c Captured) Truncated() bool { return c.Bytes > int64(len(c.Head)+len(c.Tail)) }

// Result is a finished exec with its output.
type Result struct {
	ID     string
	Exit   Exit
	Stdout Captured
	Stderr Captured
}

// OutputKind is what an Output event carries.
type OutputKind string

// The kinds of output events.
const (
	OutputStdout  OutputKind = "stdout"
	OutputStderr  OutputKind = "stderr"
	OutputDropped OutputKind = "dropped" // Bytes bytes of Stream from Offset on are no longer kept
	OutputExit    OutputKind = "exit"    // last; only when the end was really seen
)

// Output is one event of a process's output stream.
type Output struct {
	Kind   OutputKind
	Stream OutputKind // of a dropped event: OutputStdout or OutputStderr
	Offset int64      // of Data's first byte in its stream
	Data   []byte     // valid until the next call
	Bytes  int64      // of a dropped event
	Exit   *Exit      // of an exit event
}

// Offsets says where to resume the output of a process.
type Offsets struct {
	Stdout int64
	Stderr int64
}

// OutputStream reads the output of a process. Closing it detaches; it does not end the process.
type OutputStream interface {
	// Next blocks for the next event. After the exit event, or where following ends, it returns io.EOF. Any other error means
	// that the stream broke and the outcome was not seen.
	Next() (Output, error)
	Close() error
}
