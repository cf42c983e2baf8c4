package linux

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/driver/linux/boot"
)

const (
	x32Bit     = 0x40000000 // syscall numbers of the x32 ABI, which shares amd64's audit architecture
	offNumber  = 0          // of struct seccomp_data
	offArch    = 4
	offArgs    = 16
	instrMax   = 4096 // of one program, the kernel's limit
	jumpMax    = 255  // instructions that a conditional jump can skip
	errnoEPERM = uint32(unix.EPERM)
)

// capabilityNames are what the profile calls those capabilities that it asks about and that machines have.
var capabilityNames = map[uint]string{
	unix.CAP_CHOWN: "CAP_CHOWN", unix.CAP_DAC_OVERRIDE: "CAP_DAC_OVERRIDE", unix.CAP_FSETID: "CAP_FSETID",
	unix.CAP_FOWNER: "CAP_FOWNER", unix.CAP_MKNOD: "CAP_MKNOD", unix.CAP_NET_RAW: "CAP_NET_RAW",
	unix.CAP_SETGID: "CAP_SETGID", unix.CAP_SETUID: "CAP_SETUID", unix.CAP_SETFCAP: "CAP_SETFCAP",
	unix.CAP_SETPCAP: "CAP_SETPCAP", unix.CAP_NET_BIND_SERVICE: "CAP_NET_BIND_SERVICE",
	unix.CAP_SYS_CHROOT: "CAP_SYS_CHROOT", unix.CAP_KILL: "CAP_KILL", unix.CAP_AUDIT_WRITE: "CAP_AUDIT_WRITE",
}

// ours are allowed beyond the profile. It hides clone3 because a filter cannot see the namespaces that it asks for; the agent
// needs it to start commands in cgroups of their own. Boot makes user namespaces impossible instead (their number is
// limited to 0 inside), and every other namespace takes a capability that nothing inside has.
var ours = []string{"clone3"}

// families are the kinds of socket that can be made: an allow list of our own, because the profile names only the forbidden
// ones and making a socket loads the kernel module of its family. Packet sockets are not among them: their rings are memory
// that counts for nobody, and they write frames past all address rules.
var families = []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// socketTypeMask takes the type out of socket's second argument. sockPacket with any family is the old name of a packet socket.
const (
	socketTypeMask = 0xf
	sockPacket     = unix.SOCK_PACKET
)

// narrowed are rules in place of the profile's.
func narrowed() map[string]rule {
	const noFamily = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)
	sockets := rule{{noFamily, []specs.LinuxSeccompArg{{Index: 1, Op: specs.OpMaskedEqual, Value: socketTypeMask, ValueTwo: sockPacket}}}}
	for _, f := range families {
		sockets = append(sockets, alternative{unix.SECCOMP_RET_ALLOW, []specs.LinuxSeccompArg{{Op: specs.OpEqualTo, Value: f}}})
	}
	sockets = append(sockets, alternative{action: noFamily})
	return map[string]rule{
		"socket":     sockets,
		"socketpair": sockets,
		"setrlimit":  coreLimit(0),
		"prlimit64":  coreLimit(1),
		// All asynchronous requests of the host come out of one number (fs.aio-max-nr): one machine could take it whole.
		// Programs fall back, as on a kernel without it.
		"io_setup": {{action: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}},
	}
}

// coreLimit keeps the limit of core files at boot's: a limit of 0 would let a program of the host's core_pattern start. Programs
// ask for 0 to leave no core file, and some end when they cannot have it; they get the answer that it is so, which it is. Index
// is that of the resource among the call's arguments, before the new limit and, where there is one, the old.
func coreLimit(index uint) rule {
	const word = 1<<32 - 1 // the kernel looks at no more of the resource
	core := specs.LinuxSeccompArg{Index: index, Op: specs.OpMaskedEqual, Value: word, ValueTwo: unix.RLIMIT_CORE}
	done := alternative{action: unix.SECCOMP_RET_ERRNO, args: []specs.LinuxSeccompArg{core}}
	allow := alternative{action: unix.SECCOMP_RET_ALLOW}
	if index == 0 {
		return rule{done, allow}
	}
	set := specs.LinuxSeccompArg{Index: index + 1, Op: specs.OpNotEqual}
	ask := specs.LinuxSeccompArg{Index: index + 2, Op: specs.OpNotEqual}
	done.args = append(done.args, set)
	both := alternative{unix.SECCOMP_RET_ERRNO | errnoEPERM, []specs.LinuxSeccompArg{core, set, ask}} // nothing would fill in the old
	return rule{both, done, allow}
}

// rule is what happens to one syscall: the first alternative whose conditions all hold decides, else it is denied.
type rule []alternative

type alternative struct {
	action uint32
	args   []specs.LinuxSeccompArg
}

// seccompProgram compiles moby's default profile, for a process with the machine's capabilities, to classic BPF: an allow
// list; what it does not name fails with EPERM, what is newer than it with ENOSYS, so that programs fall back. Programs of
// another architecture than the host's (32-bit ones) are not supported.
func seccompProgram() ([]byte, error) {
	var caps []string
	for c, name := range capabilityNames {
		if boot.Capabilities&(1<<c) != 0 {
			caps = append(caps, name)
		}
	}
	profile, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{
		Capabilities: &specs.LinuxCapabilities{Bounding: caps},
	}})
	if err != nil {
		return nil, fmt.Errorf("read seccomp profile: %w", err)
	}
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("find syscall numbers: %w", err)
	}
	rules := map[uint32]rule{}
	for _, s := range profile.Syscalls {
		action, err := seccompAction(s.Action, s.ErrnoRet)
		if err != nil {
			return nil, err
		}
		for _, name := range s.Names {
			if nr, ok := info.SyscallNames[name]; ok {
				rules[uint32(nr)] = append(rules[uint32(nr)], alternative{action, s.Args})
			}
		}
	}
	for _, name := range ours {
		if nr, ok := info.SyscallNames[name]; ok {
			rules[uint32(nr)] = rule{{action: unix.SECCOMP_RET_ALLOW}}
		}
	}
	for name, r := range narrowed() {
		if nr, ok := info.SyscallNames[name]; ok {
			rules[uint32(nr)] = r
		}
	}
	denied, err := seccompAction(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	return encode(compile(uint32(info.ID), rules, denied))
}

func seccompAction(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	switch a {
	case specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case specs.ActErrno:
		code := errnoEPERM
		if errno != nil {
			code = uint32(*errno)
		}
		return unix.SECCOMP_RET_ERRNO | code&unix.SECCOMP_RET_DATA, nil
	}
	return 0, fmt.Errorf("seccomp action %s is not supported", a)
}

// compile lays the rules out as a binary search by syscall number: the kernel runs the program for every number once when
// it is loaded, so its depth matters.
func compile(audit uint32, rules map[uint32]rule, denied uint32) ([]unix.SockFilter, error) {
	const noSys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	numbers := slices.Sorted(maps.Keys(rules))
	if len(numbers) == 0 {
		return nil, fmt.Errorf("seccomp profile allows nothing")
	}
	// spans cover all numbers: each starts where the one before ends.
	type span struct {
		from uint32
		rule rule
	}
	spans := []span{{0, rule{{action: denied}}}}
	for _, nr := range numbers {
		if last := spans[len(spans)-1]; last.from == nr {
			spans = spans[:len(spans)-1]
		}
		spans = append(spans, span{nr, rules[nr]}, span{nr + 1, rule{{action: denied}}})
	}
	spans[len(spans)-1].rule = rule{{action: noSys}} // newer than the profile, and x32
	merged := spans[:1]
	for _, s := range spans[1:] {
		if !plain(s.rule) || !plain(merged[len(merged)-1].rule) || s.rule[0].action != merged[len(merged)-1].rule[0].action {
			merged = append(merged, s)
		}
	}
	out := []unix.SockFilter{
		load(offArch),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: audit, Jt: 1},
		ret(noSys),
		load(offNumber),
	}
	var tree func(part []span) ([]unix.SockFilter, error)
	tree = func(part []span) ([]unix.SockFilter, error) {
		if len(part) == 1 {
			return leaf(part[0].rule, denied)
		}
		mid := len(part) / 2
		left, err := tree(part[:mid])
		if err != nil {
			return nil, err
		}
		right, err := tree(part[mid:])
		if err != nil {
			return nil, err
		}
		code := []unix.SockFilter{
			{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: part[mid].from, Jf: 1},
			{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(left))},
		}
		return slices.Concat(code, left, right), nil
	}
	body, err := tree(merged)
	if err != nil {
		return nil, err
	}
	if out = append(out, body...); len(out) > instrMax {
		return nil, fmt.Errorf("seccomp program of %d instructions", len(out))
	}
	return out, nil
}

// plain tells whether a rule does not look at arguments, so that its first action always holds.
func plain(r rule) bool {
	return !slices.ContainsFunc(r, func(a alternative) bool { return len(a.args) > 0 })
}

// leaf decides about one syscall.
func leaf(r rule, denied uint32) ([]unix.SockFilter, error) {
	// An alternative without conditions always holds: it goes last, and nothing after it matters.
	r = slices.Clone(r)
	slices.SortStableFunc(r, func(a, b alternative) int {
		return cmp.Compare(boolInt(len(a.args) == 0), boolInt(len(b.args) == 0))
	})
	var out []unix.SockFilter
	for _, alt := range r {
		if len(alt.args) == 0 {
			return append(out, ret(alt.action)), nil
		}
		var code []unix.SockFilter
		rest := []unix.SockFilter{ret(alt.action)}
		for _, arg := range slices.Backward(alt.args) {
			test, err := condition(arg, len(rest))
			if err != nil {
				return nil, err
			}
			rest = append(test, rest...)
		}
		code = rest
		out = append(out, code...)
	}
	return append(out, ret(denied)), nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// condition tests one 64-bit argument. When it holds execution goes on behind the test, else skip instructions further.
func condition(a specs.LinuxSeccompArg, skip int) ([]unix.SockFilter, error) {
	low, high := uint32(offArgs+8*a.Index), uint32(offArgs+8*a.Index+4) // little endian, as both supported architectures are
	if a.Index > 5 {
		return nil, fmt.Errorf("seccomp condition on argument %d", a.Index)
	}
	if skip+8 > jumpMax {
		return nil, fmt.Errorf("seccomp condition jumps over %d instructions", skip)
	}
	fail := func(behind int) uint8 { return uint8(skip + behind) }
	jump := func(op uint16, k uint32, jt, jf uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: jt, Jf: jf}
	}
	and := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: k}
	}
	valueLow, valueHigh := uint32(a.Value), uint32(a.Value>>32)
	switch a.Op {
	case specs.OpEqualTo:
		return []unix.SockFilter{
			load(high), jump(unix.BPF_JEQ, valueHigh, 0, fail(2)),
			load(low), jump(unix.BPF_JEQ, valueLow, 0, fail(0)),
		}, nil
	case specs.OpNotEqual:
		return []unix.SockFilter{
			load(high), jump(unix.BPF_JEQ, valueHigh, 0, 2),
			load(low), jump(unix.BPF_JEQ, valueLow, fail(0), 0),
		}, nil
	case specs.OpMaskedEqual:
		return []unix.SockFilter{
			load(high), and(valueHigh), jump(unix.BPF_JEQ, uint32(a.ValueTwo>>32), 0, fail(3)),
			load(low), and(valueLow), jump(unix.BPF_JEQ, uint32(a.ValueTwo), 0, fail(0)),
		}, nil
	case specs.OpGreaterThan, specs.OpGreaterEqual:
		op := uint16(unix.BPF_JGT)
		if a.Op == specs.OpGreaterEqual {
			op = unix.BPF_JGE
		}
		return []unix.SockFilter{
			load(high), jump(unix.BPF_JGT, valueHigh, 3, 0), jump(unix.BPF_JEQ, valueHigh, 0, fail(2)),
			load(low), jump(op, valueLow, 0, fail(0)),
		}, nil
	case specs.OpLessThan, specs.OpLessEqual:
		op := uint16(unix.BPF_JGE)
		if a.Op == specs.OpLessEqual {
			op = unix.BPF_JGT
		}
		return []unix.SockFilter{
			load(high), jump(unix.BPF_JGT, valueHigh, fail(3), 0), jump(unix.BPF_JEQ, valueHigh, 0, 2),
			load(low), jump(op, valueLow, fail(0), 0),
		}, nil
	}
	return nil, fmt.Errorf("seccomp operator %s is not supported", a.Op)
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func ret(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

// encode gives the program the form that a Config carries.
func encode(program []unix.SockFilter, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(program)*8)
	for _, in := range program {
		out = binary.NativeEndian.AppendUint16(out, in.Code)
		out = append(out, in.Jt, in.Jf)
		out = binary.NativeEndian.AppendUint32(out, in.K)
	}
	return out, nil
}
