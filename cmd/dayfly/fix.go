package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/node"
	sdk "dayfly.dev/dayfly/sdk/go"
)

// Bounds of audit --fix.
const (
	fixMax      = 5 * time.Minute
	reclaimMax  = 10 * time.Second // for space to come back after that
	reclaimLook = 50 * time.Millisecond
)

// fix reclaims what is unaccounted for and gives what was done. With a server up the server does it; else this process does
// what a start of the server does, on the same paths: what lives under a valid lease is adopted, the rest goes.
func fix(ctx context.Context, cfg config) (sdk.Swept, error) {
	ctx, cancel := context.WithTimeout(ctx, fixMax)
	defer cancel()
	if info, running := runningServer(cfg.Data); running {
		return askServer(ctx, cfg, info)
	}
	found, err := audit(ctx, cfg)
	if err != nil || wrong(found) == 0 {
		return shown(control.Swept{}), err // nothing to open the host for
	}
	log := newLogger("error")
	h, err := openHost(ctx, cfg, log)
	if err != nil {
		return sdk.Swept{}, err
	}
	defer h.close()
	plane := control.New(h.store, h.node, h.images, cfg.control(), log)
	defer plane.Close()
	swept, err := plane.Repair(ctx)
	return shown(swept), errors.Join(err, awaitSpace(ctx, h.pool))
}

// awaitSpace waits until the space of removed disks is back: once this process ends, nobody works on it until the next start.
// Longer than reclaimMax it does not: the rest is safe to leave, and audit shows it. Pools tell no event.
func awaitSpace(ctx context.Context, pool dayfly.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, reclaimMax)
	defer cancel()
	tick := time.NewTicker(reclaimLook)
	defer tick.Stop()
	for {
		if n, err := pool.Reclaiming(ctx); n == 0 || ctx.Err() != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// shown is what a server would have answered.
func shown(s control.Swept) sdk.Swept {
	out := sdk.Swept{Findings: []sdk.Finding{}, Ended: []string{}, Left: s.Left}
	for _, f := range s.Findings {
		out.Findings = append(out.Findings, sdk.Finding(f))
	}
	for _, e := range s.Ended {
		out.Ended = append(out.Ended, e.ID)
	}
	return out
}

// askServer has the running server of a data directory do it, with the key that its first start left there.
func askServer(ctx context.Context, cfg config, info serverInfo) (sdk.Swept, error) {
	if info.URL == "" {
		return sdk.Swept{}, dayfly.Errorf(dayfly.CodeUnavailable, "the server of %s is starting or stopping", cfg.Data).WithHint("try again in a moment")
	}
	path := filepath.Join(cfg.Data, adminKeyFile)
	key, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return sdk.Swept{}, dayfly.Errorf(dayfly.CodeUnauthorized, "there is no admin key in %s", path).
			WithHint("stop the server with `dayfly down`, which ends no sandbox, and try again")
	}
	if err != nil {
		return sdk.Swept{}, fmt.Errorf("read the admin key: %w", err)
	}
	client, err := sdk.New(sdk.Options{URL: info.URL, APIKey: strings.TrimSpace(string(key)), DataDir: cfg.Data})
	if err != nil {
		return sdk.Swept{}, err
	}
	return client.Sweep(ctx)
}

// printFixed says what was done, a line for each thing.
func printFixed(cmd *cobra.Command, s sdk.Swept) {
	out := cmd.OutOrStdout()
	for _, f := range s.Findings {
		fmt.Fprintf(out, "%s  %s  %s: %s; %s\n", f.Sandbox, f.Kind, f.Name, f.Why, f.Done)
	}
	for _, id := range s.Ended {
		fmt.Fprintf(out, "%s  record: it was not there any more; recorded as ended\n", id)
	}
}

// wrong counts what is not as it should be.
func wrong(found []node.Object) int {
	n := 0
	for _, o := range found {
		if o.State == node.ObjectUnaccounted || o.State == node.ObjectMissing {
			n++
		}
	}
	return n
}
