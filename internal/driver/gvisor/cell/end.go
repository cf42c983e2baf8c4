package cell

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const stateMax = 1 << 20 // bytes of runsc's record of a machine

// findVital finds the user-space kernel and its file server in runsc's own record.
func (c *cell) findVital() error {
	files, err := filepath.Glob(stateDir + "/*.state")
	if err != nil || len(files) != 1 {
		return fmt.Errorf("%d records of runsc: %w", len(files), errors.Join(err))
	}
	f, err := os.Open(files[0])
	if err != nil {
		return err
	}
	defer f.Close()
	var st struct {
		Gofer   int `json:"goferPid"`
		Sandbox struct {
			PID int `json:"pid"`
		} `json:"sandbox"`
	}
	if err := json.NewDecoder(io.LimitReader(f, stateMax)).Decode(&st); err != nil {
		return fmt.Errorf("read runsc's record: %w", err)
	}
	if st.Sandbox.PID <= 1 || st.Gofer <= 1 {
		return fmt.Errorf("runsc's record names processes %d and %d", st.Sandbox.PID, st.Gofer)
	}
	c.vital = []int{st.Sandbox.PID, st.Gofer}
	return nil
}

// reap waits for whatever comes to this process as PID 1 of its namespace, until a vital process has ended or nothing is left.
// The end of this process kills the rest.
func (c *cell) reap() error {
	if source := commandSource(c.vital[0]); source != 0 {
		ended, err := ending(source)
		if err != nil {
			return err
		}
		go func() {
			ended()
			os.Exit(0)
		}()
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case err == nil && slices.Contains(c.vital, pid), errors.Is(err, unix.ECHILD):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait: %w", err)
		}
	}
}

// commandSource finds the child of the user-space kernel that it clones all address spaces from: the first that it made, which
// has no command line. Without it nothing could be started inside any more, and nobody but this process would notice. 0: there
// is none, as with a runsc that works otherwise.
func commandSource(kernel int) (source int) {
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0
	}
	for _, name := range names {
		line, err := os.ReadFile(filepath.Dir(name) + "/cmdline")
		if err != nil || len(line) > 0 {
			continue
		}
		stat, err := os.ReadFile(name)
		var parent int
		if err != nil {
			continue
		}
		if _, err := fmt.Sscanf(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " %c %d", new(rune), &parent); err != nil || parent != kernel {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil && (source == 0 || pid < source) {
			source = pid
		}
	}
	return source
}

// ending gives a function that returns once a process has ended, which may be another's child.
func ending(pid int) (wait func(), err error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "process") // the runtime waits, without a thread for it
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	return func() {
		_ = raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
		_ = f.Close()
	}, nil
}

// confine gives up what the cell needs no more, which is everything: from here on it only waits.
func confine() error {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for fd := range 3 { // standard error was a pipe to the node
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return err
		}
	}
	if err := setSwitch("user/max_user_namespaces", "0"); err != nil { // runsc has made those that it wants
		return err
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("renounce new privileges: %w", errno)
	}
	if err := setCapabilities(0); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// setCapabilities leaves every thread of this process these capabilities.
func setCapabilities(keep uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	low, high := uint32(keep), uint32(keep>>32)
	data := [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
