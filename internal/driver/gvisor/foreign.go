package gvisor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"dayfly.dev/dayfly"
)

// What a runsc of the operator's is asked.
const (
	versionWait = 5 * time.Second
	versionMax  = 100 // characters kept
	versionHead = "runsc version "
)

// versionOf asks a runsc that the operator named for its version. CodeUnavailable: it is none, or does not run.
func versionOf(path string) (string, error) {
	fault := func(what string, err error) error {
		return dayfly.Errorf(dayfly.CodeUnavailable, "%s (gvisor.runsc_path) %s", path, what).WithCause(err).
			WithHint("name the runsc of a gVisor release, or leave gvisor.runsc_path empty to use the built-in one")
	}
	if !filepath.IsAbs(path) {
		return "", fault("is no absolute path", nil)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fault("does not exist", err)
	case err != nil:
		return "", fault("cannot be looked at", err)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o001 == 0:
		return "", fault("is no program that everybody may execute", nil)
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = []string{"PATH=/"}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fault("does not run", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	version, ok := strings.CutPrefix(strings.TrimSpace(line), versionHead)
	if !ok {
		return "", fault("is no runsc", nil)
	}
	return version[:min(len(version), versionMax)], nil
}
