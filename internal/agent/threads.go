package agent

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of threads that touch paths at once. They exist from the start, because a sandbox at its limit of processes cannot
// make another one.
const (
	quickThreads = 2 // for what ends by itself; any thread, for a moment
	longThreads  = 3 // for what waits for a client: archives and whole trees
	diskSlots    = 2 // reads and writes of file content, which need no rights and no such thread
)

// rights are what the kernel checks when a thread opens a path.
type rights struct {
	uid, gid uint32
	groups   []uint32
}

// threads run functions with the rights of a user inside. Rights belong to an operating system thread, so one that has taken
// them does nothing else until it has given them back.
type threads struct {
	change   bool          // the agent is root inside and takes the users' rights; otherwise it has only its own
	quickTry chan struct{} // slots
	longJobs chan job
}

type job struct {
	who  rights
	do   func()
	done chan error
}

func newThreads(change bool) *threads {
	t := &threads{change: change, quickTry: make(chan struct{}, quickThreads), longJobs: make(chan job)}
	for range longThreads {
		go t.work(t.longJobs)
	}
	return t
}

// work serves jobs on a thread of its own, for ever. It takes the rights anew for each function.
func (t *threads) work(jobs <-chan job) {
	runtime.LockOSThread()
	for j := range jobs {
		if t.change {
			if err := assume(j.who); err != nil {
				j.done <- err
				continue // no function ever runs with rights that are half changed
			}
		}
		j.done <- j.run()
	}
}

// run calls the function; a panic in it is the caller's error.
func (j job) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	j.do()
	return nil
}

// quick runs do with the rights of who and returns when it has. ctx bounds the wait for a free slot only. It stays on the calling
// thread, which costs nothing but the change of rights: handing work to another thread takes longer than most of it.
func (t *threads) quick(ctx context.Context, who rights, do func()) error {
	select {
	case t.quickTry <- struct{}{}:
		defer func() { <-t.quickTry }()
	case <-ctx.Done():
		return ctx.Err()
	}
	j := job{who: who, do: do}
	if !t.change {
		return j.run()
	}
	runtime.LockOSThread()
	err := assume(who)
	if err == nil {
		err = j.run()
	}
	if back := assume(rights{}); back != nil {
		return back // and the thread stays locked, so that it ends with this goroutine and serves nobody else
	}
	runtime.UnlockOSThread()
	return err
}

// long is quick for functions that may wait for a client: on a thread of their own, of which there are few.
func (t *threads) long(ctx context.Context, who rights, do func()) error {
	j := job{who, do, make(chan error, 1)}
	select {
	case t.longJobs <- j:
		return <-j.done
	case <-ctx.Done():
		return ctx.Err()
	}
}

// assume gives the calling thread the rights of who in everything that concerns files. Leaving uid 0 takes the capabilities
// over files out of the effective set, returning to it puts them back.
func assume(who rights) error {
	var groups unsafe.Pointer
	if effective.Load() { // setgroups needs the capability that only root has
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0)); errno != 0 {
			return os.NewSyscallError("setresuid", errno)
		}
	}
	if len(who.groups) > 0 {
		groups = unsafe.Pointer(&who.groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(who.groups)), uintptr(groups), 0); errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	if effective.Load() {
		return assumeEffective(who)
	}
	const ask = -1 // never a valid id: changes nothing and tells the present one
	if previous, err := unix.SetfsgidRetGid(int(who.gid)); previous == -1 || err != nil {
		effective.Store(true)
		return assumeEffective(who)
	}
	if gid, _ := unix.SetfsgidRetGid(ask); uint32(gid) != who.gid {
		return fmt.Errorf("setfsgid %d: it stayed %d", who.gid, gid)
	}
	_, _ = unix.SetfsuidRetUid(int(who.uid))
	if uid, _ := unix.SetfsuidRetUid(ask); uint32(uid) != who.uid {
		return fmt.Errorf("setfsuid %d: it stayed %d", who.uid, uid)
	}
	return nil
}

// effective tells that threads take rights by their effective ids, because the kernel has no others: a user-space kernel knows
// no ids for file systems alone.
var effective atomic.Bool

// assumeEffective does the same with the thread's effective ids. The real and the saved ones stay root's: the thread can return,
// and nothing that runs as the user can send it a signal.
func assumeEffective(who rights) error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(who.gid), keep); errno != 0 {
		return os.NewSyscallError("setresgid", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(who.uid), keep); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	return nil
}
