package hostnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
)

// Holdings is what an installation as a whole has on the host, beside what List finds for each sandbox.
type Holdings struct {
	Table      string        // of its rules, like "inet dayfly_abc123", or empty
	Foreign    []ForeignRule // its rules in other programs' tables
	ForwardWas string        // what Remove of the last installation sets ip_forward to, or empty
}

// Holds looks up an installation's holdings, with or without an open Network; only Installation, StateDir and Netns of the
// options matter. An error means "could not look", never "nothing there".
func Holds(ctx context.Context, options Options) (Holdings, error) {
	var found Holdings
	if err := ctx.Err(); err != nil {
		return found, err
	}
	h, err := openHost(options.Netns)
	if err != nil {
		return found, err
	}
	defer h.close()
	conn, err := h.nftables()
	if err != nil {
		return found, err
	}
	defer conn.CloseLasting()
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return found, fmt.Errorf("list tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == tablePrefix+options.Installation {
			found.Table = tableName(t)
		}
	}
	if found.Foreign, err = holdsForeign(h, conn, options.Installation); err != nil {
		return found, err
	}
	was, err := os.ReadFile(filepath.Join(orDefault(options.StateDir, stateDir), forwardFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return found, fmt.Errorf("recall %s: %w", forwardSysctl, err)
	}
	if found.Table != "" {
		found.ForwardWas = strings.TrimSpace(string(was))
	}
	return found, nil
}

func holdsForeign(h *host, conn *nftables.Conn, installation string) ([]ForeignRule, error) {
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	var found []ForeignRule
	for _, c := range chains {
		if !foreignBase(c) {
			continue
		}
		ours, err := markedRules(h, c, foreignMark(installation))
		if err != nil {
			return nil, err
		}
		for range ours {
			found = append(found, ForeignRule{Table: tableName(c.Table), Chain: c.Name})
		}
	}
	return found, nil
}
