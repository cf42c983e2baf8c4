package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Numbers of the connection tracking protocol (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctTupleOriginal = 1
	ctTupleIP       = 1
	ctIPv4Source    = 1
	ctFilter        = 25
	ctFilterFlags   = 1 // of the original direction
	ctFilterSource  = 1 << 0

	connectionsPerBatch = 128
)

// forgetConnections drops what the kernel remembers of flows that were opened from the addresses that old picks. The next
// owner of such an address must inherit none: a peer could keep an old flow alive and send into it. only, when valid, lets
// the kernel look for that one address. It walks the kernel's whole table, which takes ten milliseconds and more, and runs
// on a thread in the host's namespace.
func forgetConnections(only netip.Addr, old func(source netip.Addr) bool) error {
	tuples, err := connectionsFrom(only, old)
	if err != nil || len(tuples) == 0 {
		return err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open connection tracking socket: %w", err)
	}
	defer conn.Close()
	for len(tuples) > 0 {
		n := min(len(tuples), connectionsPerBatch)
		if err := deleteConnections(conn, tuples[:n]); err != nil {
			return err
		}
		tuples = tuples[n:]
	}
	return nil
}

// connectionsFrom lists connections as encoded tuples. It reads them as they come: a busy host has hundreds of thousands.
func connectionsFrom(only netip.Addr, old func(netip.Addr) bool) (tuples [][]byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open connection tracking socket: %w", err)
	}
	defer unix.Close(fd)
	body := nfHeader()
	if only.IsValid() {
		if body, err = encodeFilter(only); err != nil {
			return nil, err
		}
	}
	head := netlink.Header{Length: uint32(unix.SizeofNlMsghdr + len(body)), Type: ctGet, Flags: netlink.Request | netlink.Dump}
	out, err := netlink.Message{Header: head, Data: body}.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("encode connection query: %w", err)
	}
	if err := unix.Sendto(fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("list connections: %w", err)
	}
	buf := make([]byte, rtnlBufferBytes)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list connections: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return nil, fmt.Errorf("list connections: %w", err)
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return tuples, nil
			case unix.NLMSG_ERROR:
				return nil, fmt.Errorf("list connections: %w", errnoOf(m.Data))
			}
			source, tuple, err := originalTuple(m.Data)
			if err != nil {
				return nil, err
			}
			if old(source) {
				tuples = append(tuples, tuple)
			}
		}
	}
}

// errnoOf reads the code of an error message.
func errnoOf(data []byte) error {
	if len(data) < 4 {
		return errors.New("the kernel's answer is too short")
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
}

func nfHeader() []byte { return []byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0} }

func encodeFilter(source netip.Addr) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.Nested(ctTupleOriginal, func(tuple *netlink.AttributeEncoder) error {
		tuple.Nested(ctTupleIP, func(ip *netlink.AttributeEncoder) error {
			ip.Bytes(ctIPv4Source, source.AsSlice())
			return nil
		})
		return nil
	})
	e.Nested(ctFilter, func(filter *netlink.AttributeEncoder) error {
		filter.Uint32(ctFilterFlags, ctFilterSource)
		return nil
	})
	attributes, err := e.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode connection filter: %w", err)
	}
	return append(nfHeader(), attributes...), nil
}

// deleteConnections deletes the connections that the tuples name. One that ended by itself is no fault.
func deleteConnections(conn *netlink.Conn, tuples [][]byte) error {
	var batch []netlink.Message
	for _, tuple := range tuples {
		batch = append(batch, netlink.Message{
			Header: netlink.Header{Type: ctDelete, Flags: netlink.Request | netlink.Acknowledge}, Data: append(nfHeader(), tuple...)})
	}
	if _, err := conn.SendMessages(batch); err != nil {
		return fmt.Errorf("delete connections: %w", err)
	}
	for range batch {
		if _, err := conn.Receive(); err != nil && !missing(err) {
			return fmt.Errorf("delete connections: %w", err)
		}
	}
	return nil
}

// originalTuple cuts the original direction out of a connection: who opened it, and its encoding for a deletion.
func originalTuple(data []byte) (source netip.Addr, encoded []byte, err error) {
	if len(data) < len(nfHeader()) {
		return source, nil, fmt.Errorf("decode connection: %d bytes are too few", len(data))
	}
	d, err := netlink.NewAttributeDecoder(data[len(nfHeader()):])
	if err != nil {
		return source, nil, fmt.Errorf("decode connection: %w", err)
	}
	for d.Next() {
		if d.Type() != ctTupleOriginal {
			continue
		}
		encoded, err = netlink.MarshalAttributes([]netlink.Attribute{{Type: ctTupleOriginal | netlink.Nested, Data: d.Bytes()}})
		d.Nested(func(tuple *netlink.AttributeDecoder) error {
			for tuple.Next() {
				if tuple.Type() == ctTupleIP {
					tuple.Nested(func(ip *netlink.AttributeDecoder) error {
						for ip.Next() {
							if ip.Type() == ctIPv4Source {
								source, _ = netip.AddrFromSlice(ip.Bytes())
							}
						}
						return nil
					})
				}
			}
			return nil
		})
		break
	}
	if err = errors.Join(err, d.Err()); err != nil {
		return source, nil, fmt.Errorf("decode connection: %w", err)
	}
	return source, encoded, nil
}
