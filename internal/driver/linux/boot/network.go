package boot

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// sysctls of the machine's own network namespace. A kernel without IPv6 lacks some; then there is nothing to switch off.
var sysctls = []struct{ name, value string }{
	{"sys/net/ipv6/conf/all/disable_ipv6", "1"},
	{"sys/net/ipv6/conf/default/disable_ipv6", "1"},
	{"sys/net/ipv4/ping_group_range", "0 65535"},
	{"sys/net/ipv4/ip_unprivileged_port_start", "0"},
}

// setUpNetwork brings loopback up and sets the namespace's switches. Interfaces to the outside are the driver's work.
func (b *boot) setUpNetwork() error {
	for _, s := range sysctls {
		fd, err := unix.Openat(b.mounts.proc, s.name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", s.name, err)
		}
		_, err = unix.Write(fd, []byte(s.value))
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("set %s: %w", s.name, err)
		}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}
