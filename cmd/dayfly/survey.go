package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/hostnet"
	"dayfly.dev/dayfly/internal/node"
)

// sources lists every kind of object that an installation has on this host. None needs a running server.
func sources(cfg config, installation string) ([]node.Source, error) {
	cgroups, err := cgroup.Detect("/")
	if err != nil {
		return nil, err
	}
	list := []node.Source{
		{Kind: node.KindMachine, List: func(context.Context) ([]node.Object, error) {
			ids, err := cgroups.List(installation)
			return owned(ids), err
		}},
		{Kind: "process", List: func(context.Context) ([]node.Object, error) { return processes(installation) }},
		{Kind: "lease", List: inDir(filepath.Join(cfg.Data, "leases"), "", "")},
		{Kind: "state", List: inDir(filepath.Join(cfg.Data, stateDir), ".json", "")},
		{Kind: "run directory", List: inDir(filepath.Join(runRoot, installation), "", "")},
		{Kind: "network", List: func(ctx context.Context) ([]node.Object, error) {
			return networkObjects(ctx, cfg, installation)
		}},
		{Kind: "firewall", List: func(ctx context.Context) ([]node.Object, error) { return firewall(ctx, cfg, installation) }},
		{Kind: "mount", List: func(context.Context) ([]node.Object, error) { return mounts(cfg.Data, runDirOf(installation)) }},
		{Kind: "loop device", List: func(context.Context) ([]node.Object, error) { return loops(cfg.Data) }},
	}
	for _, pool := range []string{"pool", "plain"} { // of both technologies; one of them is there
		for part, state := range map[string]node.ObjectState{"disks": "", "trash": node.ObjectReclaiming, "dying": node.ObjectReclaiming} {
			list = append(list, node.Source{Kind: "disk", List: inDir(filepath.Join(cfg.Data, pool, part), "", state)})
		}
	}
	return list, nil
}

// owned makes objects of ids that are their own owners.
func owned(ids []string) []node.Object {
	out := make([]node.Object, 0, len(ids))
	for _, id := range ids {
		out = append(out, node.Object{Name: id, Owner: id})
	}
	return out
}

// inDir lists a directory's entries that are named after sandboxes; what follows the id is part of the name.
func inDir(dir, suffix string, state node.ObjectState) func(context.Context) ([]node.Object, error) {
	return func(context.Context) ([]node.Object, error) {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		var out []node.Object
		for _, e := range entries {
			id, _, _ := strings.Cut(e.Name(), ".")
			if !dayfly.ValidID(dayfly.PrefixSandbox, id) || !strings.HasSuffix(e.Name(), suffix) {
				continue
			}
			out = append(out, node.Object{Name: filepath.Join(dir, e.Name()), Owner: id, State: state})
		}
		return out, nil
	}
}

// processes lists every process in a control group of the installation.
func processes(installation string) ([]node.Object, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	mark := "/dayfly-" + installation + "/"
	var out []node.Object
	for _, p := range procs {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", p.Name(), "cgroup"))
		if err != nil {
			continue // it ended while we looked
		}
		_, rest, ok := strings.Cut(string(b), mark)
		if !ok {
			continue
		}
		if dead(p.Name()) {
			continue
		}
		end := strings.IndexAny(rest, "/\n")
		owner := rest[:max(0, end)]
		if owner == cgroup.WardenID {
			owner = node.OwnerInstallation
		}
		comm, _ := os.ReadFile(filepath.Join("/proc", p.Name(), "comm"))
		out = append(out, node.Object{Name: p.Name() + " " + strings.TrimSpace(string(comm)), Owner: owner})
	}
	return out, nil
}

// dead tells whether a process is only an entry that its parent has not read yet.
func dead(pid string) bool {
	b, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

func networkObjects(ctx context.Context, cfg config, installation string) ([]node.Object, error) {
	o, err := networkOptions(cfg, installation, 0)
	if err != nil {
		return nil, err
	}
	found, err := hostnet.List(ctx, o)
	if err != nil {
		return nil, err
	}
	var out []node.Object
	for _, f := range found {
		out = append(out, node.Object{Name: fmt.Sprintf("%s slot %d", f.Link, f.Slot), Owner: f.ID})
	}
	return out, nil
}

// firewall lists what the installation has on the host beside its sandboxes: its table, rules in other programs' tables.
func firewall(ctx context.Context, cfg config, installation string) ([]node.Object, error) {
	o, err := networkOptions(cfg, installation, 0)
	if err != nil {
		return nil, err
	}
	held, err := hostnet.Holds(ctx, o)
	if err != nil {
		return nil, err
	}
	var out []node.Object
	if held.Table != "" {
		out = append(out, node.Object{Name: "table " + held.Table, Owner: node.OwnerInstallation})
	}
	for _, f := range held.Foreign {
		out = append(out, node.Object{Name: fmt.Sprintf("rule in %s %s: %s", f.Table, f.Chain, f.What), Owner: node.OwnerInstallation})
	}
	return out, nil
}

// mounts lists what is mounted below the data directory and on the run directory, in this mount namespace.
func mounts(dataDir, runDir string) ([]node.Object, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []node.Object
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && (fields[4] == runDir || strings.HasPrefix(fields[4], dataDir+"/")) {
			out = append(out, node.Object{Name: fields[4], Owner: node.OwnerInstallation})
		}
	}
	return out, lines.Err()
}

// loops lists loop devices that a file of the data directory backs.
func loops(dataDir string) ([]node.Object, error) {
	found, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var out []node.Object
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(string(b), dataDir+"/") {
			out = append(out, node.Object{Name: "/dev/" + strings.Split(path, "/")[3], Owner: node.OwnerInstallation})
		}
	}
	return out, nil
}
