package node

import (
	"context"
	"os"
	"time"

	"dayfly.dev/dayfly"
)

// Network connects machines to the outside. Slots are small numbers that no two live machines share.
type Network interface {
	// Attach connects a machine's network namespace; nothing is left of a failed attach.
	Attach(ctx context.Context, slot int, id string, netns *os.File) error
	// Detach takes a machine's permission and interface away. Detaching what is not there succeeds.
	Detach(ctx context.Context, slot int, id string) error
	// Files are the machine's /etc/hosts, /etc/hostname and /etc/resolv.conf.
	Files(id string, slot int, internet bool) map[string][]byte
	// List gives the ids of all machines that have something here. An error means "could not look".
	List(ctx context.Context) ([]string, error)
	// Reclaim removes whatever is left of id, without knowing its slot.
	Reclaim(ctx context.Context, id string) error
}

// Leases is the host's side of the lease guarantee: one file per machine that the enforcers obey.
type Leases interface {
	// Write stores the lease of a machine that is about to be made.
	Write(id string, lease dayfly.Lease) error
	// Renew stores a later lease and returns once every enforcer is known to obey it. CodeGone: the machine was ended first;
	// CodeUnavailable: it is not known.
	Renew(ctx context.Context, id string, lease dayfly.Lease) error
	// End kills the machine if its lease is due, waiting until no process lives; else it gives the lease as stored.
	End(ctx context.Context, id string) (lease dayfly.Lease, ended bool, err error)
	// Read reads a lease. CodeNotFound: there is no file; any other error means unreadable, not absent.
	Read(id string) (dayfly.Lease, error)
	// Ended reads how the machine ended, as the first enforcer that saw it wrote it down. ok is false when nobody did.
	Ended(id string) (end LeaseEnd, ok bool, err error)
	// Remove removes all files of id.
	Remove(id string) error
	// List gives the ids of all lease files.
	List() ([]string, error)
	// Alive tells whether an enforcer outside this process watches. CodeUnavailable: none does.
	Alive() error
	// LastSeen is when that enforcer was last known alive, for dating the end of a boot.
	LastSeen() (at time.Time, ok bool)
	// Unwatched is since when, in this boot and before this process watched, no such enforcer was known alive: what ended
	// with no record of it ended after that. ok is false when there was none in this boot.
	Unwatched() (since time.Time, ok bool)
}

// LeaseEnd is when and why a machine ended.
type LeaseEnd struct {
	BootID  string
	Boot    time.Duration // CLOCK_BOOTTIME of that boot
	Expired bool          // an enforcer ended it at its deadline; else it emptied by itself
	Found   bool          // nobody saw it end: it was dead when an enforcer came, at Boot
}
