package control

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"dayfly.dev/dayfly"
)

// Node runs machines. Its truth about what runs wins over any record. All methods may be called in parallel.
type Node interface {
	// ID is the node's id.
	ID() string
	// Now reads the node's clocks.
	Now() dayfly.Instant
	// Isolation resolves what a request asked for to the driver that will run it. CodeInvalid: unknown or not usable here.
	Isolation(asked dayfly.Isolation) (dayfly.Isolation, error)
	// Admit tells whether a machine of these limits fits. CodeSizeUnavailable: it never will; CodeNoCapacity: not now;
	// CodeUnavailable: the node takes no machines, for example while no warden lives.
	Admit(ctx context.Context, limits dayfly.Limits, driver dayfly.Isolation) error
	// Create makes sb's machine and returns when it accepts commands. Ending ctx undoes it. On an error nothing is left.
	Create(ctx context.Context, sb dayfly.Sandbox, im dayfly.Image) error
	// Renew gives the machine a later lease; when it returns nil every enforcer obeys the new one. CodeGone: the machine
	// has ended; CodeUnavailable: it is not known who won, or no warden lives.
	Renew(ctx context.Context, id string, lease dayfly.Lease) error
	// Expire ends the machine if its lease file is really due: the reaper's half of the guarantee. ended is false, with the
	// lease as the host knows it, when it is not due.
	Expire(ctx context.Context, id string) (lease dayfly.Lease, ended bool, err error)
	// Destroy ends the machine and removes its disk, network and files. It returns once no process of it lives and its disk
	// is unlinked. Idempotent and legal for ids it never saw; of what was dead before, and nobody saw die, the Ending tells no time.
	// ErrLeftover: that much is done, and the Ending is true, but something
	// else could not be removed yet. The error joins a StepError for each step that failed.
	Destroy(ctx context.Context, id string) (Ending, error)
	// Pause freezes the machine: when it returns nil, nothing in it runs and nothing is said to it. Pausing a paused one succeeds.
	// CodeGone: the machine has ended; CodeInvalid: its driver cannot; CodeUnavailable: it did not freeze, and goes on. After
	// any other error Paused tells what became of it. Destroy, Renew and Expire wait for no Pause or Resume.
	Pause(ctx context.Context, id string) error
	// Resume lets the machine go on. Otherwise it is as Pause.
	Resume(ctx context.Context, id string) error
	// Paused asks the host whether the machine is frozen, by whomever. CodeGone: it has ended, or is ending.
	Paused(ctx context.Context, id string) (bool, error)
	// Machine gives access to a machine that accepts commands. CodeGone: it ended.
	Machine(ctx context.Context, id string) (Machine, error)
	// Endings delivers each machine that ended without Destroy being called: expired, crashed.
	Endings() <-chan Ending
	// Recover takes hold of what survived a restart and removes what has no valid lease. known are the records. note is told how each
	// known one ended before anything of that is removed, so that a crash in between loses no time; it is called from several
	// goroutines, and its error ends the recovery.
	Recover(ctx context.Context, known []dayfly.Sandbox, note func(Ending) error) (Recovery, error)
	// Problems lists what keeps the node from being ready, or nil.
	Problems(ctx context.Context) []Problem
	// Sweep is one bounded pass over the host: what no live machine and no work under way owns goes. known are the live records,
	// read before. It stops, and removes nothing, when it cannot look, or when more than half of what lives under a valid lease
	// would go; the latter unless force is set. What lives under a valid lease and has no record is told, for adoption, not removed. The error joins all that went wrong.
	// note is as of Recover; a sandbox that it has an error for is left for the next pass.
	Sweep(ctx context.Context, known []dayfly.Sandbox, force bool, note func(Ending) error) (Swept, error)
}

// ErrLeftover is among the errors of Node.Destroy when the machine has no process, address or disk any more.
var ErrLeftover = errors.New("only leftovers of the dead machine are there")

// Ending is how and when a machine ended, as the host saw it.
type Ending struct {
	ID     string
	At     time.Time     // zero: nobody saw it
	Boot   time.Duration // the same on this boot's CLOCK_BOOTTIME; 0: reckon it from At
	Reason dayfly.EndReason
}

// Recovery is what a node found after a restart.
type Recovery struct {
	Running []dayfly.Sandbox // alive, paused or not, with the record as its state file tells it and the lease as its lease file tells it
	Ended   []Ending         // of the known ones: ended while nobody looked, and nothing is left
	Ending  []Ending         // of the known ones: to be ended, but something of them could not be removed yet

	Findings []Finding // what was removed and of no known one
	Stopped  string    // why nothing was removed and no end was told, as of Sweep; or empty
}

// Problem is one reason for not being ready.
type Problem struct {
	Component string
	Message   string
}

// Machine is a running sandbox's agent. Errors are user-readable; CodeGone when the machine ended meanwhile.
// Ending ctx means that the client left: what becomes of its process is the process's OnDisconnect.
type Machine interface {
	Processes
	Files
}

// Processes runs commands inside.
type Processes interface {
	// Run runs a command to its end; nil stdin is end of file at once.
	Run(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error)
	// Start starts a command and follows its output.
	Start(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.OutputStream, dayfly.Process, error)
	// Output reads a process's output from offsets on; with follow until its end, else what is there now.
	Output(ctx context.Context, id string, from dayfly.Offsets, follow bool) (dayfly.OutputStream, error)
	// Result waits for a process's end. CodeGone: its record was dropped; CodeNotFound: never known.
	Result(ctx context.Context, id string) (dayfly.Result, error)
	// Await gives a process's record once it has exited. Unlike Result it makes nobody the process's client: that the caller leaves
	// decides nothing. CodeGone and CodeNotFound as for Result.
	Await(ctx context.Context, id string) (dayfly.Process, error)
	Process(ctx context.Context, id string) (dayfly.Process, error)
	Processes(ctx context.Context) ([]dayfly.Process, error)
	// Signal sends a signal ("TERM", "KILL", …) to the process's group, or with tree to every descendant; a KILL of the tree
	// returns once all are dead.
	Signal(ctx context.Context, id, signal string, tree bool) error
	// Launch starts a command in the background and returns its record; stdin, at most a request body, is fed to it meanwhile. The
	// caller is not its client: OnDisconnect decides once somebody was and left.
	Launch(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Process, error)
	// Resize sets the size of a process's terminal and has its program repaint. CodeConflict: it has none.
	Resize(ctx context.Context, id string, size dayfly.TerminalSize) error
	// AwaitPort returns once something inside listens on the TCP port; ctx bounds the wait.
	AwaitPort(ctx context.Context, port int) error
	// WriteStdin copies r to the process's standard input and closes it afterwards if closeAfter.
	WriteStdin(ctx context.Context, id string, r io.Reader, closeAfter bool) error
	// WriteStdinAt is WriteStdin of input that begins at an offset of all that the process was ever given, or at dayfly.StdinNext: what it
	// has already is skipped. It gives how much the process has accepted, or dayfly.StdinNext when it cannot tell. CodeConflict: a gap,
	// a closed input, or an agent that is too old for an offset.
	WriteStdinAt(ctx context.Context, id string, offset int64, r io.Reader, closeAfter bool) (accepted int64, err error)
}

// Files reads and writes inside as the sandbox's user. Paths are relative to the home directory or absolute.
type Files interface {
	Stat(ctx context.Context, path string) (dayfly.FileInfo, error)
	List(ctx context.Context, q dayfly.ListQuery) (entries []dayfly.FileInfo, next string, err error)
	// Read streams a file; the reader must be closed.
	Read(ctx context.Context, path string, r dayfly.FileRange) (dayfly.FileInfo, io.ReadCloser, error)
	// Write replaces a file atomically with all of r; mode nil keeps an existing file's or gives 0644.
	Write(ctx context.Context, path string, mode *fs.FileMode, r io.Reader) (dayfly.FileInfo, error)
	Remove(ctx context.Context, path string, recursive bool) error
	// The others are as of agentwire.Machine, and so are the limits of their queries.
	Mkdir(ctx context.Context, path string, mode *fs.FileMode, parents bool) (dayfly.FileInfo, error)
	Move(ctx context.Context, from, to string, overwrite bool) (dayfly.FileInfo, error)
	Chmod(ctx context.Context, path string, mode fs.FileMode, recursive bool) (dayfly.FileInfo, error)
	Search(ctx context.Context, q dayfly.SearchQuery) (dayfly.SearchResult, error)
	Find(ctx context.Context, q dayfly.FindQuery) (entries []dayfly.FileInfo, truncated bool, err error)
	// Watch streams changes below path; the stream must be closed.
	Watch(ctx context.Context, path string, recursive bool) (dayfly.ChangeStream, error)
	// ReadArchive streams a plain tar of a tree; the reader must be closed.
	ReadArchive(ctx context.Context, path string) (io.ReadCloser, error)
	// WriteArchive unpacks a tar (plain or gzip) into path.
	WriteArchive(ctx context.Context, path string, r io.Reader) error
}
