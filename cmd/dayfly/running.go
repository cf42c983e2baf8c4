package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/reserve"
)

// Files of a data directory that tell of the server.
const (
	serverLockFile = "server.lock" // flocked by the running server
	serverInfoFile = "server.json" // where it listens
	adminKeyFile   = "admin.key"
	logsDir        = "logs"
	serverLog      = "server.log"
)

// serverInfo is what a running server says of itself.
type serverInfo struct {
	URL     string `json:"url"`
	PID     int    `json:"pid"`
	Version string `json:"version"`
}

// lockServer takes the data directory for this process. The lock ends with the process.
func lockServer(dataDir string) (*os.File, error) {
	f, err := reserve.Lock(filepath.Join(dataDir, serverLockFile))
	if errors.Is(err, reserve.ErrHeld) {
		return nil, dayfly.Errorf(dayfly.CodeConflict, "another server already uses the data directory %s", dataDir).
			WithHint("`dayfly status` shows it; choose another with --data")
	}
	return f, err
}

// serverLocked tells whether a server holds the data directory. One that cannot be told is taken for held.
func serverLocked(dataDir string) bool {
	held, err := reserve.Held(filepath.Join(dataDir, serverLockFile))
	return held || err != nil
}

// runningServer finds the server of a data directory. Info is empty while a server that runs has not said where it listens.
func runningServer(dataDir string) (serverInfo, bool) {
	var info serverInfo
	if !serverLocked(dataDir) {
		return info, false
	}
	if b, err := os.ReadFile(filepath.Join(dataDir, serverInfoFile)); err == nil {
		_ = json.Unmarshal(b, &info)
	}
	return info, true
}

// How long a server that is just dying is waited for, and how often its lock is looked at: no event tells of that.
const (
	dyingWait  = 5 * time.Second
	dyingEvery = 5 * time.Millisecond
)

// settledServer is runningServer for who is about to start one. A killed server keeps its lock until its last thread has ended, and a
// machine that it was just making keeps a copy of it until it is a program of its own or hears that the server died: both are waited for.
func settledServer(dataDir string) (serverInfo, bool) {
	for deadline := time.Now().Add(dyingWait); ; time.Sleep(dyingEvery) {
		info, running := runningServer(dataDir)
		if !running || info.PID <= 0 || !dying(info.PID) || time.Now().After(deadline) {
			return info, running
		}
		awaitDeath(info.PID, time.Until(deadline))
	}
}

// awaitDeath waits until the last thread of a process has ended.
func awaitDeath(pid int, limit time.Duration) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has
	}
	defer unix.Close(fd)
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, limit.Milliseconds())))
}

// dying tells whether a process is dead but for some threads, or gone, or has a SIGKILL that it did not get to see yet.
func dying(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name {
		case "State":
			if strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X") {
				return true
			}
		case "SigPnd", "ShdPnd":
			pending, err := strconv.ParseUint(value, 16, 64)
			if err == nil && pending&(1<<(syscall.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}

// needRoot refuses what only root can do.
func needRoot(what string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return dayfly.Errorf(dayfly.CodeForbidden, "%s needs root", what).WithHint("run it with sudo")
}

// writeServerInfo says where this server listens.
func writeServerInfo(dataDir string, info serverInfo) error {
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	path := filepath.Join(dataDir, serverInfoFile)
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("say where the server listens: %w", err)
	}
	return os.Rename(path+".new", path)
}
