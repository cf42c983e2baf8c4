package boot

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// sysctls of the machine's own namespaces. A kernel without IPv6 lacks some; then there is nothing to switch off.
var sysctls = []struct {
	name, value string
	optional    bool
}{
	// No user namespace can be made inside: nobody gets capabilities back, whatever system call is tried.
	{"sys/user/max_user_namespaces", "0", false},
	{"sys/net/ipv6/conf/all/disable_ipv6", "1", true},
	{"sys/net/ipv6/conf/default/disable_ipv6", "1", true},
	{"sys/net/ipv4/ping_group_range", "0 65535", true},
	{"sys/net/ipv4/ip_unprivileged_port_start", "0", true},
}

// setSwitches sets the kernel's switches of this machine.
func (b *boot) setSwitches() error {
	for _, s := range sysctls {
		fd, err := unix.Openat(b.mounts.proc, s.name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if s.optional && errors.Is(err, unix.ENOENT) {
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
	return nil
}

// raiseLoopback brings loopback up. Interfaces to the outside are the driver's work.
func (b *boot) raiseLoopback() error {
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
