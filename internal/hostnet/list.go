package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Found is what the host holds for one sandbox.
type Found struct {
	ID        string // empty for a link that was never finished
	Slot      int
	Link      string // name of the host's end, or empty
	Permitted bool   // its packets pass
}

// List finds everything of an installation's sandboxes on the host, recorded or not, with or without an open Network; only
// Installation and Netns of the options matter. An error means "could not look", never "nothing there".
func List(ctx context.Context, options Options) ([]Found, error) {
	h, err := openHost(options.Netns)
	if err != nil {
		return nil, err
	}
	defer h.close()
	return list(ctx, h, options.Installation)
}

// List finds everything of this installation's sandboxes on the host, recorded or not.
func (n *Network) List(ctx context.Context) ([]Found, error) {
	return list(ctx, n.host, n.options.Installation)
}

func list(ctx context.Context, h *host, installation string) ([]Found, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	byLink := make(map[string]Found)
	links, err := ourLinks(h, installation)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		slot, _ := slotOfName(installation, l.Attrs().Name)
		byLink[l.Attrs().Name] = Found{ID: l.Attrs().Alias, Slot: slot, Link: l.Attrs().Name}
	}
	conn, err := h.nftables()
	if err != nil {
		return nil, err
	}
	defer conn.CloseLasting()
	permitted, err := permissions(conn, newRuleset(installation, netip.Prefix{}))
	if err != nil {
		return nil, err
	}
	for _, p := range permitted {
		e, _ := decodeElement(p, netip.Prefix{})
		f := byLink[e.name]
		f.ID, f.Permitted = e.id, true
		f.Slot, _ = slotOfName(installation, e.name)
		byLink[e.name] = f
	}
	found := make([]Found, 0, len(byLink))
	for _, f := range byLink {
		found = append(found, f)
	}
	slices.SortFunc(found, func(a, b Found) int { return a.Slot - b.Slot })
	return found, nil
}

// ourLinks are the host's ends of an installation's pairs.
func ourLinks(h *host, installation string) ([]netlink.Link, error) {
	return linksNamed(h, installationPrefix(installation))
}

func linksNamed(h *host, prefix string) ([]netlink.Link, error) {
	handle, err := h.netlink()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	links, err := handle.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return slices.DeleteFunc(links, func(l netlink.Link) bool {
		return !strings.HasPrefix(l.Attrs().Name, prefix)
	}), nil
}

// Reclaim removes everything of a sandbox at once, without knowing its slot. It is idempotent. It waits for the kernel to
// delete links, which takes tens of milliseconds.
func (n *Network) Reclaim(ctx context.Context, id string) error {
	found, err := list(ctx, n.host, n.options.Installation)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range found {
		if f.ID != id || id == "" {
			continue
		}
		if f.Permitted {
			errs = append(errs, n.set.remove(f.Slot, id))
			n.reaper.bury(linkName(n.options.Installation, f.Slot, id), address(n.block, f.Slot))
		}
		if f.Link != "" {
			errs = append(errs, n.deleteLinks(f.Link))
		}
	}
	return errors.Join(errs...)
}

// sweepUnfinished removes links that an Attach left when the process died in its middle: no sandbox was ever given them.
func (n *Network) sweepUnfinished() error {
	links, err := ourLinks(n.host, n.options.Installation)
	if err != nil {
		return err
	}
	var names []string
	for _, l := range links {
		if l.Attrs().Alias == "" {
			names = append(names, l.Attrs().Name)
		}
	}
	return n.deleteLinks(names...)
}

// routeLocalnet lets, or no longer lets, packets from sandboxes be translated to the host's loopback, on all links.
func (n *Network) routeLocalnet(on bool) error {
	links, err := ourLinks(n.host, n.options.Installation)
	if err != nil {
		return err
	}
	return n.host.run(func() error {
		r, err := openRTNL()
		if err != nil {
			return err
		}
		defer r.close()
		var errs []error
		for _, l := range links {
			header := nl.NewIfInfomsg(unix.AF_UNSPEC)
			header.Index = int32(l.Attrs().Index)
			family := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
			family.AddRtAttr(unix.AF_INET, nil).AddRtAttr(unix.IFLA_INET_CONF, nil).
				AddRtAttr(confRouteLocalnet, nl.Uint32Attr(boolNumber(on)))
			_, failed := r.do(request(unix.RTM_SETLINK, 0, header, family))
			if failed[0] != nil && !errors.Is(failed[0], unix.ENODEV) {
				errs = append(errs, named("set route_localnet of "+l.Attrs().Name, failed))
			}
		}
		return errors.Join(errs...)
	})
}
