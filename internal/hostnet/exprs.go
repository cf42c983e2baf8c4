package hostnet

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// match is a part of a rule: every part must hold before the last one acts.
type match []expr.Any

const (
	reg1 = 1 // 16 bytes wide, like all four
	reg2 = 2

	protoOffset       = 2 // of the destination port in TCP and UDP
	sourceOffset      = 12
	destinationOffset = 16
	addressBytes      = 4
	originalDirection = 0
	interfaceNameSize = 16

	ctStatusDNAT = 1 << 5 // IPS_DST_NAT
)

func compare(op expr.CmpOp, data []byte) *expr.Cmp {
	return &expr.Cmp{Op: op, Register: reg1, Data: data}
}

// fromLinks and toLinks match interfaces whose name begins with prefix.
func fromLinks(prefix string) match {
	return match{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}, compare(expr.CmpOpEq, []byte(prefix))}
}

func toLinks(prefix string) match {
	return match{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1}, compare(expr.CmpOpEq, []byte(prefix))}
}

func notToLinks(prefix string) match {
	return match{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1}, compare(expr.CmpOpNeq, []byte(prefix))}
}

func notIPv4() match {
	return match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, compare(expr.CmpOpNeq, []byte{unix.NFPROTO_IPV4})}
}

func ipv4() match {
	return match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, compare(expr.CmpOpEq, []byte{unix.NFPROTO_IPV4})}
}

func loadAddress(register, offset uint32) *expr.Payload {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: addressBytes}
}

func within(p netip.Prefix) match {
	mask, addr := prefixMask(p), p.Addr().As4()
	return match{
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: addressBytes, Mask: mask, Xor: make([]byte, addressBytes)},
		compare(expr.CmpOpEq, addr[:]),
	}
}

func prefixMask(p netip.Prefix) []byte {
	return binaryutil.BigEndian.PutUint32(^uint32(0) << (32 - p.Bits()))
}

func destinationIn(p netip.Prefix) match {
	return append(match{loadAddress(reg1, destinationOffset)}, within(p)...)
}

func sourceIn(p netip.Prefix) match {
	return append(match{loadAddress(reg1, sourceOffset)}, within(p)...)
}

func destinationInSet(s *nftables.Set) match {
	return match{loadAddress(reg1, destinationOffset), &expr.Lookup{SourceRegister: reg1, SetName: s.Name, SetID: s.ID}}
}

// unknownSandbox matches packets whose interface and address are not in s together.
func unknownSandbox(interfaceKey expr.MetaKey, addressOffset uint32, s *nftables.Set) match {
	return match{
		&expr.Meta{Key: interfaceKey, Register: reg1},
		loadAddress(reg2, addressOffset),
		&expr.Lookup{SourceRegister: reg1, SetName: s.Name, SetID: s.ID, Invert: true},
	}
}

func destinationLocal() match {
	return match{
		&expr.Fib{Register: reg1, ResultADDRTYPE: true, FlagDADDR: true},
		compare(expr.CmpOpEq, binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)),
	}
}

func states(bits uint32) match {
	return match{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		compare(expr.CmpOpNeq, make([]byte, 4)),
	}
}

func established() match { return states(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED) }
func invalid() match     { return states(expr.CtStateBitINVALID) }

// tooManyFlows matches the packet that would begin one flow more than most from its source address. s keeps the counts.
func tooManyFlows(s *nftables.Set, most int) match {
	return match{
		loadAddress(reg1, sourceOffset),
		&expr.Dynset{SrcRegKey: reg1, SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: []expr.Any{&expr.Connlimit{Count: uint32(most), Flags: expr.NFT_CONNLIMIT_F_INV}}},
	}
}

func protocol(p byte) match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, compare(expr.CmpOpEq, []byte{p})}
}

func portDNS() match {
	return match{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: protoOffset, Len: 2},
		compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(53)),
	}
}

// translatedDNS matches flows that were sent to port 53 and had their destination translated. It needs no connection mark,
// so it cannot clash with another program's marks.
func translatedDNS() match {
	return match{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(ctStatusDNAT), Xor: make([]byte, 4)},
		compare(expr.CmpOpNeq, make([]byte, 4)),
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: reg1, Direction: originalDirection},
		compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(53)),
	}
}

// sentTo matches flows whose destination was in p before any translation. Only in tables of the inet family.
func sentTo(p netip.Prefix) match {
	return append(match{&expr.Ct{Key: expr.CtKeyDST, Register: reg1, Direction: originalDirection}}, within(p)...)
}

func accept() match { return match{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() match   { return match{&expr.Verdict{Kind: expr.VerdictDrop}} }

func continueIn(chain string) match {
	return match{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

func join(parts ...match) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}
