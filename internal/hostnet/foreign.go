package hostnet

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ForeignRule is a rule of ours in another program's table: a drop there would beat every accept of our own table.
type ForeignRule struct {
	Table string // with its family, like "ip filter"
	Chain string
	What  string // which packets it accepts; empty where only the kernel was asked
}

// foreignMark is the comment of our rules in other tables.
func foreignMark(installation string) []byte { return comment("dayfly " + installation) }

// wantedForeign are the rules that another table needs at a hook so that it lets our links be judged by our own table.
func wantedForeign(prefix string, hook nftables.ChainHook, loopbackDNS bool) []namedRule {
	switch {
	case hook == *nftables.ChainHookForward:
		return []namedRule{
			{"from sandboxes", join(fromLinks(prefix), accept())},
			{"to sandboxes", join(toLinks(prefix), accept())},
		}
	case hook == *nftables.ChainHookInput && loopbackDNS:
		return []namedRule{{"DNS of sandboxes", join(fromLinks(prefix), translatedDNS(), accept())}}
	}
	return nil
}

type namedRule struct {
	what  string
	exprs []expr.Any
}

// repairForeign inserts our rules at the top of every chain of another table that could drop our packets.
func (n *Network) repairForeign(conn *nftables.Conn) error {
	n.mu.Lock()
	loopback := n.upstreams.loopback
	n.mu.Unlock()
	chains, err := dropChains(n.host, conn)
	if err != nil {
		return err
	}
	mark := foreignMark(n.options.Installation)
	var present []ForeignRule
	inserted := 0
	for _, chain := range chains {
		wanted := wantedForeign(n.rules.prefix, *chain.Hooknum, loopback)
		ours, err := markedRules(n.host, chain, mark)
		if err != nil {
			return err
		}
		if len(ours) != len(wanted) {
			for _, r := range ours {
				if err := conn.DelRule(r); err != nil {
					return fmt.Errorf("replace rule in chain %s: %w", chain.Name, err)
				}
			}
			for _, w := range wanted {
				conn.InsertRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: w.exprs, UserData: mark})
				inserted++
			}
		}
		for _, w := range wanted {
			present = append(present, ForeignRule{Table: tableName(chain.Table), Chain: chain.Name, What: w.what})
		}
	}
	if err := conn.Flush(); err != nil {
		if missing(err) {
			return nil // the other program changed its chains just now: its change wakes us again
		}
		return fmt.Errorf("insert rules into other tables: %w", err)
	}
	if inserted > 0 {
		n.options.Log.Info("inserted accept rules into other firewalls' chains", "rules", inserted)
	}
	n.mu.Lock()
	n.foreign = present
	n.mu.Unlock()
	return nil
}

// ForeignRules lists our rules in other programs' tables, as last seen.
func (n *Network) ForeignRules() []ForeignRule {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]ForeignRule(nil), n.foreign...)
}

// dropChains finds the base chains of other tables at the forward and input hooks that drop packets, by policy or by a rule
// in them or in a chain that they may call.
func dropChains(h *host, conn *nftables.Conn) ([]*nftables.Chain, error) {
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	var found []*nftables.Chain
	for _, c := range chains {
		if !foreignBase(c) {
			continue
		}
		drops := c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
		for _, callee := range chains {
			if drops {
				break
			}
			sameTable := callee.Table.Name == c.Table.Name && callee.Table.Family == c.Table.Family
			if sameTable && (callee.Hooknum == nil || callee.Name == c.Name) {
				drops = chainDrops(h, callee)
			}
		}
		if drops {
			found = append(found, c)
		}
	}
	return found, nil
}

func foreignBase(c *nftables.Chain) bool {
	family := c.Table.Family
	return c.Hooknum != nil && c.Type == nftables.ChainTypeFilter && !ourTable(c.Table) &&
		(family == nftables.TableFamilyIPv4 || family == nftables.TableFamilyINet) &&
		(*c.Hooknum == *nftables.ChainHookForward || *c.Hooknum == *nftables.ChainHookInput)
}

// chainDrops tells whether a rule of the chain drops or rejects. What cannot be read is taken for a drop.
func chainDrops(h *host, c *nftables.Chain) bool {
	rules, err := h.dumpRules(c.Table, c.Name)
	return err != nil || slices.ContainsFunc(rules, func(r kernelRule) bool { return r.drops })
}

func markedRules(h *host, c *nftables.Chain, mark []byte) ([]*nftables.Rule, error) {
	rules, err := h.dumpRules(c.Table, c.Name)
	if err != nil {
		return nil, err
	}
	var ours []*nftables.Rule
	for _, r := range rules {
		if bytes.Equal(r.userData, mark) {
			ours = append(ours, &nftables.Rule{Table: c.Table, Chain: c, Handle: r.handle})
		}
	}
	return ours, nil
}

// removeForeign takes the rules of an installation out of all other tables.
func removeForeign(h *host, conn *nftables.Conn, installation string) error {
	chains, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	var errs []error
	for _, c := range chains {
		if !foreignBase(c) {
			continue
		}
		ours, err := markedRules(h, c, foreignMark(installation))
		errs = append(errs, err)
		for _, r := range ours {
			errs = append(errs, conn.DelRule(r))
		}
		if err := conn.Flush(); err != nil && !missing(err) {
			errs = append(errs, fmt.Errorf("remove rules from %s %s: %w", tableName(c.Table), c.Name, err))
		}
	}
	return errors.Join(errs...)
}

func tableName(t *nftables.Table) string {
	family := "inet"
	if t.Family == nftables.TableFamilyIPv4 {
		family = "ip"
	}
	return family + " " + t.Name
}

// ourTable tells whether a table belongs to this or another installation.
func ourTable(t *nftables.Table) bool {
	return t.Family == unix.NFPROTO_INET && len(t.Name) == len(tablePrefix)+6 && t.Name[:len(tablePrefix)] == tablePrefix
}
