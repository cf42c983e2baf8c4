package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cli"
	"dayfly.dev/dayfly/packaging"
)

// Where things are installed.
const (
	defaultPrefix = "/usr/local"
	unitDir       = "/etc/systemd/system"
	systemdMark   = "/run/systemd/system" // there when systemd is PID 1
	programName   = "dayfly"
)

// layout are the places below a prefix.
type layout struct{ prefix string }

func (l layout) binary() string   { return filepath.Join(l.prefix, "bin", programName) }
func (l layout) shareDir() string { return filepath.Join(l.prefix, shareName) }

// completions gives the file of each shell's completion, where the shells look for them.
func (l layout) completions() map[string]string {
	return map[string]string{
		"bash": filepath.Join(l.prefix, "share/bash-completion/completions", programName),
		"zsh":  filepath.Join(l.prefix, "share/zsh/site-functions", "_"+programName),
		"fish": filepath.Join(l.prefix, "share/fish/vendor_completions.d", programName+".fish"),
	}
}

// installer does the steps of an installation and tells of each. Every step is skipped when its result is there already.
type installer struct {
	layout
	cmd    *cobra.Command
	cfg    config
	dryRun bool
	start  bool
	done   []string // what was done, or would be
}

func installCommand() *cobra.Command {
	var in installer
	var systemd bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install this program, and its server as a systemd service",
		Long: "Install this program below --prefix: the binary, the base image if one lies beside it, completions for shells.\n" +
			"With --systemd the server becomes a service of this machine that starts at boot, with the settings given here; with\n" +
			"--start it starts at once, or again if the program or the service has changed. Starting the server again touches no\n" +
			"sandbox. It can be repeated, and says what it does; `dayfly uninstall` takes all of it away.",
		Example: "  sudo ./dayfly install --systemd --start\n  sudo ./dayfly install --systemd --data /srv/dayfly --dry-run",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if in.start && !systemd {
				return cli.Misuse(cmd, errors.New("--start needs --systemd"))
			}
			in.cmd, in.cfg = cmd, cfg
			if in.prefix, err = filepath.Abs(in.prefix); err != nil {
				return err
			}
			if err := in.install(systemd); err != nil {
				return err
			}
			if asJSON(cmd) {
				return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"done": append([]string{}, in.done...), "dry_run": in.dryRun})
			}
			return nil
		},
	}
	addSettings(cmd)
	cmd.Flags().BoolVar(&systemd, "systemd", false, "make the server a systemd service that starts at boot")
	cmd.Flags().BoolVar(&in.start, "start", false, "with --systemd: start the service now")
	cmd.Flags().BoolVar(&in.dryRun, "dry-run", false, "only tell what would be done")
	cmd.Flags().StringVar(&in.prefix, "prefix", defaultPrefix, "`DIR` to install below")
	return cmd
}

func (in *installer) install(systemd bool) error {
	if !in.dryRun {
		if err := needRoot("install"); err != nil {
			return err
		}
	}
	if systemd {
		if err := in.checkSystemd(); err != nil {
			return err
		}
	}
	newBinary, err := in.copyProgram()
	if err != nil {
		return err
	}
	if err := in.copyBase(); err != nil {
		return err
	}
	if err := in.writeCompletions(); err != nil {
		return err
	}
	if systemd {
		return in.installUnit(newBinary)
	}
	return nil
}

// checkSystemd refuses what would fail half-way.
func (in *installer) checkSystemd() error {
	if _, err := os.Stat(systemdMark); err != nil && !in.dryRun {
		return dayfly.Errorf(dayfly.CodeUnavailable, "systemd does not run this machine").
			WithHint("without it, run `dayfly up` after each boot, or `dayfly server` under your own service manager")
	}
	old, err := os.ReadFile(unitPath())
	if err != nil {
		return nil // there is none
	}
	unit, ours := packaging.ParseUnit(string(old))
	if !ours {
		return dayfly.Errorf(dayfly.CodeConflict, "there is a unit %s that `dayfly install` did not write", unitPath()).
			WithHint("remove it, then run this again")
	}
	if unit.Data != in.cfg.Data {
		return dayfly.Errorf(dayfly.CodeConflict, "the service is installed for the data directory %s", unit.Data).
			WithHint("uninstall that one first (`dayfly uninstall --keep-data` keeps its data), or give --data %s", unit.Data)
	}
	return nil
}

// copyProgram puts this program below the prefix. It tells whether the file there has changed.
func (in *installer) copyProgram() (bool, error) {
	exe, err := os.Executable()
	if err != nil {
		return false, fmt.Errorf("find this program: %w", err)
	}
	return in.copyFile(exe, in.binary(), 0o755)
}

// copyBase puts the base image below the prefix, where a first start looks for it. Settings that name one go first.
func (in *installer) copyBase() error {
	if in.cfg.BaseImage != "" {
		return nil
	}
	path, err := findBase(in.cfg)
	if err != nil {
		return err
	}
	if path == "" {
		in.say("found no base image beside this program; sandboxes need one: later, `dayfly images import base FILE`")
		return nil
	}
	_, err = in.copyFile(path, filepath.Join(in.shareDir(), filepath.Base(path)), 0o644)
	return err
}

func (in *installer) writeCompletions() error {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		var b bytes.Buffer
		root := in.cmd.Root()
		generate := map[string]func() error{
			"bash": func() error { return root.GenBashCompletionV2(&b, true) },
			"zsh":  func() error { return root.GenZshCompletion(&b) },
			"fish": func() error { return root.GenFishCompletion(&b, true) },
		}[shell]
		if err := generate(); err != nil {
			return fmt.Errorf("make the completion for %s: %w", shell, err)
		}
		if _, err := in.writeFile(in.completions()[shell], b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// installUnit writes the unit, enables it, and starts or restarts it where asked to.
func (in *installer) installUnit(newBinary bool) error {
	unit := packaging.Unit{Binary: in.binary(), Args: in.serverArgs(), Data: in.cfg.Data, Prefix: in.prefix}
	text, err := unit.Text()
	if err != nil {
		return cli.Misuse(in.cmd, err)
	}
	active := !in.dryRun && exec.Command("systemctl", "is-active", "--quiet", packaging.UnitName).Run() == nil
	if _, running := runningServer(in.cfg.Data); in.start && running && !active {
		return dayfly.Errorf(dayfly.CodeConflict, "a server that systemd did not start uses %s", in.cfg.Data).
			WithHint("run `dayfly down --data %s` first: it stops no sandbox", in.cfg.Data)
	}
	newUnit, err := in.writeFile(unitPath(), []byte(text), 0o644)
	if err != nil {
		return err
	}
	if newUnit {
		if err := in.systemctl("daemon-reload"); err != nil {
			return err
		}
	}
	if err := in.systemctl("enable", packaging.UnitName); err != nil {
		return err
	}
	if !in.start {
		in.say("start the service with: systemctl start %s", programName)
		return nil
	}
	if active && (newUnit || newBinary) {
		return in.systemctl("restart", packaging.UnitName)
	}
	if active {
		in.say("the service runs already")
		return nil
	}
	return in.systemctl("start", packaging.UnitName)
}

// serverArgs is the server's command line: the settings given here, those of the environment too, which the service lacks.
func (in *installer) serverArgs() []string {
	args := append([]string{"server"}, passOn(in.cmd, in.cfg)...)
	for _, s := range settings {
		v := os.Getenv(s.env())
		if v != "" && s.flag != "data" && s.flag != "base-image" && !in.cmd.Flags().Lookup(s.flag).Changed {
			args = append(args, "--"+s.flag+"="+v)
		}
	}
	return args
}

func unitPath() string { return filepath.Join(unitDir, packaging.UnitName) }

// systemctl runs one command of systemd's and waits for it.
func (in *installer) systemctl(args ...string) error {
	in.did("run systemctl %s", strings.Join(args, " "))
	if in.dryRun {
		return nil
	}
	return systemctl(args...)
}

func systemctl(args ...string) error {
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		return dayfly.Errorf(dayfly.CodeUnavailable, "systemctl %s failed: %s", strings.Join(args, " "), strings.TrimSpace(string(out))).
			WithHint("see: journalctl -u %s -n 50", programName).WithCause(err)
	}
	return nil
}

// copyFile copies a file unless its copy is there, and tells whether it did.
func (in *installer) copyFile(from, to string, mode fs.FileMode) (bool, error) {
	same, err := sameContent(from, to)
	if err != nil {
		return false, fmt.Errorf("compare with %s: %w", to, err)
	}
	if same {
		in.say("%s is up to date", to)
		return false, nil
	}
	in.did("copy %s to %s", from, to)
	if in.dryRun {
		return true, nil
	}
	src, err := os.Open(from)
	if err != nil {
		return false, fmt.Errorf("copy %s: %w", from, err)
	}
	defer src.Close()
	return true, in.refusal(to, replaceFile(to, src, mode))
}

// writeFile writes a file unless it is there with that content, and tells whether it did.
func (in *installer) writeFile(to string, content []byte, mode fs.FileMode) (bool, error) {
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, content) {
		in.say("%s is up to date", to)
		return false, nil
	}
	in.did("write %s", to)
	if in.dryRun {
		return true, nil
	}
	return true, in.refusal(to, replaceFile(to, bytes.NewReader(content), mode))
}

// refusal says what a person can do about a place that cannot be written.
func (in *installer) refusal(to string, err error) error {
	if err == nil {
		return nil
	}
	return dayfly.Errorf(dayfly.CodeUnavailable, "cannot write %s: %v", to, err).
		WithHint("choose a place that can be written with --prefix").WithCause(err)
}

// did tells of a step that is done now, or would be.
func (in *installer) did(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	in.done = append(in.done, text)
	if in.dryRun {
		text = "would " + text
	}
	in.say("%s", text)
}

func (in *installer) say(format string, args ...any) {
	fmt.Fprintf(in.cmd.ErrOrStderr(), format+"\n", args...)
}
