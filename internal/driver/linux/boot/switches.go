package boot

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/driver/loopback"
)

// sysctls of the machine's own namespaces. A kernel without IPv6 lacks some; then there is nothing to switch off.
var sysctls = []struct {
	name, value string
	optional    bool
}{
	// No user namespace can be made inside: nobody gets capabilities back, whatever system call is tried.
	{"sys/user/max_user_namespaces", "0", false},
	{"sys/net/ipv4/ping_group_range", "0 65535", true},
	{"sys/net/ipv4/ip_unprivileged_port_start", "0", true},
}

// What System V objects may hold: they outlive the processes that made them, so killing those frees nothing.
const (
	segmentShare = 4        // one part in so many of the memory may be shared memory segments
	queueShare   = 16       // and messages in queues
	queueBytes   = 16 << 10 // of one queue, the kernel's default
	queuesMax    = 32_000   // the kernel's default
)

// setSwitches sets the kernel's switches of this machine.
func (b *boot) setSwitches() error {
	for _, s := range sysctls {
		if err := b.setSwitch(s.name, s.value, s.optional); err != nil {
			return err
		}
	}
	return nil
}

// limitIPC keeps what no process owns well below the machine's memory.
func (b *boot) limitIPC() error {
	memory := b.cfg.Limits.MemoryBytes
	if memory <= 0 {
		return nil
	}
	pages := memory / segmentShare / int64(os.Getpagesize())
	queues := min(queuesMax, memory/queueShare/queueBytes)
	return errors.Join(
		b.setSwitch("sys/kernel/shmall", strconv.FormatInt(pages, 10), true /* a kernel without System V objects */),
		b.setSwitch("sys/kernel/msgmni", strconv.FormatInt(queues, 10), true),
	)
}

func (b *boot) setSwitch(name, value string, optional bool) error {
	fd, err := unix.Openat(b.mounts.proc, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if optional && errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	_, err = unix.Write(fd, []byte(value))
	_ = unix.Close(fd)
	if err != nil {
		return fmt.Errorf("set %s: %w", name, err)
	}
	return nil
}

// closeNetwork makes a network of loopback alone, without IPv6. A machine that the node connects gets both from there: these
// settings take the kernel's one routing lock, for which a write of a setting spins.
func (b *boot) closeNetwork() error {
	if b.cfg.Network {
		return nil
	}
	// "all" counts for interfaces that come later too.
	if err := b.setSwitch("sys/net/ipv6/conf/all/disable_ipv6", "1", true); err != nil {
		return err
	}
	return loopback.Up()
}
