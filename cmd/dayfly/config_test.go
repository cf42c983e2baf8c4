package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// load runs a command that only reads its settings.
func load(t *testing.T, args ...string) (config, error) {
	t.Helper()
	var cfg config
	cmd := &cobra.Command{Use: "up", SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) (err error) {
		cfg, err = loadConfig(cmd)
		return err
	}}
	addSettings(cmd)
	cmd.SetArgs(args)
	return cfg, cmd.Execute()
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dayfly.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSettingsOverrideEachOther(t *testing.T) {
	file := configFile(t, "lease: {max: 4h}\nlisten: 127.0.0.1:1\ndisk: {pool: plain}\n")
	t.Setenv("DAYFLY_CONFIG", file)
	t.Setenv("DAYFLY_LISTEN", "127.0.0.1:2")
	t.Setenv("DAYFLY_DISK_POOL", "btrfs")
	cfg, err := load(t, "--listen", "127.0.0.1:3")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Listen != "127.0.0.1:3" || cfg.Disk.Pool != "btrfs" || time.Duration(cfg.Lease.Max) != 4*time.Hour {
		t.Errorf("listen %s from the flag, pool %s from the environment, lease.max %s from the file", cfg.Listen, cfg.Disk.Pool, time.Duration(cfg.Lease.Max))
	}
}

// The help shows a whole config file; it must load, and say nothing but the defaults.
func TestHelpShowsAFileThatLoads(t *testing.T) {
	_, yaml, _ := strings.Cut(settingsLong, "it says:\n")
	shown, err := load(t, "--config", configFile(t, yaml))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := load(t)
	if err != nil {
		t.Fatal(err)
	}
	if shown.Data != plain.Data || shown.Listen != plain.Listen || shown.Disk != plain.Disk || shown.Log != plain.Log {
		t.Errorf("the file in the help gives %+v, the defaults are %+v", shown, plain)
	}
}

func TestWrongSettings(t *testing.T) {
	for _, tt := range []struct{ name, file, want string }{
		{"typo", "listn: 1\n", "line 1: field listn is no setting"},
		{"typo below", "lease:\n  maxx: 1h\n", "line 2: field maxx is no setting"},
		{"no number", "sandbox: {pids: many}\n", "line 1: this setting takes no such value `many`"},
		{"no duration", "lease: {max: long}\n", `line 1: "long" is not a duration like 90s or 24h`},
		{"too long", "lease: {max: 25h}\n", "it must be between 0 and 24h"},
		{"no range", "network: {range: here}\n", `network.range "here" is not a CIDR`},
		{"no CIDR", "network: {allow_private: [10.0.0]}\n", `"10.0.0" is not a CIDR`},
		{"no pool", "disk: {pool: zfs}\n", "it must be one of auto, btrfs, plain"},
		{"negative", "sandbox: {max_live: -1}\n", "must not be negative"},
		{"tiny size", "sandbox: {sizes: {s: {vcpu: 1, memory_mb: 1, disk_mb: 1}}}\n", `size "s"`},
		{"no YAML", "a: [b\n", "line 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, "--config", configFile(t, tt.file))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
			if err != nil && (strings.Contains(err.Error(), "main.") || strings.Contains(err.Error(), "!!")) {
				t.Errorf("%v names types of the program", err)
			}
		})
	}
}

func TestDataMustBeADirectory(t *testing.T) {
	file := configFile(t, "")
	if _, err := load(t, "--data", file); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("error %v for a file", err)
	}
}

func TestLastWords(t *testing.T) {
	for _, tt := range []struct{ name, log, want string }{
		{"error after log lines", "time=1 msg=a\ndayfly: no disk\nhint: get one\n", "no disk\nhint: get one"},
		{"error alone", "dayfly: no disk\n", "no disk"},
		{"the last one", "dayfly: old\ntime=2 msg=b\ndayfly: new\n", "new"},
		{"a crash", "panic: x\ngoroutine 1\n", "\npanic: x\ngoroutine 1"},
		{"silence", "", "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := lastWords(tt.log); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// A background server runs in /, so every path must reach it whole, wherever it was set.
func TestPathsReachTheServerWhole(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("c.yaml", []byte("base_image: base.tar\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DAYFLY_DATA", "data")
	var args []string
	cmd := &cobra.Command{Use: "up", RunE: func(cmd *cobra.Command, _ []string) error {
		cfg, err := loadConfig(cmd)
		args = passOn(cmd, cfg)
		return err
	}}
	addSettings(cmd)
	cmd.SetArgs([]string{"--config", "c.yaml", "--lease-max", "1h"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(args, " ")
	want := "--data=" + dir + "/data --config=" + dir + "/c.yaml --base-image=" + dir + "/base.tar --lease-max=1h"
	if got != want {
		t.Errorf("server's arguments:\n%s\nwant\n%s", got, want)
	}
}

func TestPurgeKeepsWhatIsNotDayflys(t *testing.T) {
	for _, tt := range []struct {
		name, other string
		stays       bool
	}{{"own directory", "", false}, {"shared directory", "thesis.txt", true}} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			for _, name := range []string{"images/x/usr", "leases", "state", "helpers/sum", "logs", "warden", "pool"} {
				if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			files := []string{installationFile, nodeFile, adminKeyFile, serverLockFile, databaseFile, databaseFile + "-wal", adminKeyFile + ".new"}
			if tt.other != "" {
				files = append(files, tt.other)
			}
			for _, name := range files {
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			d := destroyer{cfg: config{Data: dir}, say: new(bytes.Buffer)}
			if err := d.purge(); err != nil {
				t.Fatal(err)
			}
			left, err := os.ReadDir(dir)
			switch {
			case !tt.stays && !os.IsNotExist(err):
				t.Errorf("the directory is still there with %v", left)
			case tt.stays && (len(left) != 1 || left[0].Name() != tt.other):
				t.Errorf("left: %v, want %s alone", left, tt.other)
			}
		})
	}
}
