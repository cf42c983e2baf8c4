package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestADyingServerIsWaitedFor: a killed server that still holds its lock is not taken for one that runs.
func TestADyingServerIsWaitedFor(t *testing.T) {
	data := t.TempDir()
	lock, err := lockServer(data)
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command("sleep", "1000")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, serverInfoFile), []byte(`{"url":"http://127.0.0.1:1","pid":`+strconv.Itoa(server.Process.Pid)+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if info, running := settledServer(data); !running || info.PID != server.Process.Pid {
		t.Errorf("a server that lives: %+v, %t", info, running)
	}
	if err := unix.Kill(server.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	released := time.AfterFunc(300*time.Millisecond, func() { _ = lock.Close() }) // its last thread ends
	defer released.Stop()
	if info, running := settledServer(data); running { // not waited for yet: a zombie
		t.Errorf("a server that was killed: %+v", info)
	}
	_ = server.Wait()
}
