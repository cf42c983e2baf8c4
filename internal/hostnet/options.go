package hostnet

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"dayfly.dev/dayfly"
)

const (
	// RangeDefault is where sandbox addresses come from unless the operator chooses another range.
	RangeDefault = "10.212.0.0/14"
	// Slots is how many sandboxes one block has addresses for.
	Slots = 1 << (30 - blockBits)

	blockBits       = 18 // prefix length of a block
	slotBits        = 30 // prefix length of a slot
	linkPrefix      = "df"
	slotDigits      = 3 // of a link name, base 36
	idDigits        = 4 // of a link name, from the end of the sandbox id
	resolvConfPath  = "/etc/resolv.conf"
	systemdConfPath = "/run/systemd/resolve/resolv.conf"
	stateDir        = "/run/dayfly"
	mtuFallback     = 1500 // where the host has no default route
	allowPrivateMax = 256  // prefixes
	flowsMaxDefault = 8192 // a tenth of what the connection table of a small host holds
)

// Options configure the network of one installation on one host.
type Options struct {
	Installation string // six characters, see dayfly.NewInstallation
	// Range is where the blocks of all installations of the host come from; the zero value means RangeDefault.
	Range netip.Prefix
	// Block says which /18 of Range belongs to this installation: 0 up to Blocks(Range)-1. The caller reserves it host-wide.
	Block int
	// AllowPrivate opens these prefixes although they are private. The host and other sandboxes stay closed.
	AllowPrivate []netip.Prefix
	// FlowsMax is how many flows (connections, and exchanges of UDP and ICMP) one sandbox may have at a time; further ones are
	// refused, so that nobody fills the host's connection table. 0 means 8192.
	FlowsMax   int
	ResolvConf string // the host's resolver configuration; empty means /etc/resolv.conf
	// SystemdResolvConf is looked at when ResolvConf names a loopback stub; empty means systemd-resolved's file.
	SystemdResolvConf string
	// StateDir is shared by all installations of the host and must not outlive a boot; empty means /run/dayfly.
	StateDir string
	Netns    *os.File     // the host's network namespace, or nil for the process's own; it is duplicated
	Log      *slog.Logger // or nil
}

// filled returns o with defaults in place, or CodeInvalid.
func (o Options) filled() (Options, error) {
	if !dayfly.ValidInstallation(o.Installation) {
		return o, dayfly.Errorf(dayfly.CodeInvalid, "%q is not an installation id", o.Installation)
	}
	if !o.Range.IsValid() {
		o.Range = netip.MustParsePrefix(RangeDefault)
	}
	if !o.Range.Addr().Is4() || o.Range.Bits() > blockBits || o.Range != o.Range.Masked() {
		return o, dayfly.Errorf(dayfly.CodeInvalid, "network.range %s is not an IPv4 prefix of /%d or shorter", o.Range, blockBits).
			WithHint("for example %s", RangeDefault)
	}
	if o.Block < 0 || o.Block >= Blocks(o.Range) {
		return o, dayfly.Errorf(dayfly.CodeInvalid, "block %d is outside network.range %s, which has %d", o.Block, o.Range, Blocks(o.Range))
	}
	if len(o.AllowPrivate) > allowPrivateMax {
		return o, dayfly.Errorf(dayfly.CodeInvalid, "network.allow_private has more than %d prefixes", allowPrivateMax)
	}
	for _, p := range o.AllowPrivate {
		if !p.IsValid() || !p.Addr().Is4() || p != p.Masked() {
			return o, dayfly.Errorf(dayfly.CodeInvalid, "network.allow_private: %s is not an IPv4 prefix", p).
				WithHint("write it like 192.168.10.0/24")
		}
	}
	if o.FlowsMax < 0 {
		return o, dayfly.Errorf(dayfly.CodeInvalid, "a limit of %d flows", o.FlowsMax)
	}
	if o.FlowsMax == 0 {
		o.FlowsMax = flowsMaxDefault
	}
	o.ResolvConf = orDefault(o.ResolvConf, resolvConfPath)
	o.SystemdResolvConf = orDefault(o.SystemdResolvConf, systemdConfPath)
	o.StateDir = orDefault(o.StateDir, stateDir)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

func orDefault(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// Blocks tells how many blocks a range has; 0 when it is too small for one.
func Blocks(r netip.Prefix) int {
	if !r.IsValid() || !r.Addr().Is4() || r.Bits() > blockBits {
		return 0
	}
	return 1 << (blockBits - r.Bits())
}

// Block gives the n-th block of a range.
func Block(r netip.Prefix, n int) netip.Prefix {
	return netip.PrefixFrom(offset(r.Addr(), uint32(n)<<(32-blockBits)), blockBits)
}

func offset(a netip.Addr, by uint32) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+by)
	return netip.AddrFrom4(b)
}

// gateway is the host's end of a slot, address the sandbox's.
func gateway(block netip.Prefix, slot int) netip.Addr {
	return offset(block.Addr(), uint32(slot)<<(32-slotBits)+1)
}

func address(block netip.Prefix, slot int) netip.Addr { return gateway(block, slot).Next() }

// slotOf is the inverse of address.
func slotOf(block netip.Prefix, a netip.Addr) (int, bool) {
	if !a.Is4() || !block.Contains(a) {
		return 0, false
	}
	from, at := block.Addr().As4(), a.As4()
	slot := int(binary.BigEndian.Uint32(at[:])-binary.BigEndian.Uint32(from[:])) >> (32 - slotBits)
	return slot, address(block, slot) == a
}

// installationPrefix is how every link name of an installation begins.
func installationPrefix(installation string) string { return linkPrefix + installation }

// linkName is unique among live sandboxes because slots are; the digits of the id tell a leftover of the same slot apart.
func linkName(installation string, slot int, id string) string {
	digits := strconv.FormatInt(int64(slot), 36)
	digits = strings.Repeat("0", slotDigits-len(digits)) + digits
	return installationPrefix(installation) + digits + id[len(id)-idDigits:]
}

// slotOfName reads the slot back from a link name of the installation.
func slotOfName(installation, name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, installationPrefix(installation))
	if !ok || len(rest) != slotDigits+idDigits {
		return 0, false
	}
	slot, err := strconv.ParseInt(rest[:slotDigits], 36, 32)
	return int(slot), err == nil && slot < Slots
}

func checkSlot(slot int, id string) error {
	if slot < 0 || slot >= Slots {
		return fmt.Errorf("network slot %d is outside 0–%d", slot, Slots-1)
	}
	if !dayfly.ValidID(dayfly.PrefixSandbox, id) {
		return fmt.Errorf("%q is not a sandbox id", id)
	}
	return nil
}
