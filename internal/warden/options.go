package warden

import (
	"log/slog"
	"path/filepath"
	"time"

	"dayfly.dev/dayfly/internal/clock"
)

const (
	wardenName    = "warden"
	lockName      = "lock"
	heartbeatName = "heartbeat"
	handoverName  = "handover"
	logsName      = "logs"
	logName       = "warden.log"
	serverLock    = "server.lock"
)

// Limits of the warden.
const (
	heartbeatEvery = time.Second
	HeartbeatFresh = 3 * time.Second  // an older heartbeat is that of a stopped warden
	killMax        = 30 * time.Second // one attempt to end a machine
	retryWait      = time.Second      // after an attempt that failed
	handoverWait   = 3 * time.Second  // for an older warden to make room, then it is killed
	leaseLost      = 15 * time.Minute // granted, from when the warden first saw it, to a machine whose lease never could be read
	logMaxBytes    = 1 << 20          // of the log when a warden starts; a longer one is emptied
)

// oomScore keeps the kernel from ending the warden when the host runs out of memory.
const oomScore = "-900"

// Options is what Run needs.
type Options struct {
	DataDir string
	Build   string // version of this binary, for the heartbeat
	Replace bool   // take over from a warden that runs already, instead of refusing
	Clock   clock.Clock
	Log     *slog.Logger
}

// paths of one data directory.
func wardenDir(dataDir string) string     { return filepath.Join(dataDir, wardenName) }
func lockPath(dataDir string) string      { return filepath.Join(dataDir, wardenName, lockName) }
func heartbeatPath(dataDir string) string { return filepath.Join(dataDir, wardenName, heartbeatName) }

// lastBootPath is the last heartbeat of the boot before.
func lastBootPath(dataDir string) string { return heartbeatPath(dataDir) + ".before" }
func handoverPath(dataDir string) string { return filepath.Join(dataDir, wardenName, handoverName) }
func serverPath(dataDir string) string   { return filepath.Join(dataDir, serverLock) }
