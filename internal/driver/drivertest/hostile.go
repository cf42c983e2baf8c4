package drivertest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dayfly.dev/dayfly"
)

// attachProbe is a network hook that keeps what it was given.
func attachProbe(got *os.FileInfo) func(context.Context, *os.File) error {
	return func(ctx context.Context, netns *os.File) (err error) {
		if *got, err = netns.Stat(); err != nil {
			return err
		}
		return connectNothing(ctx, netns)
	}
}

// hostileImages puts one layer of an attacker's making over the root file system. Whatever it holds, the machine must come
// up whole, and nothing outside its own upper directory may change.
func hostileImages(t *testing.T, s *suite) {
	for _, tt := range []struct {
		name string
		lay  func(t *testing.T, dir, host string)
	}{
		{"proc is a link", func(t *testing.T, dir, host string) { link(t, host, dir+"/proc") }},
		{"proc is a link to the root", func(t *testing.T, dir, _ string) { link(t, "/", dir+"/proc") }},
		{"sys is a link", func(t *testing.T, dir, host string) { link(t, host, dir+"/sys") }},
		{"dev is a file", func(t *testing.T, dir, _ string) { file(t, dir+"/dev") }},
		{"dev is a link", func(t *testing.T, dir, host string) { link(t, "../../../../.."+host, dir+"/dev") }},
		{"tmp is a link", func(t *testing.T, dir, host string) { link(t, host, dir+"/tmp") }},
		{"tmp is a file", func(t *testing.T, dir, _ string) { file(t, dir+"/tmp") }},
		{"run is a link", func(t *testing.T, dir, host string) { link(t, host, dir+"/run") }},
		{"run/dayfly is a link", func(t *testing.T, dir, host string) { link(t, host, dir+"/run/dayfly") }},
		{"run/dayfly is full", func(t *testing.T, dir, _ string) { file(t, dir+"/run/dayfly/agent") }},
		{"etc is a link to the root", func(t *testing.T, dir, _ string) { link(t, "/", dir+"/etc") }},
		{"etc is a link to the host", func(t *testing.T, dir, host string) { link(t, host, dir+"/etc") }},
		{"etc is a file", func(t *testing.T, dir, _ string) { file(t, dir+"/etc") }},
		{"resolv.conf is a link", func(t *testing.T, dir, host string) { link(t, host+"/victim", dir+"/etc/resolv.conf") }},
		{"resolv.conf is a magic link", func(t *testing.T, dir, _ string) { link(t, "/proc/self/fd/3", dir+"/etc/resolv.conf") }},
		{"resolv.conf is a directory", func(t *testing.T, dir, _ string) { directory(t, dir+"/etc/resolv.conf") }},
		{"dev has nodes", func(t *testing.T, dir, _ string) { file(t, dir+"/dev/null"); file(t, dir+"/dev/pts") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			layer, host := t.TempDir(), t.TempDir()
			file(t, host+"/victim")
			tt.lay(t, layer, host)
			m := s.start(t, func(spec *dayfly.InstanceSpec) {
				spec.Root.Lower = append([]string{layer}, spec.Root.Lower...)
				spec.Files = map[string][]byte{"/etc/resolv.conf": []byte("nameserver 192.0.2.1\n")}
			})
			if got := m.run(t, asRoot, "cat", "/etc/resolv.conf"); got != "nameserver 192.0.2.1" {
				t.Errorf("resolv.conf = %q", got)
			}
			if got := m.run(t, asRoot, "readlink", "/proc/self/exe"); got != s.Inside {
				t.Errorf("/proc is not the machine's: %q", got)
			}
			if got := m.run(t, asUser, "stat", "/dev/null"); got != "20666 0:0 1:3" {
				t.Errorf("/dev/null is %s", got)
			}
			if got := m.run(t, asUser, "cat", "/run/dayfly/grant"); got != "60" {
				t.Errorf("grant = %q", got)
			}
			m.run(t, asUser, "write", "/tmp/file", "x")
			unchanged(t, host)
		})
	}
}

// unchanged fails when anything but the victim, empty, is in the host's directory.
func unchanged(t *testing.T, host string) {
	t.Helper()
	entries, err := os.ReadDir(host)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != "victim" {
		t.Errorf("the host's directory holds %q", got)
	}
	if b, err := os.ReadFile(host + "/victim"); err != nil || len(b) != 0 {
		t.Errorf("the host's file holds %q, %v", b, err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	directory(t, filepath.Dir(path))
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func file(t *testing.T, path string) {
	t.Helper()
	directory(t, filepath.Dir(path))
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func directory(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}
