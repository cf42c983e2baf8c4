package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/disk/btrfs"
	"dayfly.dev/dayfly/internal/disk/plain"
	"dayfly.dev/dayfly/internal/hostnet"
	"dayfly.dev/dayfly/internal/reserve"
	"dayfly.dev/dayfly/internal/store"
	"dayfly.dev/dayfly/internal/warden"
)

// Bounds of down --destroy.
const (
	destroyParallel = 8
	killMax         = time.Minute      // for one machine
	wardenLeaveMax  = 10 * time.Second // for the warden, once no lease is left
)

// destroyAll ends every sandbox of a data directory's installation and takes everything of it out of the kernel, with no
// server running, and says what it removed. It does every step and joins the errors, and can be repeated. Machines go by
// their control groups, so it needs no record and no driver.
func destroyAll(ctx context.Context, cfg config, purge bool, say io.Writer) (ended int, err error) {
	installation, err := installationOf(cfg.Data)
	if err != nil {
		return 0, err
	}
	_, statErr := os.Stat(cfg.Data)
	if errors.Is(statErr, fs.ErrNotExist) && installation != "" { // the directory was removed by hand; its machines live
		statErr = os.MkdirAll(cfg.Data, 0o700)
	}
	if errors.Is(statErr, fs.ErrNotExist) || installation == "" && !purge {
		fmt.Fprintf(say, "nothing of Dayfly is in %s\n", cfg.Data)
		return 0, nil
	}
	if statErr != nil {
		return 0, fmt.Errorf("look at the data directory: %w", statErr)
	}
	lock, err := lockServer(cfg.Data) // no server may start meanwhile
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	d := destroyer{cfg: cfg, installation: installation, say: say}
	if installation != "" {
		if ended, err = d.emptyHost(ctx, lock); err != nil {
			return ended, err
		}
	} else if err := d.removePool(ctx); err != nil { // nothing else has a name without an installation
		return 0, err
	}
	if purge {
		err = d.purge()
	}
	return ended, err
}

// installationOf reads the id of a data directory's installation: from the directory or, when the file there is lost, from
// what the installation holds of this host. It is empty when there is none.
func installationOf(dataDir string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dataDir, installationFile))
	if err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the installation id: %w", err)
	}
	blocks, err := reserve.List(runRoot)
	if err != nil {
		return "", err
	}
	for _, b := range blocks {
		if b.DataDir == dataDir {
			return b.Installation, nil
		}
	}
	return "", nil
}

type destroyer struct {
	cfg          config
	installation string // or empty
	cgroups      cgroup.Host
	say          io.Writer
}

// emptyHost takes everything of the installation off this host, save the data directory's records. It closes lock: the
// warden leaves only when no server could need it.
func (d *destroyer) emptyHost(ctx context.Context, lock io.Closer) (ended int, err error) {
	if d.cgroups, err = cgroup.Detect("/"); err != nil {
		return 0, err
	}
	before := d.survey(ctx)
	if ended, err = d.endMachines(ctx); err != nil {
		return ended, err // never pull disk and network from under what lives
	}
	d.record(ctx)
	err = errors.Join(d.clearLeases(), d.removeNetwork(ctx), d.removePool(ctx), d.removeRunFiles())
	_ = lock.Close()
	err = errors.Join(err, d.endWarden(ctx), d.cgroups.RemoveInstallation(d.installation), reserve.Release(runRoot, d.installation), d.removeRunRoot())
	after := d.survey(ctx)
	var removed []string
	for _, kind := range slices.Sorted(maps.Keys(before)) {
		if n := before[kind] - after[kind]; n > 0 {
			removed = append(removed, fmt.Sprintf("%s %d", kind, n))
		}
	}
	if len(removed) > 0 {
		fmt.Fprintf(d.say, "removed from this host: %s\n", strings.Join(removed, ", "))
	}
	return ended, err
}

// survey counts what the installation has on this host, by kind. What cannot be looked at is not counted.
func (d *destroyer) survey(ctx context.Context) map[string]int {
	list, err := sources(d.cfg, d.installation)
	if err != nil {
		return nil
	}
	counts := map[string]int{}
	for _, source := range list {
		if found, err := source.List(ctx); err == nil {
			counts[source.Kind] += len(found)
		}
	}
	return counts
}

// endMachines kills every control group of the installation and tells how many there were.
func (d *destroyer) endMachines(ctx context.Context) (int, error) {
	ids, err := d.cgroups.List(d.installation)
	if err != nil {
		return 0, fmt.Errorf("look for machines: %w", err)
	}
	var g errgroup.Group
	g.SetLimit(destroyParallel)
	for _, id := range ids {
		g.Go(func() error {
			group, err := d.cgroups.Group(d.installation, id)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, killMax)
			defer cancel()
			if err := group.Kill(ctx); err != nil {
				return fmt.Errorf("end %s: %w", id, err)
			}
			return group.Remove()
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	fmt.Fprintf(d.say, "ended %d sandboxes\n", len(ids))
	return len(ids), nil
}

// record closes the records of what was ended. A database that cannot be opened keeps nothing from being destroyed.
func (d *destroyer) record(ctx context.Context) {
	db, err := store.Open(ctx, filepath.Join(d.cfg.Data, databaseFile), store.Options{MustExist: true})
	if err != nil {
		fmt.Fprintf(d.say, "the ends could not be recorded: %v\n", err)
		return
	}
	defer db.Close()
	live, err := db.LiveSandboxes(ctx)
	host, clockErr := clock.NewHost()
	if err := errors.Join(err, clockErr); err != nil {
		fmt.Fprintf(d.say, "the ends could not be recorded: %v\n", err)
		return
	}
	for _, sb := range live {
		if sb.End == "" {
			sb.End = dayfly.EndShutdown
		}
		sb.Wanted, sb.Status = dayfly.StatusDeleted, sb.End.Status()
		sb.StampEnded(host.Now())
		if _, err := db.MoveSandbox(ctx, sb); err != nil {
			fmt.Fprintf(d.say, "the end of %s could not be recorded: %v\n", sb.ID, err)
		}
	}
}

func (d *destroyer) clearLeases() error {
	err := errors.Join(emptyDir(filepath.Join(d.cfg.Data, "leases")), emptyDir(filepath.Join(d.cfg.Data, stateDir)))
	if err != nil {
		return fmt.Errorf("clear the leases: %w", err)
	}
	return nil
}

func (d *destroyer) removeNetwork(ctx context.Context) error {
	o, err := networkOptions(d.cfg, d.installation, 0)
	if err != nil {
		return err
	}
	if err := hostnet.Remove(ctx, o); err != nil {
		return fmt.Errorf("remove the network: %w", err)
	}
	return nil
}

func (d *destroyer) removePool(ctx context.Context) error {
	return errors.Join(btrfs.Destroy(ctx, d.cfg.Data), plain.Destroy(ctx, d.cfg.Data))
}

func (d *destroyer) removeRunFiles() error {
	return removeRunDir(d.installation)
}

// endWarden asks the warden to leave; it does once no lease is left.
func (d *destroyer) endWarden(ctx context.Context) error {
	c, err := clock.NewHost()
	if err != nil {
		return err
	}
	guard, err := warden.NewGuard(warden.GuardOptions{
		DataDir: d.cfg.Data, Installation: d.installation, Host: d.cgroups, Build: version, Clock: c, Log: newLogger("error"),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wardenLeaveMax)
	defer cancel()
	if err := guard.Leaving(ctx); err != nil {
		return fmt.Errorf("end the warden: %w", err)
	}
	return nil
}

// removeRunRoot removes the host-wide directory if this was the last installation.
func (d *destroyer) removeRunRoot() error {
	for _, dir := range []string{filepath.Join(runRoot, "blocks"), runRoot} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		left := 0
		for _, e := range entries {
			if e.IsDir() || dir != runRoot || e.Name() != "lock" {
				left++
			}
		}
		if left > 0 {
			return nil
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	return nil
}

// purge removes what Dayfly made in the data directory, and the directory itself if nothing else is in it: an operator may
// have pointed --data at a directory that holds more.
func (d *destroyer) purge() error {
	entries, err := os.ReadDir(d.cfg.Data)
	if err != nil {
		return fmt.Errorf("purge the data directory: %w", err)
	}
	var errs []error
	others := 0
	for _, e := range entries {
		if !ownName(e.Name()) {
			others++
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(d.cfg.Data, e.Name())))
	}
	if others == 0 {
		errs = append(errs, os.Remove(d.cfg.Data))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("purge the data directory: %w", err)
	}
	if others > 0 {
		fmt.Fprintf(d.say, "removed what is Dayfly's from %s; %d other entries stay\n", d.cfg.Data, others)
		return nil
	}
	fmt.Fprintf(d.say, "removed %s\n", d.cfg.Data)
	return nil
}

// ownName tells whether an entry of a data directory is Dayfly's. A file that was being replaced ends in .new.
func ownName(name string) bool {
	name = strings.TrimSuffix(name, ".new")
	return slices.Contains([]string{
		installationFile, nodeFile, imagesDir, stateDir, helpersDir, logsDir, serverLockFile, serverInfoFile, adminKeyFile,
		"leases", "warden", "pool", "pool.img", "plain",
	}, name) || strings.HasPrefix(name, databaseFile) /* with its -wal and -shm */ || strings.HasPrefix(name, doctorPrefix)
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}
