package dayfly

import (
	"io/fs"
	"time"
)

// FileType is what a path is, by lstat.
type FileType string

// The file types.
const (
	FileRegular   FileType = "file"
	FileDirectory FileType = "directory"
	FileSymlink   FileType = "symlink"
	FileOther     FileType = "other"
)

// FileInfo describes one entry inside a sandbox.
type FileInfo struct {
	Name       string // base name, raw bytes
	Path       string // absolute inside the sandbox, raw bytes
	Type       FileType
	SizeBytes  int64
	Mode       fs.FileMode // permission bits with setuid, setgid, sticky
	ModifiedAt time.Time
	Target     string // of a symlink
	Error      string // why this entry could not be read fully, or empty
}

// FileRange is a part of a file. Length -1 means to the end.
type FileRange struct {
	Offset int64
	Length int64
}

// ListQuery asks for a page of a directory.
type ListQuery struct {
	Path      string
	Recursive bool
	Limit     int    // 1–1000
	Cursor    string // as the page before gave it, or empty
}
