package main

import (
	"context"
	"fmt"
	"log/slog"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/disk/btrfs"
	"dayfly.dev/dayfly/internal/disk/plain"
)

// openPool opens the disk pool that the settings ask for. auto takes btrfs where it works, else plain, and says so.
func (h *host) openPool(ctx context.Context, cfg config, log *slog.Logger) (dayfly.Pool, error) {
	if cfg.Disk.Pool == "auto" {
		if r := btrfs.Probe(cfg.Data); !r.Works {
			log.Warn("disk limits are off: the pool is plain", "reasons", r.Reasons, "install", r.Install)
			h.notes = append(h.notes, "disk limits are off; `dayfly doctor` says what to install")
			cfg.Disk.Pool = "plain"
		}
	}
	if cfg.Disk.Pool == "plain" {
		p, err := plain.Open(ctx, plain.Options{DataDir: cfg.Data, Log: log})
		if err != nil {
			return nil, fmt.Errorf("open the disk pool: %w", err)
		}
		return p, nil
	}
	p, err := btrfs.Open(ctx, btrfs.Options{
		DataDir: cfg.Data, Quota: btrfs.Quota(cfg.Disk.Quota), SizeBytes: int64(cfg.Disk.SizeGB) << 30, Discard: cfg.Disk.Discard, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("open the disk pool: %w", err)
	}
	return p, nil
}
