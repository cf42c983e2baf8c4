package hostnet

import (
	"fmt"
	"os"
	"runtime"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// host is the way into the namespace that plays the host: usually the process's own.
type host struct {
	self *os.File // the process's namespace
	ns   *os.File // the host's namespace
}

func openHost(ns *os.File) (*host, error) {
	self, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	if ns == nil {
		ns = self
	}
	fd, err := unix.FcntlInt(ns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		_ = self.Close()
		return nil, fmt.Errorf("duplicate host network namespace: %w", err)
	}
	return &host{self: self, ns: os.NewFile(uintptr(fd), "hostns")}, nil
}

func (h *host) close() {
	_ = h.self.Close()
	_ = h.ns.Close()
}

// run calls fn on a thread that is in the host's namespace and waits for it. fn may move the thread with enter; it is put
// back into the process's namespace afterwards, or thrown away when that fails.
func (h *host) run(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := enter(h.ns)
		if err == nil {
			err = fn()
		}
		if enter(h.self) == nil {
			runtime.UnlockOSThread() // else the thread ends with this goroutine
		}
		result <- err
	}()
	return <-result
}

// enter moves the calling, locked thread into ns.
func enter(ns *os.File) error {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// netlink opens a routing socket in the host's namespace; the caller closes it.
func (h *host) netlink() (*netlink.Handle, error) {
	handle, err := netlink.NewHandleAt(netns.NsHandle(h.ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routing socket: %w", err)
	}
	return handle, nil
}

// nftables opens an nftables socket in the host's namespace; the caller closes it.
func (h *host) nftables() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(int(h.ns.Fd())), nftables.WithSockOptions(bigBuffers))
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return conn, nil
}
