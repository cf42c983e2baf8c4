package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
)

// Remove takes everything of an installation away from the host: links, rules in its own and in other tables, and, with the
// last installation, the forwarding that was turned on. No Network of it may be open. Only Installation, StateDir and Netns
// of the options matter. It does every step, joins the errors, and may be repeated.
func Remove(ctx context.Context, options Options) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, err := openHost(options.Netns)
	if err != nil {
		return err
	}
	defer h.close()
	return withStateLock(orDefault(options.StateDir, stateDir), func() error {
		var names []string
		links, err := ourLinks(h, options.Installation)
		errs := []error{err}
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		errs = append(errs, h.run(func() error { return deleteLinks(names) }))
		conn, err := h.nftables()
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		defer conn.CloseLasting()
		errs = append(errs, removeForeign(h, conn, options.Installation), removeTable(conn, options.Installation))
		others, err := installations(conn)
		errs = append(errs, err)
		if err == nil && others == 0 {
			errs = append(errs, h.run(func() error { return forwardBack(orDefault(options.StateDir, stateDir)) }))
		}
		return errors.Join(errs...)
	})
}

func removeTable(conn *nftables.Conn, installation string) error {
	table := newRuleset(installation, netip.Prefix{}).table
	conn.AddTable(table) // so that deleting it cannot fail for its absence
	conn.DelTable(table)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove table %s: %w", table.Name, err)
	}
	return nil
}

// installations counts the installations that have a table on the host.
func installations(conn *nftables.Conn) (int, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return 0, fmt.Errorf("list tables: %w", err)
	}
	n := 0
	for _, t := range tables {
		if ourTable(t) {
			n++
		}
	}
	return n, nil
}
