package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cli"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/hostnet"
)

// Defaults of the server's settings.
const (
	defaultData   = "/var/lib/dayfly"
	defaultListen = "127.0.0.1:2424"
	configMaxSize = 1 << 20
)

// config are the server's settings. Each can be set by a flag, else by an environment variable (DAYFLY_ and the path in
// capitals, for example DAYFLY_LEASE_MAX), else in the YAML config file.
type config struct {
	Data      string        `yaml:"data"`
	Listen    string        `yaml:"listen"`
	BaseImage string        `yaml:"base_image"` // file to import as base on a first start; empty: beside the binary
	Lease     leaseConfig   `yaml:"lease"`
	Network   networkConfig `yaml:"network"`
	Disk      diskConfig    `yaml:"disk"`
	Sandbox   sandboxConfig `yaml:"sandbox"`
	Isolation isolation     `yaml:"isolation"`
	GVisor    gvisorConfig  `yaml:"gvisor"`
	Log       logConfig     `yaml:"log"`

	file        string // where it was read from, or empty
	newAdminKey bool
	noBase      bool
}

type leaseConfig struct {
	Max duration `yaml:"max"` // total life of a sandbox; at most 24h
}

type networkConfig struct {
	Range        string   `yaml:"range"`         // private IPv4 range that sandbox addresses come from; empty: the built-in one
	AllowPrivate []string `yaml:"allow_private"` // CIDRs of private addresses that sandboxes may reach
}

type diskConfig struct {
	Pool    string `yaml:"pool"`    // auto, btrfs, plain
	Quota   string `yaml:"quota"`   // auto, simple, classic
	SizeGB  int    `yaml:"size_gb"` // of the pool's sparse file; 0: from the free space
	Discard bool   `yaml:"discard"` // give deleted data's blocks back to the host's disk at once
}

type sandboxConfig struct {
	PIDs    int                   `yaml:"pids"`     // processes and threads at once
	MaxLive int                   `yaml:"max_live"` // quota of new accounts
	Sizes   map[string]sizeConfig `yaml:"sizes"`
}

type sizeConfig struct {
	VCPU     int `yaml:"vcpu"`
	MemoryMB int `yaml:"memory_mb"`
	DiskMB   int `yaml:"disk_mb"`
}

type isolation struct {
	Auto string `yaml:"auto"` // strongest (never linux), gvisor, linux: what isolation auto means
}

type gvisorConfig struct {
	RunscPath string `yaml:"runsc_path"` // a runsc to use instead of the one within this program
}

type logConfig struct {
	Level string `yaml:"level"` // debug, info, warn, error
}

// duration is a time.Duration that reads "90s" or "24h" in YAML.
type duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %q is not a duration like 90s or 24h", n.Line, n.Value)
	}
	*d = duration(v)
	return nil
}

// setting is one server setting that flags and the environment reach.
type setting struct {
	flag, help string
	apply      func(*config, string) error
}

// settings lists them in the order of the help text.
var settings = []setting{
	{"data", "data directory `DIR` (default " + defaultData + ")", func(c *config, v string) error { c.Data = v; return nil }},
	{"listen", "`ADDRESS` to listen on (default " + defaultListen + ")", func(c *config, v string) error { c.Listen = v; return nil }},
	{"base-image", "root file system to import as image base on a first start (default base.tar.zst beside this program)",
		func(c *config, v string) error { c.BaseImage = v; return nil }},
	{"lease-max", "total life of a sandbox (default and at most 24h)", func(c *config, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil {
			return fmt.Errorf("%q is not a duration like 90s or 24h", v)
		}
		c.Lease.Max = duration(d)
		return nil
	}},
	{"network-range", "private IPv4 range that sandbox addresses come from (default " + hostnet.RangeDefault + ")",
		func(c *config, v string) error { c.Network.Range = v; return nil }},
	{"network-allow-private", "private CIDRs that sandboxes may reach, separated by commas", func(c *config, v string) error {
		c.Network.AllowPrivate = strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
		return nil
	}},
	{"disk-pool", "auto, btrfs or plain (plain has no disk limits)", func(c *config, v string) error { c.Disk.Pool = v; return nil }},
	{"disk-quota", "auto, simple or classic: kind of btrfs quota", func(c *config, v string) error { c.Disk.Quota = v; return nil }},
	{"isolation-auto", "what isolation auto means: strongest (never linux), gvisor or linux (default strongest)",
		func(c *config, v string) error { c.Isolation.Auto = v; return nil }},
	{"gvisor-runsc-path", "`PATH` of a runsc to use instead of the one within this program",
		func(c *config, v string) error { c.GVisor.RunscPath = v; return nil }},
	{"log-level", "debug, info, warn or error", func(c *config, v string) error { c.Log.Level = v; return nil }},
}

func (s setting) env() string {
	return "DAYFLY_" + strings.ToUpper(strings.ReplaceAll(s.flag, "-", "_"))
}

// addSettings gives cmd the flags of every setting, and --config. Its help shows those named, or all when none is.
func addSettings(cmd *cobra.Command, shown ...string) {
	cmd.Flags().String("config", "", "YAML `FILE` with settings (environment DAYFLY_CONFIG)")
	for _, s := range settings {
		cmd.Flags().String(s.flag, "", s.help+" (environment "+s.env()+")")
		if len(shown) > 0 && !slices.Contains(shown, s.flag) {
			_ = cmd.Flags().MarkHidden(s.flag) // it exists
		}
	}
}

// loadConfig merges defaults, file, environment and flags, each overriding the one before. Its errors are wrong uses.
func loadConfig(cmd *cobra.Command) (config, error) {
	c, err := mergeConfig(cmd)
	return c, cli.Misuse(cmd, err)
}

func mergeConfig(cmd *cobra.Command) (config, error) {
	c := config{Data: defaultData, Listen: defaultListen, Disk: diskConfig{Pool: "auto", Quota: "auto"},
		Isolation: isolation{Auto: "strongest"}, Log: logConfig{Level: "info"}}
	file, _ := cmd.Flags().GetString("config")
	if file == "" {
		file = os.Getenv("DAYFLY_CONFIG")
	}
	if file != "" {
		if err := c.readFile(file); err != nil {
			return c, err
		}
	}
	for _, s := range settings {
		v, from := os.Getenv(s.env()), s.env()
		if f := cmd.Flags().Lookup(s.flag); f != nil && f.Changed {
			v, from = f.Value.String(), "--"+s.flag
		}
		if v == "" {
			continue
		}
		if err := s.apply(&c, v); err != nil {
			return c, fmt.Errorf("%s: %w", from, err)
		}
	}
	return c, c.check()
}

func (c *config) readFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no config file %s", path)
	}
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, configMaxSize+1))
	if err != nil || len(b) > configMaxSize {
		return fmt.Errorf("read config %s: larger than %d bytes or unreadable: %w", path, configMaxSize, err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("config file %s: %s", path, plainYAML(err))
	}
	c.file = path
	return nil
}

// goType is how the YAML library names the type that a key or value does not fit.
var goType = regexp.MustCompile(` (not found )?in(to)? (type )?(main|\[\]|map)[^ \n]*|into \S+$`)

// misfit is how it says that a value is of a wrong kind.
var misfit = regexp.MustCompile("cannot unmarshal !![a-z]+( `.*`)?")

// plainYAML gives the library's text without its names of Go types.
func plainYAML(err error) string {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n"), "yaml: ")
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(goType.ReplaceAllString(line, ""))
		lines[i] = misfit.ReplaceAllString(lines[i], "this setting takes no such value$1")
		if strings.Contains(line, "not found in type") {
			lines[i] += " is no setting"
		}
	}
	return strings.Join(lines, "; ")
}

// check refuses settings that could not work, before anything is touched.
func (c *config) check() error {
	abs, err := filepath.Abs(c.Data)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	c.Data = abs
	if info, err := os.Stat(c.Data); err == nil && !info.IsDir() {
		return fmt.Errorf("data: %s is not a directory", c.Data)
	}
	if d := time.Duration(c.Lease.Max); d < 0 || d > 24*time.Hour {
		return fmt.Errorf("lease.max %s: it must be between 0 and 24h", d)
	}
	if _, err := networkOptions(*c, "", 0); err != nil {
		return err
	}
	if min(c.Disk.SizeGB, c.Sandbox.PIDs, c.Sandbox.MaxLive) < 0 {
		return errors.New("disk.size_gb, sandbox.pids and sandbox.max_live must not be negative")
	}
	for _, one := range []struct {
		name, value string
		valid       []string
	}{
		{"disk.pool", c.Disk.Pool, []string{"auto", "btrfs", "plain"}},
		{"disk.quota", c.Disk.Quota, []string{"auto", "simple", "classic"}},
		{"isolation.auto", c.Isolation.Auto, []string{"strongest", string(dayfly.IsolationGVisor), string(dayfly.IsolationLinux)}},
		{"log.level", c.Log.Level, []string{"debug", "info", "warn", "error"}},
	} {
		if !slices.Contains(one.valid, one.value) {
			return fmt.Errorf("%s %q: it must be one of %s", one.name, one.value, strings.Join(one.valid, ", "))
		}
	}
	for name, s := range c.Sandbox.Sizes {
		if s.VCPU < 1 || s.MemoryMB < 128 || s.DiskMB < 256 {
			return fmt.Errorf("size %q: it needs vcpu ≥ 1, memory_mb ≥ 128 and disk_mb ≥ 256", name)
		}
	}
	return nil
}

func (c *config) allowPrivate() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range c.Network.AllowPrivate {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("network.allow_private: %q is not a CIDR like 10.0.0.0/8", s)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// auto is what isolation auto means, as the node takes it.
func (c *config) auto() dayfly.Isolation {
	if c.Isolation.Auto == "strongest" {
		return ""
	}
	return dayfly.Isolation(c.Isolation.Auto)
}

// control is the part of the settings that the control plane decides by.
func (c *config) control() control.Config {
	sizes := map[string]control.Size{}
	for name, s := range c.Sandbox.Sizes {
		sizes[name] = control.Size{VCPU: s.VCPU, MemoryMB: s.MemoryMB, DiskMB: s.DiskMB}
	}
	return control.Config{Sizes: sizes, LeaseMax: time.Duration(c.Lease.Max), PIDs: c.Sandbox.PIDs, MaxLive: c.Sandbox.MaxLive}
}
