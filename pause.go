package dayfly

import (
	"context"
	"time"
)

// Pauser is implemented by instances that can be frozen: nothing in the machine runs any more and everything stays as it is,
// until it is thawed or destroyed. The host keeps whether a machine is frozen, so that it is known after a restart of the node.
// Destroy and the enforcers end a frozen machine as they end any other. Whoever calls it keeps calls of Pause and Resume of one
// machine apart; all but those may meet them.
type Pauser interface {
	// Pause freezes the machine and returns once nothing in it runs. It blocks for as long as ctx allows; after an error the
	// machine may be partly frozen, and Resume undoes that. Pausing a frozen one succeeds.
	Pause(ctx context.Context) error
	// Resume thaws the machine and returns once it may run. Resuming one that is not frozen succeeds.
	Resume(ctx context.Context) error
	// Paused tells whether the machine was told to freeze and not to thaw since, by whomever. It asks the host and does not
	// block. A machine that has ended is not paused.
	Paused() (bool, error)
}

// PauseMax bounds a pause, and a resume: one that takes longer is undone and refused.
const PauseMax = 5 * time.Second
