package birth

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errSpoilt is an error after which the thread must not run anything else.
const errSpoilt = spoilt("the thread's identity could not be put back")

type spoilt string

func (e spoilt) Error() string { return string(e) }

// A clone shares this process's memory, as vfork's child does, so its cost does not grow with the node, but the parent is
// not suspended: it writes the id maps meanwhile. Between clone and exec the child runs no Go code: it walks through a
// program, a list of system calls that the parent laid out in memory of its own, and ends at the first that fails.
// What a thread of a running Go program could change for itself only (capabilities, namespaces, CPUs) is done there, while
// the child has one thread, so it holds for every thread of the agent.

// cloneAndRun calls clone3 and, in the child, runs program. It gives the child's pid or a negative errno. Signals must be
// blocked: the child has no stack for them.
//
//go:noescape
func cloneAndRun(args unsafe.Pointer, size uintptr, program unsafe.Pointer) (result int)

const (
	arenaBytes = 16 << 10
	arenaAlign = 8
	headWords  = 2 // of a program: the address of the call that failed, and its result
	callWords  = 8 // number, six arguments, the least result that is no failure
	callsMax   = 96
	sigsetSize = 8
)

// arena is memory outside the Go heap that a child reads until it executes something else.
type arena struct {
	mem  []byte
	used int
}

func newArena() (*arena, error) {
	mem, err := unix.Mmap(-1, 0, arenaBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map memory for a clone: %w", err)
	}
	return &arena{mem: mem}, nil
}

// free gives the memory back. The child must have executed the agent, or be dead.
func (a *arena) free() {
	if a.mem != nil {
		_ = unix.Munmap(a.mem)
		a.mem = nil
	}
}

// put copies b into the arena and gives its address there. An arena that is too small is a fault of this file's constants.
func (a *arena) put(b []byte) uintptr {
	at := (a.used + arenaAlign - 1) / arenaAlign * arenaAlign
	if at+len(b) > len(a.mem) {
		panic("birth: clone arena is too small")
	}
	copy(a.mem[at:], b)
	a.used = at + len(b)
	return uintptr(unsafe.Pointer(unsafe.SliceData(a.mem))) + uintptr(at)
}

func (a *arena) text(s string) uintptr { return a.put(append([]byte(s), 0)) }

func (a *arena) words(w ...uintptr) uintptr {
	if len(w) == 0 {
		return 0
	}
	return a.put(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), len(w)*int(unsafe.Sizeof(w[0]))))
}

// texts lays out a nil-terminated list of strings, as execve takes it.
func (a *arena) texts(list []string) uintptr {
	words := make([]uintptr, 0, len(list)+1)
	for _, s := range list {
		words = append(words, a.text(s))
	}
	return a.words(append(words, 0)...)
}

// program is a list of system calls.
type program struct {
	names []string
	words []uintptr
	least []int
}

// call adds a system call whose result must not be negative.
func (p *program) call(name string, nr uintptr, args ...uintptr) { p.atLeast(0, name, nr, args...) }

// atLeast adds a system call whose result must be least or more.
func (p *program) atLeast(least int, name string, nr uintptr, args ...uintptr) {
	var w [callWords]uintptr
	w[0] = nr
	copy(w[1:callWords-1], args)
	w[callWords-1] = uintptr(least)
	p.words = append(p.words, w[:]...)
	p.names = append(p.names, name)
}

// cloneArgs is the kernel's struct clone_args.
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// cloned is a child that runs a program.
type cloned struct {
	pid     int
	arena   *arena
	program uintptr // address
	names   []string
}

// failed tells which call of the program failed, once the child is dead or has hung up.
func (c *cloned) failed() error {
	if c.arena.mem == nil {
		return nil
	}
	head := int(c.program - uintptr(unsafe.Pointer(unsafe.SliceData(c.arena.mem))))
	at := *(*uintptr)(unsafe.Pointer(&c.arena.mem[head]))
	if at == 0 {
		return nil
	}
	result := *(*int)(unsafe.Pointer(&c.arena.mem[head+int(unsafe.Sizeof(at))]))
	index := int(at-c.program-headWords*unsafe.Sizeof(at)) / (callWords * int(unsafe.Sizeof(at)))
	if index < 0 || index >= len(c.names) {
		return fmt.Errorf("step %d of a clone failed", index)
	}
	if result >= 0 {
		return fmt.Errorf("%s: result %d", c.names[index], result)
	}
	return fmt.Errorf("%s: %w", c.names[index], unix.Errno(-result))
}

// clone3 clones a child into the cgroup of descriptor v2 and into new namespaces; a new user namespace belongs to the host
// uid owner, so what the kernel counts for it (inotify instances, locked memory, queues) is counted apart from root's and
// from every other machine's. The arena is the caller's to free. The calling thread must be locked; after errSpoilt it must
// stay so.
func clone3(a *arena, flags uint64, v2 int, owner uint32, p *program) (*cloned, error) {
	if len(p.names) > callsMax {
		return nil, fmt.Errorf("clone: %d system calls", len(p.names))
	}
	at := a.words(append(make([]uintptr, headWords), p.words...)...)
	args := cloneArgs{
		flags:      flags | unix.CLONE_VM | unix.CLONE_CLEAR_SIGHAND | unix.CLONE_INTO_CGROUP,
		exitSignal: uint64(unix.SIGCHLD),
		cgroup:     uint64(v2),
	}
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return nil, fmt.Errorf("clone: block signals: %w", err)
	}
	result, err := asEffective(owner, func() int {
		return cloneAndRun(unsafe.Pointer(&args), unsafe.Sizeof(args), unsafe.Pointer(&a.mem[a.offset(at)]))
	})
	runtime.KeepAlive(&args)
	if serr := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); serr != nil { // cannot happen: the mask came from the kernel
		panic("birth: signals stay blocked: " + serr.Error())
	}
	if err != nil {
		return nil, fmt.Errorf("clone: %w", err)
	}
	if result < 0 {
		return nil, fmt.Errorf("clone: %w", unix.Errno(-result))
	}
	return &cloned{pid: result, arena: a, program: at, names: p.names}, nil
}

// asEffective runs f on the calling thread alone while its effective uid is owner, with all its capabilities. Package
// syscall's functions would change every thread. errSpoilt: the thread could not be put back.
func asEffective(owner uint32, f func() int) (result int, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	if err := unix.Capget(&header, &all[0]); err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(owner), keep); errno != 0 {
		return 0, fmt.Errorf("become uid %d: %w", owner, errno)
	}
	err = unix.Capset(&header, &all[0]) // the change of uid emptied the effective set
	if err == nil {
		result = f()
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); errno != 0 {
		return result, errSpoilt
	}
	if unix.Capset(&header, &all[0]) != nil {
		return result, errSpoilt
	}
	return result, err
}

// offset turns an address in the arena into an index of its memory.
func (a *arena) offset(at uintptr) int {
	return int(at - uintptr(unsafe.Pointer(unsafe.SliceData(a.mem))))
}
