package warden

import (
	"context"
	"fmt"

	"dayfly.dev/dayfly/internal/failpoint"
)

// Finish has the server's enforcer finish what an earlier server left half done. The server calls it at its start, before
// it renews any lease: an extend waits for marks of the dead. Files beside leases that are gone it removes.
func (g *Guard) Finish(ctx context.Context) error {
	failpoint.Hit("warden.finish.begin")
	ids, err := g.enforcer.Marked()
	if err != nil {
		return fmt.Errorf("look for marks of an earlier server: %w", err)
	}
	for _, id := range ids {
		if _, err := g.enforcer.End(ctx, id, g.opt.Clock.Now(), nil /* nothing known beside the file */); err != nil {
			g.opt.Log.Error("finish what an earlier server began", "sandbox", id, "error", err) // the warden goes on trying
		}
	}
	if err := g.dir.sweep(); err != nil {
		g.opt.Log.Warn("remove files of sandboxes that are gone", "error", err)
	}
	return ctx.Err()
}
