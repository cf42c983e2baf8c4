package dayfly

import "context"

// Pool is where sandboxes write: it gives each a directory of its own with a hard limit where the technology has one. Disks
// are deleted, never reset and reused. The conformance suite is disktest.
type Pool interface {
	// Kind names the technology: "btrfs", "plain".
	Kind() string
	// Limits tells whether disk limits are enforced, and if not why (one sentence).
	Limits() (enforced bool, why string)
	// Create makes an empty disk for id, with subdirectories "u" and "w" owned by root, and returns its path. limitBytes 0
	// means no limit. CodeConflict: there is one already. CodeDiskFull: the pool has no room.
	Create(ctx context.Context, id string, limitBytes int64) (dir string, err error)
	// Remove unlinks id's disk at once; its space comes back in the background. Removing what is not there succeeds.
	Remove(ctx context.Context, id string) error
	// List gives the ids of all disks, recorded or not. An error means "could not look", never "nothing there".
	List(ctx context.Context) ([]string, error)
	// Reclaiming tells how many removed disks still wait for their space to come back.
	Reclaiming(ctx context.Context) (int, error)
	// Usage is the pool's size and what is free of it, in bytes.
	Usage(ctx context.Context) (total, free int64, err error)
	// Close releases what this process holds. The pool and its disks stay usable by running machines.
	Close() error
}
