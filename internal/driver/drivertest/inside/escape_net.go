package main

import (
	"encoding/binary"
	"io"

	"golang.org/x/sys/unix"
)

const netlinkHead = 16 // bytes of a netlink message's head

// attribute is one netlink attribute.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// request sends one netlink message and gives the kernel's answer.
func request(family int, kind, flags uint16, body []byte) error {
	const answerWait = 5
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerWait}); err != nil {
		return err
	}
	m := binary.NativeEndian.AppendUint32(nil, uint32(netlinkHead+len(body)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m = append(binary.NativeEndian.AppendUint32(m, 1), 0, 0, 0, 0)
	if err := unix.Sendto(fd, append(m, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	b := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return err
	}
	if n < netlinkHead+4 {
		return io.ErrUnexpectedEOF
	}
	if kind := binary.NativeEndian.Uint16(b[4:]); kind != unix.NLMSG_ERROR {
		return nil // what was asked for
	}
	if errno := int32(binary.NativeEndian.Uint32(b[netlinkHead:])); errno != 0 {
		return unix.Errno(-errno)
	}
	return nil
}

// addLink makes a pair of interfaces.
func addLink() error {
	info := attribute(unix.IFLA_INFO_KIND, []byte("veth"))
	body := append(make([]byte, unix.SizeofIfInfomsg), attribute(unix.IFLA_IFNAME, []byte("attempt0\x00"))...)
	body = append(body, attribute(unix.IFLA_LINKINFO, info)...)
	return request(unix.NETLINK_ROUTE, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body)
}

// addAddress gives loopback, which is the first interface, an address of documentation.
func addAddress() error {
	const bits, loopback = 32, 1
	head := []byte{unix.AF_INET, bits, 0, 0}
	head = binary.NativeEndian.AppendUint32(head, loopback)
	return request(unix.NETLINK_ROUTE, unix.RTM_NEWADDR, unix.NLM_F_CREATE, append(head, attribute(unix.IFA_LOCAL, []byte{192, 0, 2, 77})...))
}

func loopbackDown() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(0)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

func socketOption(option, value int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, value)
}

// firewall asks for the rules of the kernel's packet filter.
func firewall() error {
	const subsystem, getGeneration = 10 << 8, 16
	return request(unix.NETLINK_NETFILTER, subsystem|getGeneration, 0, []byte{unix.AF_UNSPEC, 0, 0, 0})
}

// auditOff asks the kernel to change nothing of its auditing, which takes the same right as switching it off.
func auditOff() error {
	const audit, set, statusBytes = 9, 1001, 40
	return request(audit, set, 0, make([]byte, statusBytes))
}
