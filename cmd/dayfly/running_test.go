package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

const dyingEnv = "DAYFLY_TEST_DYING"

// init makes this program, when the test asks for it, a process whose first thread has ended while another lives on for a
// moment with all descriptors: what a killed server is for as long as its threads die.
func init() {
	if os.Getenv(dyingEnv) == "" {
		return
	}
	runtime.LockOSThread() // package initialisation runs on the first thread
	go func() {
		time.Sleep(300 * time.Millisecond)
		os.Exit(0)
	}()
	_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
}

// holds has a process hold the data directory as a server does.
func holds(t *testing.T, data string, server *exec.Cmd) {
	t.Helper()
	lock, err := lockServer(data)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	server.ExtraFiles = []*os.File{lock}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	info := `{"url":"http://127.0.0.1:1","pid":` + strconv.Itoa(server.Process.Pid) + `}`
	if err := os.WriteFile(filepath.Join(data, serverInfoFile), []byte(info), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAServerThatLivesRuns(t *testing.T) {
	data, server := t.TempDir(), exec.Command("sleep", "1000")
	holds(t, data, server)
	if info, running := settledServer(data); !running || info.PID != server.Process.Pid {
		t.Errorf("a server that lives: %+v, %t", info, running)
	}
	_ = server.Process.Kill()
	_ = server.Wait()
}

// TestADyingServerIsWaitedFor: one that still holds its lock with its last threads is not taken for one that runs.
func TestADyingServerIsWaitedFor(t *testing.T) {
	data := t.TempDir()
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), dyingEnv+"=1")
	holds(t, data, server)
	for deadline := time.Now().Add(10 * time.Second); !dying(server.Process.Pid) && time.Now().Before(deadline); {
		runtime.Gosched() // the kernel gives no event for the end of one thread
	}
	if _, running := runningServer(data); !running {
		t.Fatal("it holds no lock while it dies: the test shows nothing")
	}
	if info, running := settledServer(data); running {
		t.Errorf("a server that was dying: %+v", info)
	}
	_ = server.Wait()
}

// TestWhatADeadServerWasMakingIsWaitedFor: a machine that is being born has a copy of the lock, which outlives the server.
func TestWhatADeadServerWasMakingIsWaitedFor(t *testing.T) {
	data := t.TempDir()
	server := exec.Command("sh", "-c", "sleep 0.5 &")
	holds(t, data, server)
	if err := server.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, running := runningServer(data); !running {
		t.Fatal("nobody holds the lock: the test shows nothing")
	}
	if info, running := settledServer(data); running {
		t.Errorf("a server that is dead: %+v", info)
	}
}
