package linux

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// evaluate runs a classic BPF program over a struct seccomp_data, as the kernel does.
func evaluate(t *testing.T, program []byte, data []byte) uint32 {
	t.Helper()
	var acc uint32
	for pc := 0; pc*8 < len(program); pc++ {
		in := program[pc*8:]
		code, jt, jf, k := binary.NativeEndian.Uint16(in), in[2], in[3], binary.NativeEndian.Uint32(in[4:])
		branch := func(yes bool) {
			if yes {
				pc += int(jt)
			} else {
				pc += int(jf)
			}
		}
		switch code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = binary.NativeEndian.Uint32(data[k:])
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= k
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(k)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			branch(acc == k)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			branch(acc > k)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			branch(acc >= k)
		case unix.BPF_RET | unix.BPF_K:
			return k
		default:
			t.Fatalf("instruction %d has code %#x", pc, code)
		}
	}
	t.Fatal("the program ran over its end")
	return 0
}

func seccompData(audit, nr uint32, args ...uint64) []byte {
	data := make([]byte, 64)
	binary.NativeEndian.PutUint32(data[offNumber:], nr)
	binary.NativeEndian.PutUint32(data[offArch:], audit)
	for i, a := range args {
		binary.NativeEndian.PutUint64(data[offArgs+8*i:], a)
	}
	return data
}

func TestSeccompProgram(t *testing.T) {
	program, err := seccompProgram()
	if err != nil {
		t.Fatal(err)
	}
	info, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	const allow = uint32(unix.SECCOMP_RET_ALLOW)
	errno := func(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }
	for _, tt := range []struct {
		name string
		call string
		args []uint64
		want uint32
	}{
		{"plain", "read", nil, allow},
		{"clone3", "clone3", nil, allow},
		{"thread", "clone", []uint64{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}, allow},
		{"user namespace", "clone", []uint64{unix.CLONE_NEWUSER}, errno(unix.EPERM)},
		{"cgroup namespace", "clone", []uint64{unix.CLONE_NEWCGROUP | uint64(unix.SIGCHLD)}, errno(unix.EPERM)},
		{"bits above flags", "clone", []uint64{1 << 40}, allow},
		{"unix socket", "socket", []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, allow},
		{"tcp socket", "socket", []uint64{unix.AF_INET}, allow},
		{"v6 socket", "socket", []uint64{unix.AF_INET6}, allow},
		{"netlink", "socket", []uint64{unix.AF_NETLINK}, allow},
		{"vsock", "socket", []uint64{unix.AF_VSOCK}, errno(unix.EAFNOSUPPORT)},
		{"vsock in disguise", "socket", []uint64{unix.AF_VSOCK | 1<<32}, errno(unix.EAFNOSUPPORT)},
		{"packet socket", "socket", []uint64{unix.AF_PACKET, unix.SOCK_DGRAM}, errno(unix.EAFNOSUPPORT)},
		{"packet socket by its old name", "socket", []uint64{unix.AF_INET, unix.SOCK_PACKET | unix.SOCK_CLOEXEC}, errno(unix.EAFNOSUPPORT)},
		{"packet socket, bits above", "socket", []uint64{unix.AF_INET, unix.SOCK_PACKET | 1<<32}, errno(unix.EAFNOSUPPORT)},
		{"bits above an allowed family", "socket", []uint64{unix.AF_INET | 1<<32, unix.SOCK_STREAM}, errno(unix.EAFNOSUPPORT)},
		{"pair of another family", "socketpair", []uint64{unix.AF_TIPC, unix.SOCK_STREAM}, errno(unix.EAFNOSUPPORT)},
		{"pair", "socketpair", []uint64{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, allow},
		{"icmp", "socket", []uint64{unix.AF_INET, unix.SOCK_RAW | unix.SOCK_NONBLOCK}, allow},
		{"asynchronous requests", "io_setup", []uint64{1}, errno(unix.ENOSYS)},
		{"limit of core files", "setrlimit", []uint64{unix.RLIMIT_CORE, 1}, errno(0)},
		{"limit of core files, bits above", "setrlimit", []uint64{unix.RLIMIT_CORE | 1<<32, 1}, errno(0)},
		{"another limit", "setrlimit", []uint64{unix.RLIMIT_NOFILE, 1}, allow},
		{"limit of core files by the new call", "prlimit64", []uint64{0, unix.RLIMIT_CORE | 1<<63, 1, 0}, errno(0)},
		{"limit of core files set and read", "prlimit64", []uint64{0, unix.RLIMIT_CORE, 1, 1}, errno(unix.EPERM)},
		{"limit of core files read", "prlimit64", []uint64{0, unix.RLIMIT_CORE, 0, 1}, allow},
		{"another limit by the new call", "prlimit64", []uint64{0, unix.RLIMIT_NOFILE, 1, 1}, allow},
		{"personality default", "personality", []uint64{0}, allow},
		{"personality ask", "personality", []uint64{0xffffffff}, allow},
		{"personality other", "personality", []uint64{0x400000}, errno(unix.EPERM)},
		{"chroot", "chroot", nil, allow},
		{"mount", "mount", nil, errno(unix.EPERM)},
		{"bpf", "bpf", nil, errno(unix.EPERM)},
		{"keyctl", "keyctl", nil, errno(unix.EPERM)},
		{"unshare", "unshare", nil, errno(unix.EPERM)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nr, ok := info.SyscallNames[tt.call]
			if !ok {
				t.Fatalf("no number of %s", tt.call)
			}
			if got := evaluate(t, program, seccompData(uint32(info.ID), uint32(nr), tt.args...)); got != tt.want {
				t.Errorf("answers %#x, want %#x", got, tt.want)
			}
		})
	}
	for name, data := range map[string][]byte{
		"newer than the profile": seccompData(uint32(info.ID), 9999),
		"x32":                    seccompData(uint32(info.ID), x32Bit),
		"other architecture":     seccompData(^uint32(info.ID), 0),
	} {
		if got := evaluate(t, program, data); got != errno(unix.ENOSYS) {
			t.Errorf("%s: %#x", name, got)
		}
	}
}

// TestSeccompCompile holds compiled programs against the rules that they came from, with every operator.
func TestSeccompCompile(t *testing.T) {
	const audit, denied, yes = 1, unix.SECCOMP_RET_ERRNO | 1, uint32(unix.SECCOMP_RET_ALLOW)
	values := []uint64{0, 1, 2, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1 << 63, ^uint64(0)}
	ops := []specs.LinuxSeccompOperator{
		specs.OpEqualTo, specs.OpNotEqual, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpLessEqual, specs.OpLessThan, specs.OpMaskedEqual,
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		rules := map[uint32]rule{}
		for range 1 + random.IntN(20) {
			var alternatives rule
			for range 1 + random.IntN(3) {
				alt := alternative{action: unix.SECCOMP_RET_ERRNO | 2 + random.Uint32N(9)}
				for range random.IntN(3) {
					alt.args = append(alt.args, specs.LinuxSeccompArg{
						Index: uint(random.IntN(6)), Op: ops[random.IntN(len(ops))],
						Value: values[random.IntN(len(values))], ValueTwo: values[random.IntN(len(values))],
					})
				}
				alternatives = append(alternatives, alt)
			}
			rules[random.Uint32N(40)] = alternatives
		}
		rules[50] = rule{{action: yes}}
		program, err := encode(compile(audit, rules, denied))
		if err != nil {
			t.Fatal(err)
		}
		for nr := range uint32(51) {
			for range 20 {
				var args []uint64
				for range 6 {
					args = append(args, values[random.IntN(len(values))])
				}
				if got, want := evaluate(t, program, seccompData(audit, nr, args...)), expected(rules[nr], args, denied); got != want {
					t.Fatalf("call %d %#x answers %#x, want %#x by %+v", nr, args, got, want, rules[nr])
				}
			}
		}
	}
}

// expected decides by the rule itself.
func expected(r rule, args []uint64, denied uint32) uint32 {
	var fallback = denied
	for _, alt := range r {
		if len(alt.args) == 0 {
			if fallback == denied {
				fallback = alt.action
			}
			continue
		}
		all := true
		for _, c := range alt.args {
			all = all && holds(c, args[c.Index])
		}
		if all {
			return alt.action
		}
	}
	return fallback
}

func holds(c specs.LinuxSeccompArg, v uint64) bool {
	switch c.Op {
	case specs.OpEqualTo:
		return v == c.Value
	case specs.OpNotEqual:
		return v != c.Value
	case specs.OpGreaterEqual:
		return v >= c.Value
	case specs.OpGreaterThan:
		return v > c.Value
	case specs.OpLessEqual:
		return v <= c.Value
	case specs.OpLessThan:
		return v < c.Value
	}
	return v&c.Value == c.ValueTwo
}
