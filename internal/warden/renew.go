package warden

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// renewWait is how long an extend waits for an enforcer that has just begun to look at the same machine.
const renewWait = 5 * time.Second

// Renew puts a later lease in the place of the one that is there and then settles who won: nil means that every enforcer
// obeys the new lease and the machine lives; CodeGone that it was ended first, or never had a lease; CodeUnavailable that an
// enforcer did not decide in time, so it is not known. It must not be called while the machine is being born.
//
// After an error other than CodeGone the new lease may count.
func (d *Dir) Renew(ctx context.Context, l Lease) error {
	if err := d.replaceLease(l); err != nil {
		return err
	}
	failpoint.Hit("warden.renew.replaced")
	ctx, cancel := context.WithTimeout(ctx, renewWait)
	defer cancel()
	_, err := d.waitMarks(ctx, l.ID)
	if errors.Is(err, context.DeadlineExceeded) {
		return dayfly.Errorf(dayfly.CodeUnavailable, "sandbox %s is just being ended or was extended; it is not known which", l.ID).
			WithHint("look at the sandbox again").WithRetryAfter(time.Second).WithCause(err)
	}
	if err != nil {
		return fmt.Errorf("renew lease of %s: %w", l.ID, err)
	}
	failpoint.Hit("warden.renew.waited")
	if d.hasEnd(l.ID) {
		return errGone(l.ID)
	}
	g, err := l.group()
	if err != nil {
		return err
	}
	populated, err := g.Populated()
	if err != nil {
		return fmt.Errorf("renew lease of %s: %w", l.ID, err)
	}
	if !populated {
		return errGone(l.ID)
	}
	return nil
}

// cutSuffixID gives the sandbox id before suffix in a file name.
func cutSuffixID(name, suffix string) (string, bool) {
	id, ok := strings.CutSuffix(name, suffix)
	return id, ok && dayfly.ValidID(dayfly.PrefixSandbox, id)
}
