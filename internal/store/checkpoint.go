package store

import "context"

const (
	checkpointEvery = 200      // writes between two checkpoints, of some 10 pages each
	journalPages    = 4 << 10  // after which a commit makes the checkpoint itself
	journalBytes    = 16 << 20 // that the journal's file keeps when it starts again
)

// checkpointer moves the journal into the main file beside the writes, because a checkpoint waits for the disk and the
// caller whose commit happened to reach the mark would wait with it. While writes never pause it never reaches their end;
// then journalPages bounds the journal.
type checkpointer struct {
	s      *session
	due    chan struct{} // holds at most one wish
	done   chan struct{} // closed when the goroutine has ended
	writes int           // since the last wish; guarded by the turn on the writing session
}

func startCheckpointer(s *session) *checkpointer {
	c := &checkpointer{s: s, due: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for range c.due {
			// A failure changes nothing: the journal stays and the next wish tries again. A full disk shows at a write.
			_, _ = tx{ctx: context.Background(), s: c.s}.exec("PRAGMA wal_checkpoint(PASSIVE)")
		}
	}()
	return c
}

// wrote counts a commit. It never blocks. c may be nil.
func (c *checkpointer) wrote() {
	if c == nil {
		return
	}
	if c.writes++; c.writes < checkpointEvery {
		return
	}
	c.writes = 0
	select {
	case c.due <- struct{}{}:
	default:
	}
}

// stop waits for a running checkpoint. Nobody may write any more. c may be nil.
func (c *checkpointer) stop() error {
	if c == nil {
		return nil
	}
	close(c.due)
	<-c.done
	return c.s.close()
}
