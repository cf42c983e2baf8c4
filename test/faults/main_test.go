package faults_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"dayfly.dev/dayfly/test/host"
)

// seedDefault makes a run of all tests plan the same rounds each time; what the machine's timing makes of them still differs.
// `make faults` draws another.
const seedDefault = 1795985362960773102

var (
	rounds = flag.Int("rounds", roundsDefault(), "rounds of the campaign (environment ROUNDS)")
	seed   = flag.Uint64("seed", seedDefault, "seed of the first round; the next one has the next number; 0 draws one")
	only   = flag.String("point", "", "arm this failpoint in every round")
)

func roundsDefault() int {
	if n, err := strconv.Atoi(os.Getenv("ROUNDS")); err == nil {
		return n
	}
	return 60
}

// binary is the program with failpoints; scripts/faults.sh builds it.
func binary(t testing.TB) string {
	t.Helper()
	host.Need(t)
	path := filepath.Join(host.Bin(), "dayfly-faults")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the program with failpoints is not there (scripts/faults.sh makes it): %v", err)
	}
	return path
}

// busybox is a static program that is a whole small system.
const busybox = "/bin/busybox"

// smallImage writes a root file system of one program, which makes sandboxes cheap, and gives its file.
func smallImage(t testing.TB) string {
	t.Helper()
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Skipf("no static shell for a small image: %v", err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr", "var"} {
		put(tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, nil)
	}
	put(tar.Header{Typeflag: tar.TypeDir, Name: "home/user/", Mode: 0o755, Uid: 1000, Gid: 1000}, nil)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, program)
	for _, name := range []string{"sh", "cat", "grep", "sleep", "true", "setsid", "mkdir", "rm", "ls", "ps"} {
		put(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox"}, nil)
	}
	put(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644},
		[]byte("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"))
	put(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nuser:x:1000:\n"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "small.tar")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// freePort is an address of this machine that nobody listens on.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start starts a server with failpoints, the small image, and an address that it keeps. points is the file that arms them.
func start(t testing.TB, flags ...string) (s *host.Server, points string) {
	t.Helper()
	program := binary(t)
	points = filepath.Join(t.TempDir(), "failpoints")
	s = host.StartFor(t, host.Options{
		Binary: program, BaseImage: smallImage(t), Flags: append([]string{"--listen", freePort(t)}, flags...),
		Env: []string{"DAYFLY_FAILPOINTS_FILE=" + points},
	})
	return s, points
}

// within gives nil once check does, or its last error after the limit. It is for what no event tells.
func within(limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %w", limit, err)
		}
		<-tick.C
	}
}

var errNotYet = errors.New("not yet")

// pause waits: a fault takes time, and nothing tells that it has taken enough.
func pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

func TestMain(m *testing.M) {
	host.Parallel()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	os.Exit(m.Run())
}
