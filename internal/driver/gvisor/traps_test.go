package gvisor_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/drivertest"
	"dayfly.dev/dayfly/internal/driver/gvisor"
)

// envForbid has this test run as a host that forbids something, and envHelpers tells it where to unpack.
const (
	envForbid  = "DAYFLY_TEST_FORBID"
	envHelpers = "DAYFLY_TEST_HELPERS"
)

// forbid has every thread of this process, and all that it starts, be refused a system call, if its second argument has these
// bits (0: always).
func forbid(call, bits uint32, errno unix.Errno) error {
	const (
		nr, secondArg = 0, 24 // of seccomp_data
		retErrno      = 0x00050000
		retAllow      = 0x7fff0000
	)
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: secondArg},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: bits, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: retErrno | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: retAllow},
	}
	if bits == 0 {
		f[3] = unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: 0}
	}
	p := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&p))); errno != 0 {
		return errno
	}
	return nil
}

// TestHostThatForbidsTraps: a host whose own filters keep gVisor from working is told as such, and is left as it was.
func TestHostThatForbidsTraps(t *testing.T) {
	if what := os.Getenv(envForbid); what != "" {
		probeForbidden(t, what)
		return
	}
	w := drivertest.NewWorld(t)
	before := w.Residue(t)
	for _, tt := range []struct{ what, want string }{
		{"listener", "seccomp with a listener: operation not permitted"},
		{"ptrace", "forbids ptrace: operation not permitted"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self, "-test.run=^TestHostThatForbidsTraps$", "-test.v")
			cmd.Env = append(os.Environ(), envForbid+"="+tt.what, envHelpers+"="+w.Dir)
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var c dayfly.Capability
			_, said, _ := strings.Cut(string(out), "capability ")
			if err := json.NewDecoder(strings.NewReader(said)).Decode(&c); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if c.Works || !strings.Contains(strings.Join(c.Reasons, "\n"), tt.want) || len(c.Install) == 0 {
				t.Errorf("Probe = %+v, want %q, and what to do", c, tt.want)
			}
			if after := w.Residue(t); !slices.Equal(before, after) {
				t.Errorf("left behind: %v, before %v", after, before)
			}
		})
	}
}

// probeForbidden probes with something forbidden, and prints the outcome.
func probeForbidden(t *testing.T, what string) {
	call, bits := uint32(unix.SYS_PTRACE), uint32(0)
	if what == "listener" {
		call, bits = unix.SYS_SECCOMP, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	}
	if err := forbid(call, bits, unix.EPERM); err != nil {
		t.Fatal(err)
	}
	c := probe(t, gvisor.Options{
		Installation: dayfly.NewInstallation(), Dir: os.Getenv(envHelpers), Agent: func() ([]byte, error) { return []byte("an agent"), nil },
	})
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("capability " + string(b) + "\n")
}
