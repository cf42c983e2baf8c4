package seccomp

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strconv"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
)

// A filter is the same for every machine, and building one takes up to 14 ms of CPU. So those of a start are built once, when
// the helper is made (dayfly/filters), and found again by their rules: a filter is only taken from the table if the rules, the
// options and the action for what they do not name are those it was built from, to the letter. What is not there is built.

// Making is called with every program before it is built, or nil. Only what makes the table sets it.
var Making func(*Program)

// pid, unless it is empty, is the process id that filters name. Only what makes the table is linked with one.
var pid string

// Getpid is the process id that filters name.
func Getpid() int {
	if n, err := strconv.Atoi(pid); err == nil {
		return n
	}
	return os.Getpid()
}

// Build gives the instructions of a program.
func (p *Program) Build() ([]bpf.Instruction, BuildStats, error) {
	if Making != nil {
		Making(p)
	}
	key, err := p.Key()
	if err != nil {
		return nil, BuildStats{}, err
	}
	if packed := made(key); packed != "" {
		return Unpack(packed), BuildStats{}, nil
	}
	return p.BuildAnew()
}

// Key is the hash of everything that a program is built from.
func (p *Program) Key() ([sha256.Size]byte, error) {
	action, err := saneDefaultAction()
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d %d %+v\n", LINUX_AUDIT_ARCH, action, p.Options)
	for _, set := range p.RuleSets {
		fmt.Fprintf(h, "%q %t\n", string(set.Action), set.Vsyscall)
		_, _ = io.WriteString(h, set.Rules.String())
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

const packedSize = 8 // bytes of an instruction

// Pack gives instructions as they are kept in the table.
func Pack(insns []bpf.Instruction) string {
	b := make([]byte, 0, len(insns)*packedSize)
	for _, i := range insns {
		b = append(b, byte(i.OpCode), byte(i.OpCode>>8), i.JumpIfTrue, i.JumpIfFalse, byte(i.K), byte(i.K>>8), byte(i.K>>16), byte(i.K>>24))
	}
	return string(b)
}

// Unpack reverts Pack.
func Unpack(b string) []bpf.Instruction {
	insns := make([]bpf.Instruction, len(b)/packedSize)
	for n := range insns {
		i := b[n*packedSize:]
		insns[n] = bpf.Instruction(linux.BPFInstruction{
			OpCode: uint16(i[0]) | uint16(i[1])<<8, JumpIfTrue: i[2], JumpIfFalse: i[3],
			K: uint32(i[4]) | uint32(i[5])<<8 | uint32(i[6])<<16 | uint32(i[7])<<24,
		})
	}
	return insns
}
