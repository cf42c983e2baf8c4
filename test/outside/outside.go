// Package outside is the rest of the world for demo and tests, on this machine alone: a network namespace behind a veth
// pair, with a public-looking address of a documentation range, in which a git server, a Python package index and an upload
// target listen. No packet leaves the machine. It is not part of the product.
//
// To add one more service, give it a path in World.handler.
package outside

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/cleanup"
)

// World is the outside. Close takes it away.
type World struct {
	URL     string // of the server, without a slash at the end
	Uploads *Uploads
	dir     string
	srv     *http.Server
	undo    cleanup.Stack
	served  chan error
}

// Options say what the world holds.
type Options struct {
	Wheels string // directory of wheels that the package index serves, or empty for no index
	// Further is what else is served, by the pattern of its path; or nil.
	Further map[string]http.Handler
}

// subnets are where worlds get their addresses from: documentation ranges, never routed anywhere.
var subnets = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("198.51.100.0/24")}

const (
	linkPrefix      = "dwo" // of the host's end of the veth pair
	shutdownTimeout = 5 * time.Second
)

// Start makes a world. It needs root.
func Start(ctx context.Context, o Options) (*World, error) {
	w := &World{Uploads: newUploads(), served: make(chan error, 1)}
	started := false
	defer func() {
		if !started {
			w.undo.Clean()
		}
	}()
	dir, err := os.MkdirTemp("", "dayfly-outside-")
	if err != nil {
		return nil, err
	}
	w.dir = dir
	w.undo.Add(func() { _ = os.RemoveAll(dir) })
	if err := w.makeRepository(ctx); err != nil {
		return nil, fmt.Errorf("make the repository: %w", err)
	}
	listener, err := w.connect()
	if err != nil {
		return nil, fmt.Errorf("make the outside's network: %w", err)
	}
	w.URL = "http://" + listener.Addr().String()
	if err := w.fillRepository(ctx); err != nil {
		return nil, fmt.Errorf("fill the repository: %w", err)
	}
	w.srv = &http.Server{Handler: w.handler(o), ReadHeaderTimeout: shutdownTimeout}
	go func() { w.served <- w.srv.Serve(listener) }()
	started = true
	return w, nil
}

// Close stops the servers and takes the network away.
func (w *World) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := w.srv.Shutdown(ctx)
	if served := <-w.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	w.undo.Clean()
	return err
}

func (w *World) handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/git/", gitHandler(w.dir))
	mux.Handle("/upload/", w.Uploads)
	for pattern, h := range o.Further {
		mux.Handle(pattern, h)
	}
	if o.Wheels != "" {
		mux.Handle("/simple/", indexHandler(o.Wheels))
		mux.Handle("/wheels/", http.StripPrefix("/wheels/", http.FileServer(http.Dir(o.Wheels))))
	}
	return mux
}

// connect makes the namespace and the veth pair and listens inside.
func (w *World) connect() (net.Listener, error) {
	type made struct {
		listener net.Listener
		err      error
	}
	result := make(chan made, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		l, err := w.connectHere()
		result <- made{l, err}
	}()
	m := <-result
	return m.listener, m.err
}

// connectHere does the work of connect on a thread of its own, which it moves into a new namespace.
func (w *World) connectHere() (net.Listener, error) {
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer host.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("unshare: %w", err)
	}
	inside, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	w.undo.Add(func() { _ = inside.Close() })
	if err := unix.Setns(int(host.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	near, far, name, err := w.link(inside)
	if err != nil {
		return nil, err
	}
	if err := unix.Setns(int(inside.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	if err := up(name+"p", far); err != nil {
		return nil, err
	}
	if err := netlink.RouteAdd(&netlink.Route{Gw: near.Addr().AsSlice()}); err != nil {
		return nil, fmt.Errorf("route: %w", err)
	}
	return net.Listen("tcp", netip.AddrPortFrom(far.Addr(), 80).String())
}

// link makes the veth pair on the first free addresses and brings the host's end up.
func (w *World) link(inside *os.File) (near, far netip.Prefix, name string, err error) {
	for _, subnet := range subnets {
		for base := subnet.Addr(); subnet.Contains(base); base = plus(base, 4) {
			name = fmt.Sprintf("%s%d", linkPrefix, int(base.As4()[0])<<8+int(base.As4()[3]))
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			pair := &netlink.Veth{LinkAttrs: attrs, PeerName: name + "p", PeerNamespace: netlink.NsFd(int(inside.Fd()))}
			err = netlink.LinkAdd(pair)
			if errors.Is(err, unix.EEXIST) {
				continue // another world's
			}
			if err != nil {
				return near, far, name, fmt.Errorf("make %s: %w", name, err)
			}
			w.undo.Add(func() { _ = netlink.LinkDel(pair) })
			near, far = netip.PrefixFrom(plus(base, 1), 30), netip.PrefixFrom(plus(base, 2), 30)
			return near, far, name, up(name, near)
		}
	}
	return near, far, "", errors.New("every address is taken by another world")
}

func up(name string, addr netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: addr.Addr().AsSlice(), Mask: net.CIDRMask(addr.Bits(), 32)}}
	if err := netlink.AddrAdd(l, ip); err != nil {
		return fmt.Errorf("address of %s: %w", name, err)
	}
	return netlink.LinkSetUp(l)
}

func plus(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

func (w *World) repository() string { return filepath.Join(w.dir, "git", RepositoryName) }
