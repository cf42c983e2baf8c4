package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly/internal/cli"
	"dayfly.dev/dayfly/packaging"
)

// uninstaller takes an installation away and tells of each thing. What is gone already is skipped.
type uninstaller struct {
	layout
	cmd     *cobra.Command
	cfg     config
	removed []string
}

func uninstallCommand() *cobra.Command {
	var un uninstaller
	var keepData bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "End every sandbox and remove Dayfly from this machine",
		Long: "Stop the server, end every sandbox, take everything of Dayfly out of the kernel, and remove the service, the\n" +
			"installed program, its completions and the data directory. It says what it removes, can be repeated, and works when\n" +
			"half of it is gone. A program elsewhere than below --prefix stays.",
		Example: "  sudo dayfly uninstall\n  sudo dayfly uninstall --keep-data",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := needRoot("uninstall"); err != nil {
				return err
			}
			un.cmd, un.cfg = cmd, cfg
			ended, err := un.uninstall(keepData)
			if err != nil {
				return err
			}
			if asJSON(cmd) {
				return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{
					"removed": append([]string{}, un.removed...), "ended": ended, "data": un.cfg.Data, "kept_data": keepData,
				})
			}
			return nil
		},
	}
	addSettings(cmd, "data")
	cmd.Flags().BoolVar(&keepData, "keep-data", false, "keep the data directory: database, keys and images")
	cmd.Flags().StringVar(&un.prefix, "prefix", "", "`DIR`ectory that it was installed below (default: what the service says, else "+defaultPrefix+")")
	return cmd
}

// uninstall does every step in the order in which nothing can start again behind it. Nothing is removed that a machine which
// could not be ended would need.
func (un *uninstaller) uninstall(keepData bool) (ended int, err error) {
	service, err := un.readUnit()
	if err != nil {
		return 0, err
	}
	if service {
		if err := un.removeUnit(); err != nil {
			return 0, err
		}
	}
	if _, err := stopServer(un.cmd, un.cfg); err != nil {
		return 0, err
	}
	before := exists(un.cfg.Data)
	if ended, err = destroyAll(un.cmd.Context(), un.cfg, !keepData, un.cmd.ErrOrStderr()); err != nil {
		return ended, err
	}
	if before && !exists(un.cfg.Data) {
		un.removed = append(un.removed, un.cfg.Data) // destroyAll has told of it
	}
	return ended, un.removeProgram()
}

// readUnit finds out from the installed service which data directory and prefix it is about, unless flags say so. It tells
// whether the service is that data directory's.
func (un *uninstaller) readUnit() (bool, error) {
	data, prefix := un.cmd.Flags().Lookup("data").Changed || os.Getenv("DAYFLY_DATA") != "", un.prefix
	un.prefix = defaultPrefix
	text, err := os.ReadFile(unitPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read the service: %w", err)
	}
	unit, ours := packaging.ParseUnit(string(text))
	switch {
	case err != nil: // there is none
	case !ours:
		un.say("%s stays: `dayfly install` did not write it", unitPath())
	default:
		un.prefix = unit.Prefix
		if !data {
			un.cfg.Data = unit.Data
		}
		if ours = unit.Data == un.cfg.Data; !ours {
			un.say("%s stays: it is the service of %s", unitPath(), unit.Data)
		}
	}
	if prefix == "" {
		return ours, nil
	}
	un.prefix, err = filepath.Abs(prefix)
	return ours, err
}

// removeUnit stops the service, so that systemd does not start it again, and removes it.
func (un *uninstaller) removeUnit() error {
	systemd := exists(systemdMark)
	if systemd {
		if err := systemctl("disable", "--now", packaging.UnitName); err != nil {
			return err
		}
		un.say("stopped the service")
	}
	if err := un.remove(unitPath()); err != nil {
		return err
	}
	if !systemd {
		return nil
	}
	_ = systemctl("reset-failed", packaging.UnitName) // fails when it never failed
	return systemctl("daemon-reload")
}

// removeProgram removes what install put below the prefix, unless another data directory's service still needs it.
func (un *uninstaller) removeProgram() error {
	if text, err := os.ReadFile(unitPath()); err == nil {
		if unit, ours := packaging.ParseUnit(string(text)); ours && unit.Prefix == un.prefix {
			un.say("%s stays: the service of %s needs it", un.binary(), unit.Data)
			return nil
		}
	}
	var errs []error
	for _, name := range baseNames {
		errs = append(errs, un.remove(filepath.Join(un.shareDir(), name)))
	}
	_ = os.Remove(un.shareDir()) // if nothing else is in it
	for _, path := range slices.Sorted(maps.Values(un.completions())) {
		errs = append(errs, un.remove(path))
	}
	return errors.Join(append(errs, un.remove(un.binary()))...)
}

// remove removes one file and tells of it. A missing one is skipped.
func (un *uninstaller) remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	un.removed = append(un.removed, path)
	un.say("removed %s", path)
	return nil
}

func (un *uninstaller) say(format string, args ...any) {
	fmt.Fprintf(un.cmd.ErrOrStderr(), format+"\n", args...)
}
