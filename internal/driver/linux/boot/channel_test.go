package boot

import (
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// channel gives the driver's and the machine's end of a boot channel.
func channel(t testing.TB) (*net.UnixConn, *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(pair[0]), "driver")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "machine")
	t.Cleanup(func() { _, _ = conn.Close(), theirs.Close() })
	return conn.(*net.UnixConn), theirs
}

func TestConfigTravels(t *testing.T) {
	driver, machine := channel(t)
	want := Config{
		ID: "sb1", Hostname: "h", User: dayfly.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"},
		Env: map[string]string{"A": strings.Repeat("x", 1<<20)}, Files: []File{{"/etc/hosts", []byte{0, 1, 255}}},
		Granted: 5, Limits: dayfly.Limits{VCPU: 1}, Masked: []string{"/proc/kcore"}, ReadOnly: []string{"/proc/sys"},
		Seccomp: []byte{1, 2, 3}, OpenMax: 7,
	}
	var fds [fdCount]*os.File
	for i := range fds {
		f, err := os.CreateTemp(t.TempDir(), "fd")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fds[i] = f
	}
	sent := make(chan error, 1)
	go func() {
		sent <- Send(driver, want, Descriptors{
			Root: int(fds[fdRoot].Fd()), Dev: int(fds[fdDev].Fd()), Run: int(fds[fdRun].Fd()),
			Listen: int(fds[fdListen].Fd()), OOM: int(fds[fdOOM].Fd()),
		})
	}()
	got, received, err := receive(int(machine.Fd()))
	if err = errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("received %+v", got)
	}
	for i, fd := range received {
		f := os.NewFile(uintptr(fd), "received")
		a, aerr := f.Stat()
		b, berr := fds[i].Stat()
		if err := errors.Join(aerr, berr); err != nil || !os.SameFile(a, b) {
			t.Errorf("descriptor %d is another file: %v", i, err)
		}
		_ = f.Close()
	}
}

func TestAwait(t *testing.T) {
	for _, tt := range []struct{ name, said, want string }{
		{"ready", "{}", ""},
		{"died", "", "died"},
		{"failed", `{"step":"mount root","error":"no"}`, "mount root: no"},
		{"nonsense", "\x00\xff", "read boot reply"},
		{"endless", strings.Repeat("x", replyMax*2), "read boot reply"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			driver, machine := channel(t)
			go func() {
				_, _ = io.WriteString(machine, tt.said)
				_ = machine.Close()
			}()
			err := Await(driver)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Await = %v, want %q", err, tt.want)
			}
			_ = driver.Close()
		})
	}
}

// TestFailureArrives: a machine that fails before it has read its Config is heard all the same.
func TestFailureArrives(t *testing.T) {
	driver, machine := channel(t)
	sent := make(chan error, 1)
	go func() {
		sent <- Send(driver, Config{ID: strings.Repeat("x", 1<<10)}, Descriptors{})
	}()
	answered := make(chan error, 1)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	go func() { answered <- answer(machine, reply{Step: "early", Error: "bad luck"}) }()
	if err := Await(driver); err == nil || !strings.Contains(err.Error(), "early: bad luck") {
		t.Errorf("Await = %v", err)
	}
	_ = driver.Close()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

func TestALackOfRoomIsToldAsOne(t *testing.T) {
	for name, full := range map[string]bool{"no room": true, "something else": false} {
		t.Run(name, func(t *testing.T) {
			driver, machine := channel(t)
			answered := make(chan error, 1)
			go func() { answered <- answer(machine, reply{Step: "write files", Error: "no", Full: full}) }()
			if err := Await(driver); err == nil || errors.Is(err, unix.ENOSPC) != full {
				t.Errorf("Await = %v", err)
			}
			_ = driver.Close()
			if err := <-answered; err != nil {
				t.Error(err)
			}
		})
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte{0, 0, 0, 9, '{'})
	f.Fuzz(func(t *testing.T, said []byte) {
		driver, machine := channel(t)
		go func() {
			if len(said) > 0 {
				_, _, _ = driver.WriteMsgUnix(said[:min(len(said), headBytes)], unix.UnixRights(0, 0, 0, 0, 0), nil)
				_, _ = driver.Write(said[min(len(said), headBytes):])
			}
			_ = driver.Close()
		}()
		_, fds, err := receive(int(machine.Fd()))
		for _, fd := range fds {
			if fd > 2 {
				_ = unix.Close(fd)
			}
		}
		if err == nil && len(said) < headBytes {
			t.Error("accepted a message without a length")
		}
	})
}
