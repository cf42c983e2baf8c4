package hostnet

import (
	"fmt"
	"net/netip"

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

// forgetConnections drops what the kernel remembers of flows that address opened, so that the next owner of the address
// inherits none: a peer could keep an old flow alive and send into it. It runs on a thread in the host's namespace.
func forgetConnections(address netip.Addr) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open connection tracking socket: %w", err)
	}
	defer conn.Close()
	from := address.As4()
	body, err := encodeFilter(from[:])
	if err != nil {
		return err
	}
	found, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: ctGet, Flags: netlink.Request | netlink.Dump}, Data: body})
	if err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	for len(found) > 0 {
		n := min(len(found), connectionsPerBatch)
		if err := deleteConnections(conn, found[:n]); err != nil {
			return err
		}
		found = found[n:]
	}
	return nil
}

func nfHeader() []byte { return []byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0} }

func encodeFilter(source []byte) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.Nested(ctTupleOriginal, func(tuple *netlink.AttributeEncoder) error {
		tuple.Nested(ctTupleIP, func(ip *netlink.AttributeEncoder) error {
			ip.Bytes(ctIPv4Source, source)
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

func deleteConnections(conn *netlink.Conn, found []netlink.Message) error {
	var batch []netlink.Message
	for _, m := range found {
		tuple, err := originalTuple(m.Data)
		if err != nil {
			return err
		}
		batch = append(batch, netlink.Message{
			Header: netlink.Header{Type: ctDelete, Flags: netlink.Request | netlink.Acknowledge}, Data: append(nfHeader(), tuple...)})
	}
	if _, err := conn.SendMessages(batch); err != nil {
		return fmt.Errorf("delete connections: %w", err)
	}
	for range batch {
		if _, err := conn.Receive(); err != nil && !missing(err) { // one that ended by itself is no fault
			return fmt.Errorf("delete connections: %w", err)
		}
	}
	return nil
}

// originalTuple cuts the original direction out of a connection and encodes it for a deletion.
func originalTuple(data []byte) ([]byte, error) {
	if len(data) < len(nfHeader()) {
		return nil, fmt.Errorf("connection of %d bytes is too short", len(data))
	}
	d, err := netlink.NewAttributeDecoder(data[len(nfHeader()):])
	if err != nil {
		return nil, fmt.Errorf("decode connection: %w", err)
	}
	for d.Next() {
		if d.Type() == ctTupleOriginal {
			return netlink.MarshalAttributes([]netlink.Attribute{{Type: ctTupleOriginal | netlink.Nested, Data: d.Bytes()}})
		}
	}
	return nil, fmt.Errorf("decode connection: no original direction: %w", d.Err())
}
