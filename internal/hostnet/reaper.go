package hostnet

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// reapAfter is how long what a detached sandbox leaves in the kernel may wait. Its link mostly dies with its namespace
// meanwhile: deleting one takes the kernel tens of milliseconds under a lock that every Attach needs. Its remembered
// connections are found by a walk over all of them, so one walk serves all sandboxes that ended in this time.
const reapAfter = time.Second

// reaper clears away, off the hot path, what detached sandboxes leave in the kernel.
type reaper struct {
	n    *Network
	wake chan struct{}

	forgetting sync.Mutex // one walk over the connections at a time

	mu    sync.Mutex
	links map[string]struct{}     // names to delete
	dirty map[netip.Addr]struct{} // addresses whose connections are still remembered
}

func (r *reaper) start(n *Network) {
	r.n, r.wake = n, make(chan struct{}, 1)
	r.links, r.dirty = make(map[string]struct{}), make(map[netip.Addr]struct{})
	n.wait.Go(r.run)
}

func (r *reaper) run() {
	timer := time.NewTimer(reapAfter)
	timer.Stop()
	for {
		select {
		case <-r.wake:
			timer.Reset(reapAfter)
		case <-timer.C:
			r.reap()
		case <-r.n.done:
			r.reap()
			return
		}
	}
}

// bury notes what a detached sandbox leaves.
func (r *reaper) bury(link string, address netip.Addr) {
	r.mu.Lock()
	first := len(r.links) == 0 && len(r.dirty) == 0
	r.links[link], r.dirty[address] = struct{}{}, struct{}{}
	r.mu.Unlock()
	if first { // else the timer runs already
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// reuse makes a link name and an address fit for a new owner. It is quick unless the address was given back within the last
// second: give addresses out in turn.
func (r *reaper) reuse(link string, address netip.Addr) error {
	r.mu.Lock()
	delete(r.links, link)
	_, dirty := r.dirty[address]
	r.mu.Unlock()
	if !dirty {
		return nil
	}
	return r.forget(address)
}

// forget drops the connections of all dirty addresses, unless wanted is valid and clean meanwhile.
func (r *reaper) forget(wanted netip.Addr) error {
	r.forgetting.Lock()
	defer r.forgetting.Unlock()
	r.mu.Lock()
	addresses := maps.Clone(r.dirty)
	r.mu.Unlock()
	if _, dirty := addresses[wanted]; wanted.IsValid() && !dirty {
		return nil // another walk was faster
	}
	if len(addresses) == 0 {
		return nil
	}
	var only netip.Addr
	if len(addresses) == 1 {
		for only = range addresses {
		}
	}
	err := r.n.host.run(func() error {
		return forgetConnections(only, func(a netip.Addr) bool { _, ok := addresses[a]; return ok })
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for a := range addresses {
		delete(r.dirty, a)
	}
	return nil
}

func (r *reaper) reap() {
	if err := r.forget(netip.Addr{}); err != nil {
		r.n.options.Log.Warn("connections of ended sandboxes stay remembered", "error", err)
	}
	r.mu.Lock()
	names := slices.Collect(maps.Keys(r.links))
	clear(r.links)
	r.mu.Unlock()
	if err := r.n.deleteLinks(names...); err != nil {
		r.n.options.Log.Warn("links of ended sandboxes stay", "links", names, "error", err)
	}
}
