package agentwire

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"dayfly.dev/dayfly"
)

// ErrLost tells that the connection to the agent, or the agent's answer on it, ended before the outcome was seen. The
// request may or may not have had its effect.
var ErrLost = errors.New("the connection to the sandbox's agent was lost")

// Machine is what can be done inside a sandbox. The agent implements it; Client is the same at a distance. Every method may
// be called from several goroutines. Ending ctx means that the caller left: it ends the call, never the command that the
// call started. Paths are raw bytes; relative ones start at the home of the default user.
type Machine interface {
	// Run runs a command to its end and gives what was kept of its output. stdin nil is an end of file at once; it is read
	// in the background, and one Read of it may still be pending after Run returned. CodeInvalid: the command cannot be
	// started as asked (cwd, environment, user, no shell); CodeConflict: the id is taken. A missing program is a result.
	Run(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error)
	// Start starts a command and follows its output from the beginning. The caller closes the stream; ctx governs it too.
	Start(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.OutputStream, dayfly.Process, error)
	// Output reads a process's output from the given offsets on: what is there, or with follow until it exits. CodeNotFound:
	// the id was never known; CodeGone: its record is no longer kept; CodeInvalid: an offset beyond the output.
	Output(ctx context.Context, id string, from dayfly.Offsets, follow bool) (dayfly.OutputStream, error)
	// Result blocks until the process has exited. CodeNotFound and CodeGone as for Output.
	Result(ctx context.Context, id string) (dayfly.Result, error)
	// Process gives one record. CodeNotFound and CodeGone as for Output.
	Process(ctx context.Context, id string) (dayfly.Process, error)
	// Processes lists all records, oldest first.
	Processes(ctx context.Context) ([]dayfly.Process, error)
	// Signal sends a signal by name (TERM, KILL, …) to the process group of a process, or to its whole tree. A KILL of the
	// tree returns once every descendant is dead. Signalling what has ended succeeds. CodeInvalid: no such signal.
	Signal(ctx context.Context, id, signal string, wholeTree bool) error
	// WriteStdin writes all of r to a process's stdin and closes it if asked. CodeConflict: its stdin is closed.
	WriteStdin(ctx context.Context, id string, r io.Reader, closeAfter bool) error
	// WriteStdinAt is WriteStdin for who repeats what may have arrived: r begins at that byte of all that the process was ever given
	// (or dayfly.StdinNext), and what it has already is skipped. It gives how many bytes the process has accepted, also with an error.
	// CodeConflict: r would leave a gap, or its stdin is closed and r is more than it has.
	WriteStdinAt(ctx context.Context, id string, offset int64, r io.Reader, closeAfter bool) (accepted int64, err error)

	// Resize sets the size of a process's terminal; its foreground processes get SIGWINCH, also when the size is the one it had,
	// so that a program repaints. CodeConflict: it has no terminal. What has ended is left alone.
	Resize(ctx context.Context, id string, size dayfly.TerminalSize) error
	// AwaitPort returns once something inside listens on the TCP port, on whatever address. ctx bounds the wait.
	AwaitPort(ctx context.Context, port int) error

	// Stat describes a path without following a link at its end. Files answer CodeFileNotFound, CodeFilePermission,
	// CodeFileConflict (of the wrong type), CodeDiskFull and CodeInvalid (NUL, empty).
	Stat(ctx context.Context, path string) (dayfly.FileInfo, error)
	// List gives a page of a directory and the cursor of the next one, empty on the last.
	List(ctx context.Context, q dayfly.ListQuery) (entries []dayfly.FileInfo, next string, err error)
	// Read opens a file's content. A file that grows is read up to the size it had; one of size 0 until its end. The
	// caller closes the reader.
	Read(ctx context.Context, path string, part dayfly.FileRange) (dayfly.FileInfo, io.ReadCloser, error)
	// Write replaces a file's content at once when all of r has arrived, and makes missing parents. It keeps mode and owner
	// of an existing file unless mode is given; a new one has mode 0644 unless mode (or nil) says otherwise.
	Write(ctx context.Context, path string, mode *fs.FileMode, r io.Reader) (dayfly.FileInfo, error)
	// Remove removes a file, a link, an empty directory, or with recursive a tree.
	Remove(ctx context.Context, path string, recursive bool) error
	// Mkdir makes a directory, mode 0755 unless given, and with parents what is missing above it; then one that exists is
	// right too. CodeFileConflict: something is there already, or, without parents, nothing above it.
	Mkdir(ctx context.Context, path string, mode *fs.FileMode, parents bool) (dayfly.FileInfo, error)
	// Move renames within one file system, and copies and removes between two. With overwrite it replaces what may be replaced:
	// a file by a file, an empty directory by a directory; without it anything at to is CodeFileConflict.
	Move(ctx context.Context, from, to string, overwrite bool) (dayfly.FileInfo, error)
	// Chmod sets the permission bits of a file or directory, following a link, with recursive of all that is below too (links
	// there are left alone).
	Chmod(ctx context.Context, path string, mode fs.FileMode, recursive bool) (dayfly.FileInfo, error)
	// Search looks for text, in the order of List. Find looks for entries, alike; truncated tells that there are more.
	Search(ctx context.Context, q dayfly.SearchQuery) (dayfly.SearchResult, error)
	Find(ctx context.Context, q dayfly.FindQuery) (entries []dayfly.FileInfo, truncated bool, err error)
	// Watch tells the changes of a file, or of what is in a directory, with recursive of all that is below, also in directories made later. When
	// it returns, no later change is missed. The caller closes the stream; ctx governs it too. CodeUnavailable: the sandbox has no room for
	// another watch.
	Watch(ctx context.Context, path string, recursive bool) (dayfly.ChangeStream, error)
	// ReadArchive streams a tar of what is below a directory, or of one file. The caller closes the reader. An error while
	// it streams comes from Read.
	ReadArchive(ctx context.Context, path string) (io.ReadCloser, error)
	// WriteArchive unpacks a plain tar (the caller has undone any compression) into a directory that is made if missing.
	// CodeInvalid names an entry that is refused. What was unpacked before stays.
	WriteArchive(ctx context.Context, path string, r io.Reader) error
}

// Aged is a Machine that wants to know how old it is.
type Aged interface {
	// Aged is called with each hello that tells how long ago the sandbox's lease began, at least.
	Aged(age time.Duration)
}

// Watcher is a Machine that wants to know when requests begin and end.
type Watcher interface {
	// Begin is called before a request; the function that it returns after it.
	Begin() (end func())
}
