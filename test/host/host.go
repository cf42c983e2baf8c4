// Package host runs the real binary for tests: servers on data directories and ports of their own, their deaths, and what of
// them is on this host. It is not part of the product and knows it from outside only: its commands, its API, the kernel.
//
// To look for one more kind of leftover, add it to Snapshot, and to Server.Left if it bears the installation's mark.
package host

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// EnvBin names the directory of the binary, the base image and the wheels; without it, tests look beside the repository's
// test directory.
const EnvBin = "DAYFLY_TEST_BIN"

const (
	binDefault = "../../bin" // from a package's directory, where its tests run
	binaryName = "dayfly"
	imageName  = "base.tar.zst"
	wheelsName = "wheels"
)

// Bin is the directory of the binary.
func Bin() string {
	dir := os.Getenv(EnvBin)
	if dir == "" {
		dir = binDefault
	}
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// Wheels is the directory of Python packages for the package index of the tests.
func Wheels() string { return filepath.Join(Bin(), wheelsName) }

// Usable tells by its error why the real binary cannot run here, or gives nil.
func Usable() error {
	if os.Geteuid() != 0 {
		return errors.New("it needs root")
	}
	for _, name := range []string{binaryName, imageName} {
		if _, err := os.Stat(filepath.Join(Bin(), name)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is not in %s (make image build makes it; %s names another directory)", name, Bin(), EnvBin)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// parallel is how many tests of a package run at once: most of them wait for a lease to end.
const parallel = 6

// Parallel lets more tests run at once than there are processors, unless the caller's command line says how many. TestMain
// calls it before the tests run.
func Parallel() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(parallel))
	}
}

// Need skips the test, with the reason, where the real binary cannot run.
func Need(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short")
	}
	if err := Usable(); err != nil {
		t.Skip(err)
	}
}
