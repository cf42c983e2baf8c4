package agent

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Tuning of the runtime for a process of which hundreds run on one host.
const (
	procsMax     = 4       // threads that run Go code at once
	gcPercent    = 50      // collect when the heap has grown by half
	memoryShare  = 8       // the heap is asked to stay below 1/8 of the sandbox's memory
	memoryMin    = 8 << 20 // but not below this
	threadsWarm  = 10      // see warmThreads
	filePerm     = 0o644   // of new files
	dirPerm      = 0o755   // of new directories
	maskOfOthers = 0o022   // umask, inherited by every command
)

// takeOver makes this process fit for its role.
func takeOver(memoryBytes int64) error {
	unix.Umask(maskOfOthers)
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil || fd > 2 {
			_ = unix.Close(fd)
			break // 0 to 2 are taken, so no descriptor of ours ever is one of them
		}
	}
	// Nothing that was open before reaches a command.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil && err != unix.ENOSYS {
		return fmt.Errorf("mark descriptors: %w", err)
	}
	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become subreaper: %w", err)
		}
	}
	runtime.GOMAXPROCS(min(procsMax, runtime.NumCPU()))
	debug.SetGCPercent(gcPercent)
	if memoryBytes > 0 {
		debug.SetMemoryLimit(max(memoryMin, memoryBytes/memoryShare))
	}
	return nil
}

// warmThreads makes the runtime create all threads that the agent can ever need at once beside those of threads.go and the
// reaper: those that run Go code, one that forks, one per slot of blocking disk work and of quick work, and some to spare. The
// runtime keeps idle threads for ever, and dies when it cannot create one, which is what happens when the sandbox has reached
// its limit of processes.
func warmThreads() {
	var ready, done sync.WaitGroup
	gate := make(chan struct{})
	ready.Add(threadsWarm)
	for range threadsWarm {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-gate
		})
	}
	ready.Wait()
	close(gate)
	done.Wait()
}

// deadly are the signals that would end the agent if it did not catch them. They are caught and not ignored, because an
// ignored signal stays ignored in every command. A real fault of the agent's own code is not caught by this.
func deadly() []os.Signal {
	return []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGUSR1,
		unix.SIGSEGV, unix.SIGUSR2, unix.SIGALRM, unix.SIGTERM, unix.SIGSTKFLT, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGVTALRM,
		unix.SIGIO, unix.SIGPWR, unix.SIGSYS,
	}
}

// catchSignals makes PID 1 deaf to signals from inside. An agent that is not PID 1 ends on TERM and INT, with everything
// that it started.
func (a *Agent) catchSignals() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, deadly()...)
	if os.Getpid() == 1 {
		return // a full channel drops what nobody reads
	}
	go func() {
		for s := range c {
			if s == unix.SIGTERM || s == unix.SIGINT {
				a.die(0)
			}
		}
	}()
}

// die ends the machine: PID 1's end kills everything inside, any other agent kills its children first.
func (a *Agent) die(code int) {
	if os.Getpid() != 1 {
		a.children.killAll()
	}
	os.Exit(code)
}

// exitLeaseOver is the exit code of an agent that ended the machine because nobody else had in time.
const exitLeaseOver = 75

// idleAfter is how long after the last request the agent gives unused memory back.
const idleAfter = 3 * time.Second

// idler gives memory back to the system once after each burst of requests.
type idler struct {
	mu    sync.Mutex
	busy  int
	timer *time.Timer
}

func newIdler() *idler { return &idler{timer: time.AfterFunc(idleAfter, debug.FreeOSMemory)} }

// Begin implements agentwire.Watcher.
func (a *Agent) Begin() func() { return a.idle.begin() }

// begin counts a request; the returned function ends it.
func (i *idler) begin() func() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.busy++
	i.timer.Stop()
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.busy--; i.busy == 0 {
			i.timer.Reset(idleAfter)
		}
	}
}
