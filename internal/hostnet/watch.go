package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	inotifyBufferBytes = 16 << 10
	inotifyMask        = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_DELETE
)

// startWatching subscribes to the firewall and to the resolver configuration, and follows both until Close.
func (n *Network) startWatching() error {
	rules, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(n.host.ns.Fd())})
	if err != nil {
		return fmt.Errorf("open firewall events: %w", err)
	}
	n.watchers = append(n.watchers, rules)
	if err := rules.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("subscribe to firewall events: %w", err)
	}
	files, err := openInotify()
	if err != nil {
		return err
	}
	n.watchers = append(n.watchers, files)
	n.watchResolvConf(files)
	n.wait.Go(func() { n.followRules(rules) })
	n.wait.Go(func() { n.followResolvConf(files) })
	return nil
}

// followRules repairs what another program changed. Our own changes come back as events too; they need no repair, so it
// settles after one look.
func (n *Network) followRules(events *netlink.Conn) {
	changed := false
	for {
		messages, err := events.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			changed = true // events were lost
		case err != nil:
			select {
			case <-n.done:
			default:
				n.options.Log.Error("firewall changes are no longer seen", "error", err)
			}
			return
		}
		end := err != nil
		for _, m := range messages {
			if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES {
				continue
			}
			switch m.Header.Type & 0xff {
			case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN,
				unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
				changed = true
			case unix.NFT_MSG_NEWGEN: // a transaction is complete
				end = true
			}
		}
		if changed && end {
			changed = false
			if err := n.repair(); err != nil {
				n.options.Log.Error("firewall rules could not be repaired", "error", err)
			}
		}
	}
}

func openInotify() (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

// watchResolvConf watches the directories of the configuration and of what it links to. Files are replaced by renaming, so
// watching them alone would miss every change after the first. Watching twice is watching once.
func (n *Network) watchResolvConf(files *os.File) {
	raw, err := files.SyscallConn()
	if err != nil {
		return
	}
	for _, path := range []string{n.options.ResolvConf, n.options.SystemdResolvConf} {
		watch := []string{filepath.Dir(path)}
		if target, err := filepath.EvalSymlinks(path); err == nil {
			watch = append(watch, filepath.Dir(target))
		}
		for _, dir := range watch {
			_ = raw.Control(func(fd uintptr) { _, _ = unix.InotifyAddWatch(int(fd), dir, inotifyMask) })
		}
	}
}

func (n *Network) followResolvConf(files *os.File) {
	buf := make([]byte, inotifyBufferBytes)
	for {
		size, err := files.Read(buf)
		if err != nil {
			return // closed
		}
		if !n.concerns(buf[:size]) {
			continue
		}
		n.watchResolvConf(files)
		if err := n.reloadUpstreams(); err != nil {
			n.options.Log.Error("new resolvers could not be taken over", "error", err)
		}
	}
}

// concerns tells whether one of the events is about a file that we read, so that busy directories cost nothing.
func (n *Network) concerns(events []byte) bool {
	names := map[string]bool{}
	for _, path := range []string{n.options.ResolvConf, n.options.SystemdResolvConf} {
		names[filepath.Base(path)] = true
		if target, err := filepath.EvalSymlinks(path); err == nil {
			names[filepath.Base(target)] = true
		}
	}
	for len(events) >= unix.SizeofInotifyEvent {
		length := int(binary.NativeEndian.Uint32(events[12:16]))
		end := min(len(events), unix.SizeofInotifyEvent+length)
		name := events[unix.SizeofInotifyEvent:end]
		for i, c := range name {
			if c == 0 {
				name = name[:i]
				break
			}
		}
		if binary.NativeEndian.Uint32(events[4:8])&unix.IN_Q_OVERFLOW != 0 || names[string(name)] {
			return true
		}
		events = events[end:]
	}
	return false
}

// reloadUpstreams reads the configuration again and, when it names other resolvers, turns DNS over to them for all sandboxes.
func (n *Network) reloadUpstreams() error {
	found := findUpstreams(n.options)
	n.mu.Lock()
	old := n.upstreams
	n.upstreams = found
	n.mu.Unlock()
	if found.equal(old) {
		return nil
	}
	n.options.Log.Info("the host's resolvers changed", "resolvers", found.addrs, "loopback", found.loopback)
	if err := n.replaceUpstreams(found); err != nil {
		return err
	}
	if found.loopback != old.loopback {
		return errors.Join(n.routeLocalnet(found.loopback), n.repair())
	}
	return nil
}

func (n *Network) replaceUpstreams(u upstreams) error {
	n.rulesMu.Lock()
	defer n.rulesMu.Unlock()
	conn, err := n.host.nftables()
	if err != nil {
		return err
	}
	defer conn.CloseLasting()
	conn.FlushSet(n.rules.dns)
	if elements := upstreamElements(u.addrs); elements != nil {
		if err := conn.SetAddElements(n.rules.dns, elements); err != nil {
			return fmt.Errorf("encode resolvers: %w", err)
		}
	}
	if err := conn.Flush(); err != nil && !missing(err) { // a missing table is put back with the new ones
		return fmt.Errorf("replace resolvers: %w", err)
	}
	return nil
}
