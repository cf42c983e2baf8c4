package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/clock"
	"dayfly.dev/dayfly/internal/driver"
	"dayfly.dev/dayfly/internal/failpoint"
	"dayfly.dev/dayfly/internal/hostnet"
	"dayfly.dev/dayfly/internal/image"
	"dayfly.dev/dayfly/internal/node"
	"dayfly.dev/dayfly/internal/reserve"
	"dayfly.dev/dayfly/internal/store"
	"dayfly.dev/dayfly/internal/warden"
)

// Names in a data directory.
const (
	installationFile = "installation"
	helpersDir       = "helpers"
	nodeFile         = "node"
	databaseFile     = "dayfly.db"
	imagesDir        = "images"
	stateDir         = "state"
)

// host is everything concrete that a server stands on.
type host struct {
	installation string
	store        *store.DB
	pool         dayfly.Pool
	guard        *warden.Guard
	unpacked     *image.Store
	images       images
	node         *node.Manager
	wake         chan struct{} // capacity 1: the reconciler shall make a pass soon
	notes        []string      // what works with less, one sentence each, for whoever started the server
	undo         cleanup.Stack
}

func (h *host) close() { h.undo.Clean() }

// openHost takes the data directory and opens everything below and beside it, the warden first: whatever fails after
// that, leases are enforced.
func openHost(ctx context.Context, cfg config, log *slog.Logger) (*host, error) {
	h := &host{wake: make(chan struct{}, 1)}
	h.images = images{h}
	opened := false
	defer func() {
		if !opened {
			h.close()
		}
	}()
	if err := h.takeData(cfg); err != nil {
		return nil, err
	}
	hostClock, err := clock.NewHost()
	if err != nil {
		return nil, err
	}
	cgroups, err := cgroup.Detect("/")
	if err != nil {
		return nil, err
	}
	guard, err := h.openWarden(ctx, cfg, cgroups, hostClock, log)
	if err != nil {
		return nil, err
	}
	if h.store, err = store.Open(ctx, filepath.Join(cfg.Data, databaseFile), store.Options{}); err != nil {
		return nil, err
	}
	h.undo.Add(func() { logClose(log, "database", h.store.Close()) })
	if h.unpacked, err = image.Open(ctx, filepath.Join(cfg.Data, imagesDir)); err != nil {
		return nil, fmt.Errorf("open the images: %w", err)
	}
	pool, err := h.openPool(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	h.undo.Add(func() { logClose(log, "disk pool", pool.Close()) })
	block, net, err := h.openNetwork(ctx, cfg, cgroups, log)
	if err != nil {
		return nil, err
	}
	h.pool, h.guard = pool, guard
	if err := h.openNode(ctx, cfg, guard, pool, block, net, hostClock, log); err != nil {
		return nil, err
	}
	opened = true
	return h, nil
}

// takeData makes the data directory, locks it for this process, and reads or makes the ids that live in it.
func (h *host) takeData(cfg config) error {
	for _, dir := range []string{cfg.Data, filepath.Join(cfg.Data, stateDir), filepath.Join(cfg.Data, logsDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make the data directory: %w", err)
		}
	}
	if err := os.Chmod(cfg.Data, 0o700); err != nil {
		return fmt.Errorf("close the data directory to others: %w", err)
	}
	lock, err := lockServer(cfg.Data)
	if err != nil {
		return err
	}
	h.undo.Add(func() { _ = lock.Close() })
	h.installation, err = keptID(filepath.Join(cfg.Data, installationFile), dayfly.NewInstallation, dayfly.ValidInstallation)
	return err
}

// keptID reads an id that was made once, or makes it now.
func keptID(path string, fresh func() string, valid func(string) bool) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		id := fresh()
		if err := os.WriteFile(path+".new", []byte(id+"\n"), 0o600); err != nil {
			return "", fmt.Errorf("keep %s: %w", filepath.Base(path), err)
		}
		return id, os.Rename(path+".new", path)
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", filepath.Base(path), err)
	}
	id := strings.TrimSpace(string(b))
	if !valid(id) {
		return "", fmt.Errorf("%s holds %.40q, which is no id", path, id)
	}
	return id, nil
}

// openWarden has a warden of this build watch the leases, for as long as this process lives and beyond.
func (h *host) openWarden(ctx context.Context, cfg config, cgroups cgroup.Host, c clock.Clock, log *slog.Logger) (*warden.Guard, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	guard, err := warden.NewGuard(warden.GuardOptions{
		DataDir: cfg.Data, Installation: h.installation, Host: cgroups, Exe: exe, Env: failpoint.Env(), Build: version, Clock: c, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("open the leases: %w", err)
	}
	if err := guard.BeginRecovery(); err != nil {
		return nil, err
	}
	if err := guard.Ensure(ctx); err != nil {
		return nil, fmt.Errorf("start the warden: %w", err)
	}
	watch, stop := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		guard.Watch(watch, func(ctx context.Context) {
			if err := guard.Ensure(ctx); err != nil && ctx.Err() == nil {
				log.Error("start the warden again", "error", err)
			}
			select { // it may have left work half done
			case h.wake <- struct{}{}:
			default:
			}
		})
	}()
	h.undo.Add(func() { stop(); <-watched })
	return guard, guard.Finish(ctx)
}

// openNetwork reserves a block of user ids and addresses of this host and opens the network on it.
func (h *host) openNetwork(ctx context.Context, cfg config, cgroups cgroup.Host, log *slog.Logger) (reserve.Block, *hostnet.Network, error) {
	block, err := reserve.Take(runRoot, h.installation, cfg.Data, reserve.Checks{
		Fits: func(b reserve.Block) (bool, error) {
			o, err := networkOptions(cfg, h.installation, b.Number)
			if err != nil {
				return false, err
			}
			return networkFree(o)
		},
		Unused: func(installation string) (bool, error) {
			ids, err := cgroups.List(installation)
			return len(ids) == 0, err
		},
	})
	if err != nil {
		return block, nil, err
	}
	o, err := networkOptions(cfg, h.installation, block.Number)
	if err != nil {
		return block, nil, err
	}
	o.Log = log
	net, err := hostnet.Open(ctx, o)
	if err != nil {
		return block, nil, fmt.Errorf("open the network: %w", err)
	}
	h.undo.Add(func() { logClose(log, "network", net.Close()) })
	return block, net, nil
}

func (h *host) openNode(ctx context.Context, cfg config, guard *warden.Guard, pool dayfly.Pool, block reserve.Block, net *hostnet.Network, c clock.Clock, log *slog.Logger) error {
	nodeID, err := keptID(filepath.Join(cfg.Data, nodeFile), func() string { return dayfly.NewID(dayfly.PrefixNode) },
		func(s string) bool { return dayfly.ValidID(dayfly.PrefixNode, s) })
	if err != nil {
		return err
	}
	runDir, err := openRunDir(h.installation)
	if err != nil {
		return err
	}
	helpers := filepath.Join(cfg.Data, helpersDir)
	if err := os.Mkdir(helpers, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make directory for helpers: %w", err)
	}
	drivers, err := driver.All(driver.Options{Installation: h.installation, Helpers: helpers, Runsc: cfg.GVisor.RunscPath, Scratch: runDir})
	if err != nil {
		return err
	}
	h.undo.Add(func() { logClose(log, "drivers", driver.Close(drivers)) })
	list := make([]dayfly.Driver, len(drivers))
	for i, d := range drivers {
		list[i] = d
	}
	h.node = node.New(node.Options{
		NodeID: nodeID, Installation: h.installation, DataDir: cfg.Data, RunDir: runDir, Drivers: list, Auto: cfg.auto(), Pool: pool,
		Network: network{net}, Leases: leases{guard}, Slots: reserve.NewSlots(), UIDBase: block.UIDBase(),
		ImageDir: h.unpacked.Path, Clock: c, Log: log,
	})
	h.undo.Add(h.node.Close)
	return nil
}

func logClose(log *slog.Logger, what string, err error) {
	if err != nil {
		log.Error("close", "what", what, "error", err)
	}
}
