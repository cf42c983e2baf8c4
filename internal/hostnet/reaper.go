package hostnet

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// linkGrace is how long a link may take to die with its namespace before it is deleted. Deleting one takes the kernel tens
// of milliseconds under a lock that every Attach needs, while namespaces that die together are cleaned up together.
const linkGrace = 2 * time.Second

// reaper deletes the links of detached sandboxes that outlive their namespace.
type reaper struct {
	wake chan struct{}

	mu    sync.Mutex
	names map[string]struct{}
}

func (r *reaper) start(n *Network) {
	r.wake, r.names = make(chan struct{}, 1), make(map[string]struct{})
	n.wait.Go(func() {
		timer := time.NewTimer(linkGrace)
		timer.Stop()
		for {
			select {
			case <-r.wake:
				timer.Reset(linkGrace)
			case <-timer.C:
				r.reap(n)
			case <-n.done:
				r.reap(n)
				return
			}
		}
	})
}

// bury notes a link for deletion.
func (r *reaper) bury(name string) {
	r.mu.Lock()
	first := len(r.names) == 0
	r.names[name] = struct{}{}
	r.mu.Unlock()
	if first { // else the timer runs already
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// raise takes a link off the list: its name is in use again.
func (r *reaper) raise(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, name)
}

func (r *reaper) reap(n *Network) {
	r.mu.Lock()
	names := make([]string, 0, len(r.names))
	for name := range r.names {
		names = append(names, name)
	}
	clear(r.names)
	r.mu.Unlock()
	if err := n.deleteLinks(names...); err != nil {
		n.options.Log.Warn("links of ended sandboxes stay", "links", names, "error", err)
	}
}

// deleteLinks removes links by name on a thread in the host's namespace. Those that are gone already are no fault.
func deleteLinks(names []string) error {
	if len(names) == 0 {
		return nil
	}
	r, err := openRTNL()
	if err != nil {
		return err
	}
	defer r.close()
	var errs []error
	for _, name := range names {
		_, failed := r.do(deleteLink(name))
		if failed[0] != nil && !errors.Is(failed[0], unix.ENODEV) {
			errs = append(errs, named("remove link "+name, failed))
		}
	}
	return errors.Join(errs...)
}
