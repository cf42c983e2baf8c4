package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
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
	f, err := os.OpenFile(filepath.Join(dataDir, serverLockFile), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the server's lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another server already uses the data directory %s\nhint: `dayfly status` shows it; choose another with --data", dataDir)
		}
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	return f, nil
}

// serverLocked tells whether a server holds the data directory.
func serverLocked(dataDir string) bool {
	f, err := os.OpenFile(filepath.Join(dataDir, serverLockFile), os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
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
