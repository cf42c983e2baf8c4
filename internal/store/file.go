package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"dayfly.dev/dayfly"
)

const (
	headerBytes   = 100
	headerMagic   = "SQLite format 3\x00"
	headerAppAt   = 68 // application_id, big endian
	applicationID = 0x64666c79
)

// inspect tells by its first bytes whether a file is a Dayfly database, before SQLite may touch it.
func inspect(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return notOurs(path, "it is not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return dayfly.Errorf(dayfly.CodeUnavailable, "the database %s cannot be opened", path).WithDetail("file", path).
			WithHint("make the file readable for the server").WithCause(err)
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, headerBytes)
	if _, err := io.ReadFull(f, head); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return damaged(path, fmt.Sprintf("the file is cut short to %d bytes", info.Size()))
		}
		return damaged(path, "").WithCause(err)
	}
	if string(head[:len(headerMagic)]) != headerMagic {
		return notOurs(path, "it is not a SQLite database")
	}
	if id := binary.BigEndian.Uint32(head[headerAppAt:]); id != applicationID {
		return notOurs(path, fmt.Sprintf("its application id is %#x", id))
	}
	return nil
}

func notOurs(path, why string) *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeUnavailable, "%s is not a Dayfly database: %s", path, why).WithDetail("file", path).
		WithHint("use another data directory, or put a backup in the file's place; nothing was changed")
}

// removeDatabase removes a file and its neighbours. What is not there is no error, and a file that stays shows at the next
// step.
func removeDatabase(path string) {
	_ = os.Remove(path)
	removeNeighbours(path)
}

func removeNeighbours(path string) {
	for _, suffix := range []string{"-wal", "-shm", "-journal"} {
		_ = os.Remove(path + suffix)
	}
}

// syncFolder makes a rename in the folder survive a power loss.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}
