package control

import (
	"context"
	"sync"
	"time"

	"dayfly.dev/dayfly"
)

// Meter is told what happens, for the operator's figures. Its methods are called where things happen, in parallel, and return
// at once. Nothing is decided by it.
type Meter interface {
	// Created: a sandbox accepts commands, so long after its creation was accepted.
	Created(took time.Duration)
	// Executed: a command ended, so long after it was asked for; it ran for ran itself. Repeated requests do not count.
	Executed(took, ran time.Duration)
	// Executing: so many more (or fewer) requests wait for commands.
	Executing(more int)
	// Deleted: a sandbox is gone and its record says so, so long after its teardown began, for whatever reason.
	Deleted(took time.Duration)
	// Ended: a sandbox ended.
	Ended(reason dayfly.EndReason)
	// LeaseEnded: a machine was dead so long after its deadline.
	LeaseEnded(late time.Duration)
	// Found: host and records did not agree. kind is one of few words.
	Found(kind string)
}

// The kinds of findings, beside the kinds of objects that a sweep removes.
const (
	foundUnrecorded = "machine_without_record" // adopted
	foundEnded      = "ended_unseen"           // it ended while no server ran
	foundHalf       = "half_ended"             // its end was begun and not finished
	foundStopped    = "pass_stopped"           // a pass of the reconciler refused to go on
)

// noMeter is told everything and keeps nothing.
type noMeter struct{}

func (noMeter) Created(time.Duration)       {}
func (noMeter) Executed(_, _ time.Duration) {}
func (noMeter) Executing(int)               {}
func (noMeter) Deleted(time.Duration)       {}
func (noMeter) Ended(dayfly.EndReason)      {}
func (noMeter) LeaseEnded(time.Duration)    {}
func (noMeter) Found(string)                {}

// since is the time that has passed, suspended time included.
func (p *Plane) since(begun dayfly.Instant) time.Duration { return p.node.Now().Boot - begun.Boot }

// metered tells of the end of a sandbox once it is recorded.
func (p *Plane) metered(sb dayfly.Sandbox, now dayfly.Instant) {
	p.meter.Ended(sb.End)
	if sb.End == dayfly.EndLeaseExpired && sb.Lease.BootID == now.BootID {
		p.meter.LeaseEnded(max(0, sb.Times.EndedBoot-sb.Lease.Deadline))
	}
}

// meteredExec counts a command that is being waited for. The function it returns ends that, and may be called again; exit is
// the command's, or nil where it is not known or not this request's.
func (p *Plane) meteredExec() (done func(exit *dayfly.Exit)) {
	begun := p.node.Now()
	p.meter.Executing(1)
	var once sync.Once
	return func(exit *dayfly.Exit) {
		once.Do(func() {
			p.meter.Executing(-1)
			if exit != nil {
				p.meter.Executed(p.since(begun), exit.Duration)
			}
		})
	}
}

// meteredStream tells the end of a command that is being followed.
type meteredStream struct {
	dayfly.OutputStream
	done   func(exit *dayfly.Exit)
	joined bool // another request started it
}

func (s *meteredStream) Next() (dayfly.Output, error) {
	out, err := s.OutputStream.Next()
	if err == nil && out.Kind == dayfly.OutputExit && !s.joined {
		s.done(out.Exit)
	}
	return out, err
}

func (s *meteredStream) Close() error {
	s.done(nil)
	return s.OutputStream.Close()
}

// Count tells how many live sandboxes there are of each status.
func (p *Plane) Count(ctx context.Context) (map[dayfly.Status]int, error) {
	live, err := p.store.LiveSandboxes(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[dayfly.Status]int{dayfly.StatusProvisioning: 0, dayfly.StatusRunning: 0, dayfly.StatusPaused: 0, dayfly.StatusDeleting: 0}
	for _, sb := range live {
		counts[sb.Status]++
	}
	return counts, nil
}

// meterRecovery tells what a start of the server found.
func (p *Plane) meterRecovery(known []dayfly.Sandbox, found Recovery) {
	recorded := make(map[string]bool, len(known))
	for _, sb := range known {
		recorded[sb.ID] = true
	}
	for _, sb := range found.Running {
		if !recorded[sb.ID] {
			p.meter.Found(foundUnrecorded)
		}
	}
	for range found.Ended {
		p.meter.Found(foundEnded)
	}
	for range found.Ending {
		p.meter.Found(foundHalf)
	}
}
