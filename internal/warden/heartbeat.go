package warden

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"dayfly.dev/dayfly"
)

// heartbeatBytes is the file's fixed size, padded with spaces: it is rewritten in place, in one write.
const heartbeatBytes = 512

// Heartbeat is the warden's sign of life. After a reboot the last one dates the end of the boot before.
type Heartbeat struct {
	BootID string
	Boot   time.Duration // CLOCK_BOOTTIME of that boot
	Wall   time.Time     // for people and for dating a reboot
	PID    int
	Build  string
	Place  string // mark of the data directory's path: a directory that was moved has a warden that looks at the old place
}

type heartbeatFile struct {
	BootID string    `json:"boot_id"`
	BootNS int64     `json:"boottime_ns"`
	Wall   time.Time `json:"wall"`
	PID    int       `json:"pid"`
	Build  string    `json:"build"`
	Place  string    `json:"place,omitempty"`
}

// place is the mark of a data directory's path; it is short, because a heartbeat is.
func place(dataDir string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(filepath.Clean(dataDir)))
	return strconv.FormatUint(h.Sum64(), 16)
}

// writeHeartbeat overwrites f.
func writeHeartbeat(f *os.File, now dayfly.Instant, o Options) error {
	build := o.Build
	if len(build) > 128 {
		build = build[:128]
	}
	b, err := json.Marshal(heartbeatFile{BootID: now.BootID, BootNS: int64(now.Boot), Wall: now.Wall.UTC(), PID: os.Getpid(), Build: build, Place: place(o.DataDir)})
	if err != nil {
		return fmt.Errorf("write heartbeat: %w", err)
	}
	if len(b) >= heartbeatBytes {
		return fmt.Errorf("write heartbeat: %d bytes", len(b))
	}
	b = append(b, bytes.Repeat([]byte{' '}, heartbeatBytes-len(b)-1)...)
	if _, err := f.WriteAt(append(b, '\n'), 0); err != nil {
		return fmt.Errorf("write heartbeat: %w", err)
	}
	return nil
}

// keepLastBoot puts the heartbeat of an earlier boot aside before it is overwritten: it dates the end of what ran then. It is
// for people and bills, so a failure keeps nothing from running.
func keepLastBoot(dataDir string, now dayfly.Instant) {
	if b, err := ReadHeartbeat(dataDir); err == nil && b.BootID != now.BootID {
		_ = os.Rename(heartbeatPath(dataDir), lastBootPath(dataDir))
	}
}

// ReadHeartbeat reads the last sign of life of a data directory's warden. The error is fs.ErrNotExist when there never was
// one.
func ReadHeartbeat(dataDir string) (Heartbeat, error) { return readHeartbeat(heartbeatPath(dataDir)) }

func readHeartbeat(path string) (Heartbeat, error) {
	var err error
	for range 2 { // the first read may meet a write
		var b []byte
		if b, err = readRegular(path, heartbeatBytes); err != nil {
			break
		}
		var f heartbeatFile
		if err = decodeStrict(b, &f); err == nil {
			return Heartbeat{BootID: f.BootID, Boot: time.Duration(f.BootNS), Wall: f.Wall, PID: f.PID, Build: f.Build, Place: f.Place}, nil
		}
	}
	return Heartbeat{}, fmt.Errorf("read heartbeat: %w", err)
}
