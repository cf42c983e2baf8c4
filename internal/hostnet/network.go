package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attachParallel is how many Attach calls work in the kernel at once: they all need its one routing lock, and more of them only
// hand it back and forth.
const attachParallel = 1

// Network is the open network of one installation. Its methods may be called from several goroutines; for one slot the
// caller keeps Attach and Detach in order.
type Network struct {
	options Options
	block   netip.Prefix
	host    *host
	set     *elements

	rulesMu sync.Mutex // one writer of whole tables at a time
	rules   *ruleset

	mu        sync.Mutex
	mtu       uint32
	upstreams upstreams
	foreign   []ForeignRule

	turn     chan struct{} // holds one token for each Attach at work in the kernel
	reaper   reaper
	watchers []interface{ Close() error }
	done     chan struct{}
	wait     sync.WaitGroup
}

// Open makes or repairs the installation's table, turns forwarding on and starts watching the firewall and the resolver
// configuration. Sandboxes of an earlier process keep their network throughout. The caller keeps two processes of one
// installation apart. CodeInvalid: an option is wrong. CodeConflict: the block overlaps a route or address of the host.
func Open(ctx context.Context, options Options) (*Network, error) {
	options, err := options.filled()
	if err != nil {
		return nil, err
	}
	h, err := openHost(options.Netns)
	if err != nil {
		return nil, err
	}
	n := &Network{options: options, block: Block(options.Range, options.Block), host: h,
		turn: make(chan struct{}, attachParallel), done: make(chan struct{})}
	n.rules = newRuleset(options.Installation, n.block)
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Network) open(ctx context.Context) error {
	if err := checkBlock(n.host, n.options, n.rules.prefix); err != nil {
		return err
	}
	conn, err := n.host.nftables()
	if err != nil {
		return err
	}
	n.set = &elements{conn: conn, rules: n.rules, bySlot: make(map[int]element)}
	if err := n.set.load(); err != nil {
		return err
	}
	if err := n.sweepUnfinished(); err != nil {
		return err
	}
	if err := n.forgetStrangers(); err != nil {
		return err
	}
	n.mtu = hostMTU(n.host)
	n.upstreams = findUpstreams(n.options)
	n.reaper.start(n)
	// The watchers subscribe before the state is read, so that no change falls between.
	if err := n.startWatching(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return withStateLock(n.options.StateDir, func() error {
		if err := n.repair(); err != nil {
			return err
		}
		return n.host.run(func() error { return forwardOn(n.options.StateDir) })
	})
}

// forgetStrangers drops the remembered connections of addresses that nobody owns now; an earlier process may have ended
// before it did.
func (n *Network) forgetStrangers() error {
	owned := make(map[netip.Addr]bool)
	for _, e := range n.set.list() {
		owned[e.address] = true
	}
	return n.host.run(func() error {
		return forgetConnections(netip.Addr{}, func(a netip.Addr) bool { return n.block.Contains(a) && !owned[a] })
	})
}

// repair brings the table and the foreign rules to what they should be. It changes nothing that is right already.
func (n *Network) repair() error {
	n.rulesMu.Lock()
	defer n.rulesMu.Unlock()
	conn, err := n.host.nftables()
	if err != nil {
		return err
	}
	defer conn.CloseLasting()
	whole, err := n.rules.whole(n.host, conn)
	if err != nil {
		return err
	}
	if !whole {
		n.mu.Lock()
		up := n.upstreams
		n.mu.Unlock()
		if err := n.set.reinstall(func(boxes []nftables.SetElement) error {
			return n.rules.install(conn, n.options, boxes, up.addrs)
		}); err != nil {
			return err
		}
	}
	return n.repairForeign(conn)
}

// Close stops watching, finishes the removal of links that wait for it, and keeps everything in the kernel as it is.
func (n *Network) Close() error {
	select {
	case <-n.done:
		return nil
	default:
		close(n.done)
	}
	var errs []error
	for _, w := range n.watchers {
		errs = append(errs, w.Close())
	}
	n.wait.Wait()
	if n.set != nil {
		errs = append(errs, n.set.conn.CloseLasting())
	}
	n.host.close()
	return errors.Join(errs...)
}

// Attach gives the sandbox id its pair of links, addresses and permission, all or nothing, brings its loopback up and turns
// IPv6 off in it. netns is the sandbox's network namespace; it stays the caller's. Leftovers of the slot are replaced. Beside waiting for the kernel's routing lock it
// does not block.
func (n *Network) Attach(ctx context.Context, slot int, id string, netns *os.File) error {
	if err := checkSlot(slot, id); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	n.mu.Lock()
	p := pair{
		name: linkName(n.options.Installation, slot, id), id: id, mtu: n.mtu, routeLocalnet: n.upstreams.loopback,
		gateway: gateway(n.block, slot), address: address(n.block, slot),
	}
	n.mu.Unlock()
	if err := n.evict(slot); err != nil {
		return err
	}
	err := n.reaper.reuse(p.name, p.address)
	if err != nil {
		return fmt.Errorf("attach network of %s: %w", id, err)
	}
	select {
	case n.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err = n.host.run(func() error { return p.create(n.host, netns) })
	<-n.turn
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = n.permit(element{slot: slot, id: id, name: p.name, address: p.address})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("attach network of %s: %w", id, err), n.deleteLinks(p.name))
	}
	return nil
}

// evict takes away the permission of whoever has the slot still: a leftover, since the caller gives each slot once.
func (n *Network) evict(slot int) error {
	old, ok := n.set.owner(slot)
	if !ok {
		return nil
	}
	n.options.Log.Warn("a network slot was still in use", "slot", slot, "by", old.id)
	return n.Detach(context.Background(), slot, old.id)
}

// permit opens the rules for one sandbox; where somebody just took the whole table away it is put back first.
func (n *Network) permit(e element) error {
	err := n.set.add(e)
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := n.repair(); err != nil {
		return err
	}
	return n.set.add(e)
}

// deleteLinks removes links by name; those that are not there are no fault.
func (n *Network) deleteLinks(names ...string) error {
	return n.host.run(func() error { return deleteLinks(names) })
}

// Detach takes the sandbox's permission away: when it returns nothing passes in either direction and the slot may be given
// again; giving the same one again at once costs Attach some milliseconds, so give slots in turn. The link follows within
// seconds: it dies with its namespace, and what does not is deleted. Detaching what is not there succeeds.
func (n *Network) Detach(ctx context.Context, slot int, id string) error {
	if err := checkSlot(slot, id); err != nil {
		return err
	}
	if err := n.set.remove(slot, id); err != nil {
		return err
	}
	n.reaper.bury(linkName(n.options.Installation, slot, id), address(n.block, slot))
	return nil
}

// hostMTU is the MTU of the interface that the default route uses.
func hostMTU(h *host) uint32 {
	handle, err := h.netlink()
	if err != nil {
		return mtuFallback
	}
	defer handle.Close()
	routes, err := handle.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return mtuFallback
	}
	for _, r := range routes {
		if !defaultRoute(r) {
			continue
		}
		if link, err := handle.LinkByIndex(r.LinkIndex); err == nil && link.Attrs().MTU > 0 {
			return uint32(link.Attrs().MTU)
		}
	}
	return mtuFallback
}
