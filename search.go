package dayfly

import "time"

// Limits of searching.
const (
	SearchLimitDefault = 100
	SearchLimitMax     = 1000 // matches, or entries found, of one answer
	SearchContextMax   = 10   // lines before and after a match
	SearchTextMax      = 1000 // bytes of a line that are shown
	SearchGlobsMax     = 32
	SearchPatternMax   = 4 << 10 // bytes
)

// SearchQuery looks for text in the files below a path, as grep does. Links are not followed, and what the kernel makes up (/proc,
// /sys) is entered only where Path is in it. A line ends with LF or CR LF.
type SearchQuery struct {
	Path       string // a file or a directory
	Pattern    string // a regular expression in RE2's syntax, of one line
	Literal    bool   // Pattern is plain text
	IgnoreCase bool
	Include    []string // globs of base names, or of paths below Path where they hold a slash; empty means every file
	Exclude    []string // alike; a directory that matches is not entered
	Hidden     bool     // also what begins with a dot
	Context    int      // lines shown before and after each match, 0–SearchContextMax
	Limit      int      // matches, 1–SearchLimitMax
}

// SearchMatch is one line that matches. Texts are raw bytes without the line's end.
type SearchMatch struct {
	Path   string // absolute inside the sandbox, raw bytes
	Line   int64  // from 1
	Column int64  // of the first match in the line, in bytes from 1
	Text   string // at most SearchTextMax bytes, cut around the match
	Cut    bool   // Text is not the whole line
	Before []string
	After  []string
}

// SearchResult is what a search found.
type SearchResult struct {
	Matches   []SearchMatch
	Files     int64 // searched
	Skipped   int64 // binary, unreadable (a directory is one) or not regular
	Truncated bool  // there are more matches, or the time or work that one search may take was used up
}

// FindQuery looks for entries below a directory, as find does, and goes where a search goes. Zero fields do not restrict; a size
// restricts to files.
type FindQuery struct {
	Path           string
	Names          []string // globs of base names, or of paths below Path where they hold a slash; any of them
	Exclude        []string // alike; a directory that matches is not entered
	Type           FileType
	MinBytes       int64
	MaxBytes       int64 // 0: no limit
	ModifiedAfter  time.Time
	ModifiedBefore time.Time
	MaxDepth       int  // 1: only what is directly in Path; 0: no limit
	Hidden         bool // also what begins with a dot
	Limit          int  // entries, 1–SearchLimitMax
}

// ChangeKind is what happened to a watched path.
type ChangeKind string

// The kinds of changes.
const (
	ChangeCreated  ChangeKind = "created"  // also moved here from where nobody watches
	ChangeModified ChangeKind = "modified" // content; told when it was written, not only when it was closed
	ChangeMetadata ChangeKind = "metadata" // mode, owner or times
	ChangeMoved    ChangeKind = "moved"    // From holds where it was
	ChangeDeleted  ChangeKind = "deleted"  // also moved to where nobody watches
	ChangeOverflow ChangeKind = "overflow" // changes were lost: list again
)

// FileChange is one change below a watched path.
type FileChange struct {
	Kind ChangeKind
	Path string   // absolute inside the sandbox, raw bytes; of an overflow the watched path
	From string   // of a move
	Type FileType // as far as it is known, or empty
}

// ChangeStream reads the changes below a watched path.
type ChangeStream interface {
	// Next blocks for the next change. io.EOF: the watched path itself is gone. Any other error means that the stream broke.
	Next() (FileChange, error)
	// Close ends the watch. It may be called while Next blocks, which then ends with an error.
	Close() error
}
