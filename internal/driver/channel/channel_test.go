package channel

import (
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ends gives the driver's and the machine's end of a channel.
func ends(t testing.TB) (*net.UnixConn, *os.File) {
	t.Helper()
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}

// config stands for a driver's configuration.
type config struct {
	ID    string            `json:"id"`
	Env   map[string]string `json:"env"`
	Files [][]byte          `json:"files"`
}

func TestConfigTravels(t *testing.T) {
	driver, machine := ends(t)
	want := config{ID: "sb1", Env: map[string]string{"A": strings.Repeat("x", 1<<20)}, Files: [][]byte{{0, 1, 255}}}
	var fds [3]*os.File
	for i := range fds {
		f, err := os.CreateTemp(t.TempDir(), "fd")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fds[i] = f
	}
	sent := make(chan error, 1)
	go func() { sent <- Send(driver, want, int(fds[0].Fd()), int(fds[1].Fd()), int(fds[2].Fd())) }()
	var got config
	received := make([]int, len(fds))
	err := Receive(int(machine.Fd()), &got, received)
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
		{"nonsense", "\x00\xff", "read reply"},
		{"endless", strings.Repeat("x", replyMax*2), "read reply"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			driver, machine := ends(t)
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
	driver, machine := ends(t)
	sent := make(chan error, 1)
	go func() { sent <- Send(driver, config{ID: strings.Repeat("x", 1<<10)}, 0) }()
	answered := make(chan error, 1)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	go func() { answered <- Answer(machine, Reply{Step: "early", Error: "bad luck"}) }()
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
			driver, machine := ends(t)
			answered := make(chan error, 1)
			go func() { answered <- Answer(machine, Reply{Step: "write files", Error: "no", Full: full}) }()
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
		driver, machine := ends(t)
		go func() {
			if len(said) > 0 {
				_, _, _ = driver.WriteMsgUnix(said[:min(len(said), headBytes)], unix.UnixRights(0, 0, 0, 0, 0), nil)
				_, _ = driver.Write(said[min(len(said), headBytes):])
			}
			_ = driver.Close()
		}()
		var cfg config
		fds := make([]int, 5)
		err := Receive(int(machine.Fd()), &cfg, fds)
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
