package cell

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limits of what runsc and the agent may say while they start.
const (
	saidMax  = 8 << 10
	readyMax = 4 << 10
)

// Run is the cell's life. It returns when nothing of the machine lives any more, or with an error when it could not be
// started; the driver has been told then. It must be the first thing the process does.
func Run() error {
	runtime.LockOSThread() // the thread that starts runsc bears a filter; namespaces are the whole process's
	channel := os.NewFile(ChannelFD, "cell channel")
	if err := unix.CloseRange(ChannelFD+1, ^uint(0), 0); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	unix.CloseOnExec(ChannelFD)
	fail := func(step string, err error) error {
		_ = answer(channel, reply{Step: step, Error: err.Error(), Full: noRoom(err)})
		return fmt.Errorf("%s: %w", step, err)
	}
	cfg, err := receive(channel)
	if err != nil {
		return fail("receive the cell's config", err)
	}
	if err := setName(); err != nil {
		return fail("set name", err)
	}
	if err := makeTree(cfg); err != nil {
		return fail("make the cell", err)
	}
	if err := writeSpec(cfg); err != nil {
		return fail("write the machine's specification", err)
	}
	if err := awaitGo(channel); err != nil {
		return fail("wait for the network", err)
	}
	if err := quietMembarrier(); err != nil {
		return fail("load filter", err)
	}
	if err := launch(cfg); err != nil {
		return fail("start the machine", err)
	}
	if err := answer(channel, reply{}); err != nil {
		return err // nobody waits for this machine: it ends with this process
	}
	return reap()
}

// launch starts the machine and returns when its agent accepts connections.
func launch(cfg Config) error {
	config, err := json.Marshal(cfg.Guest)
	if err != nil {
		return err
	}
	in, feed, err := os.Pipe()
	if err != nil {
		return err
	}
	ready, out, err := os.Pipe()
	if err != nil {
		return err
	}
	args := append(append([]string{}, cfg.Flags...), "run", "-detach", "-bundle", bundleDir, cfg.ID)
	cmd := exec.Command(runscPath, args...)
	cmd.Args[0] = "runsc"
	cmd.Env = []string{"PATH=/", "TMPDIR=/tmp", "HOME=/"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run runsc: %w", err)
	}
	_, _ = in.Close(), out.Close()
	go func() {
		_, _ = feed.Write(config) // a machine that dies does not read it
		_ = feed.Close()
	}()
	text, err := awaitReady(ready)
	_ = ready.Close()
	werr := cmd.Wait()
	switch {
	case err == nil && werr == nil:
		return nil
	case text != "":
		return fmt.Errorf("%s", text)
	case werr != nil:
		return werr
	}
	return err
}

// readyText is what the agent says first when it accepts connections, and failText what it says when it could not start.
const (
	readyText = "dayfly-agent: ready\n"
	failText  = "dayfly-agent: "
)

// awaitReady reads until the agent says that it is ready. Otherwise text is what was said instead.
func awaitReady(r io.Reader) (text string, err error) {
	var b bytes.Buffer
	buf := make([]byte, readyMax)
	for b.Len() < saidMax {
		n, err := r.Read(buf)
		b.Write(buf[:n])
		if strings.Contains(b.String(), readyText) {
			return "", nil
		}
		if err != nil {
			return strings.TrimSpace(b.String()), errors.New("the machine ended while it started")
		}
	}
	return strings.TrimSpace(b.String()), errors.New("the machine talks instead of starting")
}

// reap waits for whatever comes to this process as PID 1 of its namespace, until nothing is left.
func reap() error {
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait: %w", err)
		}
	}
}

// noRoom tells whether a step failed for lack of room on the machine's disk.
func noRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}

// setName gives the cell a name in process lists: it was executed through a descriptor, which has none.
func setName() error {
	name, err := unix.BytePtrFromString("dayfly-cell")
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
}

// quietMembarrier answers one command of membarrier(2) with EINVAL, for this thread and what it starts. Every process of
// gVisor registers for it at its start, which waits for a grace period of the kernel: 8 to 20 ms each, seven times a start.
func quietMembarrier() error {
	const (
		offsetNr  = 0  // of seccomp_data
		offsetArg = 16 // low half of its first argument
		register  = 16 // MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED
		retErrno  = 0x00050000
		retAllow  = 0x7fff0000
	)
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetNr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_MEMBARRIER, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetArg},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: register, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: retErrno | uint32(unix.EINVAL)},
		{Code: unix.BPF_RET | unix.BPF_K, K: retAllow},
	}
	p := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&p))); errno != 0 {
		return errno
	}
	return nil
}
