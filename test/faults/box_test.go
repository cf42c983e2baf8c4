package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/test/host"
)

// How far times may be from one another.
const (
	lateMax  = time.Second             // an enforcer, on a busy host
	agentMin = 2 * time.Second         // the agent's own clock, when no enforcer lives
	agentMax = 3500 * time.Millisecond // alike
	slack    = 300 * time.Millisecond  // between what the kernel told this program and what it told another
	stamp    = 5 * time.Millisecond    // stamps are whole milliseconds
	boxMax   = 2 * time.Minute         // no sandbox of this package lives longer
)

// box is what this program knows of one sandbox: what it asked for, what it was told, and what the kernel told it.
type box struct {
	id    string
	label string

	mu      sync.Mutex
	lo, hi  time.Time // its deadline is in between; they differ while an extend's outcome is not known
	ended   time.Time // when a delete was first asked for, or zero
	hurt    time.Time // from when on its agent may be killed, or zero
	death   time.Time // when the kernel said that no process of it lives, or zero
	files   map[string]*file
	told    []string // what happened to it, for the report
	toldEnd bool     // somebody was told that it has ended
}

// file is what a file may hold: what was confirmed, or what was sent without an answer.
type file struct {
	confirmed string
	pending   []string
}

func newBox(s *host.Server, r record) *box {
	b := &box{id: r.ID, label: r.Labels["key"], lo: r.ExpiresAt, hi: r.ExpiresAt, files: map[string]*file{}}
	b.tell("created, due %s", clock(r.ExpiresAt))
	go b.watch(s) // ends with the sandbox, boxMax at most
	return b
}

// watch waits for the kernel's word that the sandbox is dead.
func (b *box) watch(s *host.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), boxMax)
	defer cancel()
	at, err := s.WaitDead(ctx, b.id)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.told = append(b.told, err.Error())
		return
	}
	b.death = at
	b.told = append(b.told, clock(at)+" dead")
}

func clock(t time.Time) string { return t.UTC().Format("05.000") }

func (b *box) tell(format string, args ...any) {
	b.told = append(b.told, clock(time.Now())+" "+fmt.Sprintf(format, args...))
}

func (b *box) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tell(format, args...)
}

// history is the report.
func (b *box) history() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.id + ":\n\t\t" + strings.Join(b.told, "\n\t\t")
}

// usable tells that nothing was done that ends the sandbox, and that it has some time left.
func (b *box) usable(left time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.death.IsZero() && b.ended.IsZero() && b.hurt.IsZero() && !b.toldEnd && time.Until(b.lo) > left
}

// blind are the times in which neither the server nor the warden could enforce anything.
type blind struct {
	mu    sync.Mutex
	spans []span
}

// span is one of them.
type span struct {
	from, to time.Time
	sign     time.Time // the last sign of life of a warden, if nobody was there to see anything from then on; or zero
}

func (l *blind) add(from, to, sign time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spans = append(l.spans, span{from, to, sign})
}

// late is how late a sandbox may be that was due between lo and hi.
func (l *blind) late(lo, hi time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.spans {
		if s.from.Before(hi.Add(lateMax)) && s.to.After(lo.Add(-slack)) {
			return agentMax
		}
	}
	return lateMax
}

// unseen gives the time in which a death happened that nobody can have seen; ok is false when somebody was there.
func (l *blind) unseen(death time.Time) (at span, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.spans {
		if !s.sign.IsZero() && death.After(s.sign.Add(-stamp)) && death.Before(s.to) {
			return s, true
		}
	}
	return span{}, false
}

// check compares the record of an ended sandbox with what the kernel told.
func (b *box) check(r record, l *blind) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s (record: %s, %s, ended at %s; due %s to %s; dead at %s)", b.id, fmt.Sprintf(format, args...),
			r.Status, r.EndReason, endClock(r), clock(b.lo), clock(b.hi), clock(b.death))
	}
	if r.EndedAt == nil {
		return wrong("an ended sandbox has no time of its end")
	}
	if b.death.IsZero() {
		return wrong("the record says ended, the kernel does not")
	}
	at := *r.EndedAt
	if at.After(now.Add(stamp)) || at.After(b.death.Add(slack)) {
		return wrong("ended_at is later than the end")
	}
	late := l.late(b.lo, b.hi)
	if b.death.After(b.hi.Add(late)) {
		return wrong("it outlived its deadline by %s", b.death.Sub(b.hi))
	}
	first := b.lo // the earliest true end
	for _, other := range []time.Time{b.ended, b.hurt} {
		if !other.IsZero() && other.Before(first) {
			first = other
		}
	}
	nobody, unseen := l.unseen(b.death)
	early := first
	if unseen && nobody.sign.Before(first) {
		early = nobody.sign // nobody can tell more than that it lived then
	}
	if at.Before(early.Add(-stamp-time.Millisecond)) || b.death.Before(first.Add(-stamp)) {
		return wrong("it ended before its time, %s; %s", clock(first), nobody)
	}
	if unseen && !b.hurt.IsZero() && r.EndReason == "lease_expired" && r.Status == "deleted" && !nobody.to.Before(b.lo.Add(agentMin)) {
		return nil // nobody was there to see that it crashed before its own clock ended it
	}
	return b.reasonLocked(r, wrong)
}

func (s span) String() string {
	return fmt.Sprintf("unseen from %s (last sign %s) to %s", clock(s.from), clock(s.sign), clock(s.to))
}

func endClock(r record) string {
	if r.EndedAt == nil {
		return "never"
	}
	return clock(*r.EndedAt)
}

// reasonLocked checks why a sandbox ended.
func (b *box) reasonLocked(r record, wrong func(string, ...any) error) error {
	expired := !b.death.Before(b.lo.Add(-stamp))
	switch r.EndReason {
	case "lease_expired":
		seenLate := !b.hurt.IsZero() && !b.death.Before(b.lo.Add(-slack)) // it crashed just before its deadline, and was seen dead after it
		if !expired && !seenLate {
			return wrong("it cannot have expired")
		}
	case "requested":
		if b.ended.IsZero() {
			return wrong("nobody asked for its end")
		}
	case "crashed":
		if b.hurt.IsZero() {
			return wrong("nobody made it crash")
		}
	default:
		return wrong("no such reason is possible")
	}
	if (r.Status == "failed") != (r.EndReason == "crashed") {
		return wrong("the status does not fit the reason")
	}
	return nil
}

// parts are what a sandbox consists of on the host, under the isolation that servers give here.
func parts() []string {
	if os.Getenv(host.EnvIsolation) == "linux" {
		return []string{host.PartFirst}
	}
	return []string{host.PartFirst, host.PartSentry, host.PartGofer}
}

// killAgent kills the sandbox's first process from outside.
func (b *box) killAgent(s *host.Server) error { return b.kill(s, host.PartFirst) }

// kill kills a part of the sandbox from outside, unless it is gone already.
func (b *box) kill(s *host.Server, part string) error {
	all, err := s.Parts(b.id)
	pid := all[part]
	if err != nil || pid == 0 {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hurt.IsZero() { // else it may have died already, of the point that is armed in it
		b.hurt = time.Now()
	}
	b.tell("its part %s is killed", part)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
