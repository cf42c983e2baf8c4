package hostnet

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// kernelRule is as much of a rule in the kernel as decisions here need. The nftables library decodes every expression and
// fails on those that it does not know, so it cannot be asked about other programs' rules.
type kernelRule struct {
	handle   uint64
	userData []byte
	drops    bool // it may drop or reject
}

// dumpRules lists the rules of a chain, none when it has gone.
func (h *host) dumpRules(t *nftables.Table, chain string) ([]kernelRule, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(h.ns.Fd())})
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	defer conn.Close()
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: []byte(t.Name + "\x00")},
		{Type: unix.NFTA_RULE_CHAIN, Data: []byte(chain + "\x00")},
	})
	if err != nil {
		return nil, fmt.Errorf("encode chain %s: %w", chain, err)
	}
	found, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0}, attributes...),
	})
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list rules of %s %s: %w", tableName(t), chain, err)
	}
	rules := make([]kernelRule, 0, len(found))
	for _, m := range found {
		r, err := decodeRule(m.Data)
		if err != nil {
			return nil, fmt.Errorf("list rules of %s %s: %w", tableName(t), chain, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func decodeRule(data []byte) (r kernelRule, err error) {
	if len(data) < len(nfHeader()) {
		return r, fmt.Errorf("decode rule: %d bytes are too few", len(data))
	}
	err = eachAttribute(data[len(nfHeader()):], func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_RULE_HANDLE:
			r.handle = d.Uint64()
		case unix.NFTA_RULE_USERDATA:
			r.userData = d.Bytes()
		case unix.NFTA_RULE_EXPRESSIONS:
			_ = eachAttribute(d.Bytes(), func(list *netlink.AttributeDecoder) {
				r.drops = r.drops || expressionDrops(list.Bytes())
			})
		}
	})
	if err != nil {
		return r, fmt.Errorf("decode rule: %w", err)
	}
	return r, nil
}

// expressionDrops tells whether an expression may end a packet: a drop verdict, a reject, an old-style target of that kind,
// or a map of verdicts.
func expressionDrops(data []byte) (drops bool) {
	var name string
	var body []byte
	_ = eachAttribute(data, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_EXPR_NAME:
			name = d.String()
		case unix.NFTA_EXPR_DATA:
			body = d.Bytes()
		}
	})
	switch name {
	case "reject":
		return true
	case "target":
		return anyAttribute(body, unix.NFTA_TARGET_NAME, func(d *netlink.AttributeDecoder) bool {
			return strings.Contains(d.String(), "REJECT") || strings.Contains(d.String(), "DROP")
		})
	case "lookup":
		return anyAttribute(body, unix.NFTA_LOOKUP_DREG, func(d *netlink.AttributeDecoder) bool {
			return d.Uint32() == unix.NFT_REG_VERDICT
		})
	case "immediate":
		return anyAttribute(body, unix.NFTA_IMMEDIATE_DATA, func(d *netlink.AttributeDecoder) bool {
			return anyAttribute(d.Bytes(), unix.NFTA_DATA_VERDICT, func(d *netlink.AttributeDecoder) bool {
				return anyAttribute(d.Bytes(), unix.NFTA_VERDICT_CODE, func(d *netlink.AttributeDecoder) bool { return d.Uint32() == nfDrop })
			})
		})
	}
	return false
}

const nfDrop = 0 // NF_DROP

func eachAttribute(data []byte, visit func(*netlink.AttributeDecoder)) error {
	d, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		visit(d)
	}
	return d.Err()
}

func anyAttribute(data []byte, kind uint16, test func(*netlink.AttributeDecoder) bool) (found bool) {
	_ = eachAttribute(data, func(d *netlink.AttributeDecoder) {
		if d.Type() == kind && test(d) {
			found = true
		}
	})
	return found
}
