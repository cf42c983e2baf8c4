package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly/internal/cli"
)

// program runs one of this program's own commands and gives what it wrote.
func program(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	root := cli.Root(cli.Options{Stdout: &out, Stderr: &errs, Version: "test", Extra: []*cobra.Command{installCommand(), uninstallCommand()}})
	code = cli.Execute(root, args)
	return out.String(), errs.String(), code
}

// files lists a directory's files with their modes.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		out = append(out, strings.TrimPrefix(path, dir+"/")+" "+info.Mode().String())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestInstallAndUninstall(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this needs root")
	}
	if exists(unitPath()) {
		t.Skip("Dayfly is installed on this machine")
	}
	prefix, data := t.TempDir(), filepath.Join(t.TempDir(), "data")
	want := []string{
		"bin/dayfly -rwxr-xr-x",
		"share/bash-completion/completions/dayfly -rw-r--r--",
		"share/fish/vendor_completions.d/dayfly.fish -rw-r--r--",
		"share/zsh/site-functions/_dayfly -rw-r--r--",
	}
	for _, again := range []bool{false, true} {
		out, said, code := program(t, "install", "--prefix", prefix, "--data", data, "-o", "json")
		if code != 0 {
			t.Fatalf("install: exit %d: %s", code, said)
		}
		if got := files(t, prefix); !slices.Equal(got, want) {
			t.Errorf("installed %q, want %q", got, want)
		}
		var result struct {
			Done []string `json:"done"`
		}
		if err := json.Unmarshal([]byte(out), &result); err != nil {
			t.Fatal(err)
		}
		if wantDone := len(want); again && len(result.Done) != 0 || !again && len(result.Done) != wantDone {
			t.Errorf("again %v: it did %q", again, result.Done)
		}
	}
	if err := os.MkdirAll(filepath.Join(data, "images"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"admin.key", "dayfly.db", "dayfly.db-wal", "images/x"} { // the installation file is lost
		if err := os.WriteFile(filepath.Join(data, file), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, said, code := program(t, "uninstall", "--prefix", prefix, "--data", data); code != 0 || !strings.Contains(said, "removed "+data) ||
		!strings.Contains(said, "removed "+prefix+"/bin/dayfly") {
		t.Errorf("uninstall: exit %d: %s", code, said)
	}
	if got := files(t, prefix); len(got) > 0 || exists(data) {
		t.Errorf("uninstall left %q; data directory: %v", got, exists(data))
	}
	if _, said, code := program(t, "uninstall", "--prefix", prefix, "--data", data); code != 0 || strings.Contains(said, "removed") {
		t.Errorf("uninstall again: exit %d: %s", code, said)
	}
}

func TestUninstallKeepsData(t *testing.T) {
	if os.Geteuid() != 0 || exists(unitPath()) {
		t.Skip("this needs root, and a machine without Dayfly")
	}
	prefix, data := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(data, adminKeyFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "of somebody else"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		left []string
	}{
		{[]string{"--keep-data"}, []string{"admin.key -rw-------", "of somebody else -rw-------"}},
		{nil, []string{"of somebody else -rw-------"}},
	} {
		args := append([]string{"uninstall", "--prefix", prefix, "--data", data}, tt.args...)
		if _, said, code := program(t, args...); code != 0 {
			t.Fatalf("%q: exit %d: %s", args, code, said)
		}
		if got := files(t, data); !slices.Equal(got, tt.left) {
			t.Errorf("%q left %q, want %q", args, got, tt.left)
		}
	}
}

func TestInstallRefuses(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{"start without systemd", "--start needs --systemd", []string{"--start"}},
		{"a place that is no directory", "--prefix", []string{"--prefix", blocked}},
		{"a setting that is none", "disk.pool", []string{"--disk-pool", "zfs"}},
		{"a path that no unit can hold", "cannot be written into a systemd unit", []string{"--systemd", "--dry-run", "--data", "/a\nb"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, said, code := program(t, append([]string{"install"}, tt.args...)...)
			if code == 0 || !strings.Contains(said, tt.want) {
				t.Errorf("exit %d: %s", code, said)
			}
		})
	}
}

func TestInstallDryRun(t *testing.T) {
	prefix, data := filepath.Join(t.TempDir(), "prefix"), filepath.Join(t.TempDir(), "data")
	t.Setenv("DAYFLY_LOG_LEVEL", "debug")
	_, said, code := program(t, "install", "--systemd", "--start", "--dry-run", "--prefix", prefix, "--data", data, "--listen", "127.0.0.1:1")
	if code != 0 || exists(prefix) || exists(data) {
		t.Fatalf("exit %d: %s", code, said)
	}
	for _, want := range []string{"would copy ", "would write " + unitPath(), "would run systemctl enable dayfly.service", "would run systemctl start dayfly.service"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
}
