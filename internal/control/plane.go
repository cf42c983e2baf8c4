package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"dayfly.dev/dayfly"
)

// Limits of the control plane's own waits and batches.
const (
	ProvisionTimeout = 60 * time.Second // from acceptance to ready, else startup_failed
	DeleteWait       = 10 * time.Second // how long a delete waits for the machine to be gone before it answers "deleting"
	teardownTimeout  = 2 * time.Minute  // one attempt to destroy; it is tried again after
	closeGrace       = 10 * time.Second // how long Close lets an attempt to destroy go on; the next start continues it
	casAttempts      = 20               // retries of a lost compare-and-swap
	EndedKept        = 30 * 24 * time.Hour
	sweepEvery       = 30 * time.Second
	sweepNext        = 500 * time.Millisecond // after a pass that left some for the next
	purgeBatch       = 1000
)

// Size is a named set of limits.
type Size struct {
	VCPU     int
	MemoryMB int
	DiskMB   int
}

// Config is what the operator decides. Zero values mean the defaults.
type Config struct {
	Sizes     map[string]Size // small, medium and large always exist
	LeaseMax  time.Duration   // 0 means dayfly.LeaseCeiling
	PIDs      int             // process limit; 0 means dayfly.PIDsDefault
	Provision time.Duration   // 0 means ProvisionTimeout
	MaxLive   int             // quota of accounts made from now on; 0 means dayfly.QuotaDefault
	Meter     Meter           // told what happens, or nil
	Wake      <-chan struct{} // has a pass of the reconciler made soon, or nil
}

// Images unpacks and removes root file systems. Records of them are the store's.
type Images interface {
	ImageImporter
	// Remove deletes the unpacked files of an image. Removing what is not there succeeds.
	Remove(ctx context.Context, id string) error
}

// Plane is the control plane: every use case of the API is one method. It is safe for concurrent use.
type Plane struct {
	store  dayfly.Store
	node   Node
	images Images
	cfg    Config
	meter  Meter
	log    *slog.Logger

	life   context.Context // of background work: ends at Close, never with a request
	stop   context.CancelCauseFunc
	open   context.Context // ends at Drain
	shut   context.CancelFunc
	work   sync.WaitGroup
	reaper *Reaper
	wake   chan struct{} // capacity 1: a pass of the reconciler is to be made soon

	principals known[Principal] // by the hash of their secret
	running    known[string]    // the accounts of running sandboxes, by id

	extends turns // of those who extend a lease
	pauses  turns // of those who pause or resume

	sweeping sync.Mutex // held for a whole pass
	stopped  string     // why the last pass stopped, or empty
	left     int        // sandboxes whose leftovers it left for the next

	mu       sync.Mutex
	phase    phase
	closed   bool                  // no background work begins any more
	launches map[string]*launch    // creations under way, by sandbox id
	endings  map[string]*ending    // teardowns under way, by sandbox id
	flights  map[flightKey]*flight // requests with an idempotency key that are being carried out
}

// phase is how far the life of the plane is.
type phase int

const (
	phaseStarting phase = iota // recovering: requests are refused
	phaseOpen
	phaseDraining // new work is refused
)

// errClosed is the cause of the end of background work.
var errClosed = errors.New("the control plane is closing")

// New makes a plane. Call Start before use and Close after.
func New(store dayfly.Store, node Node, images Images, cfg Config, log *slog.Logger) *Plane {
	life, stop := context.WithCancelCause(context.Background())
	p := &Plane{
		store: store, node: node, images: images, cfg: cfg.withDefaults(), log: log,
		life: life, stop: stop,
		launches: map[string]*launch{}, endings: map[string]*ending{},
		flights: map[flightKey]*flight{}, wake: make(chan struct{}, 1),
	}
	p.open, p.shut = context.WithCancel(life)
	p.meter = p.cfg.Meter
	p.reaper = newReaper(p)
	return p
}

// Now reads the node's clocks; answers compute what remains of a lease from it.
func (p *Plane) Now() dayfly.Instant { return p.node.Now() }

// Start recovers what survived a restart, then begins the background work. It returns once every record agrees with the
// host. Requests are refused with CodeUnavailable until Accept.
func (p *Plane) Start(ctx context.Context) error {
	if _, err := p.recover(ctx); err != nil {
		return err
	}
	p.tell(ctx, dayfly.Event{Type: dayfly.EventStarted})
	for _, loop := range []func(context.Context){p.reaper.run, p.watchEndings, p.sweep} {
		p.background(func() { loop(p.life) })
	}
	return nil
}

// background runs f on a goroutine that Close waits for. It tells false, and runs nothing, once the plane is closing.
func (p *Plane) background(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backgroundLocked(f)
}

func (p *Plane) backgroundLocked(f func()) bool {
	if p.closed {
		return false
	}
	p.work.Go(f)
	return true
}

// refuses tells why new work is not taken now, or nil.
func (p *Plane) refuses() error {
	switch {
	case p.in(phaseStarting):
		return errStarting
	case p.in(phaseDraining):
		return errDraining
	}
	return nil
}

// Accept takes requests from now on.
func (p *Plane) Accept() { p.enter(phaseOpen) }

// Drain refuses new sandboxes and execs from now on with CodeUnavailable, and ends the wait for events. Machines go on.
func (p *Plane) Drain() {
	if p.enter(phaseDraining) == phaseOpen {
		p.tell(context.Background(), dayfly.Event{Type: dayfly.EventStopping})
	}
	p.shut()
}

// enter gives the phase before.
func (p *Plane) enter(next phase) (was phase) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was = p.phase
	p.phase = max(p.phase, next)
	return was
}

func (p *Plane) in(which phase) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase == which
}

// Close ends background work and waits for it, for closeGrace and a little more at most while a machine is being destroyed.
// Machines go on. What was being made or destroyed is settled by the next start.
func (p *Plane) Close() {
	p.Drain()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop(errClosed)
	p.work.Wait()
}

func (c Config) withDefaults() Config {
	sizes := map[string]Size{"small": {1, 1024, 8192}, "medium": {2, 4096, 16384}, "large": {4, 8192, 32768}}
	for name, s := range c.Sizes {
		sizes[name] = s
	}
	c.Sizes = sizes
	if c.LeaseMax <= 0 || c.LeaseMax > dayfly.LeaseCeiling {
		c.LeaseMax = dayfly.LeaseCeiling
	}
	if c.PIDs <= 0 {
		c.PIDs = dayfly.PIDsDefault
	}
	if c.Provision <= 0 {
		c.Provision = ProvisionTimeout
	}
	if c.MaxLive <= 0 {
		c.MaxLive = dayfly.QuotaDefault
	}
	if c.Meter == nil {
		c.Meter = noMeter{}
	}
	return c
}

// Ready lists what keeps the plane from taking work, or nil.
func (p *Plane) Ready(ctx context.Context) []Problem {
	var found []Problem
	if p.in(phaseStarting) {
		found = append(found, Problem{"server", "the server is starting"})
	}
	if p.in(phaseDraining) {
		found = append(found, Problem{"server", "the server is shutting down"})
	}
	if err := p.store.Ping(ctx); err != nil {
		p.log.Error("database does not answer", "error", err)
		found = append(found, Problem{"database", "the database does not answer"})
	}
	return append(found, p.node.Problems(ctx)...)
}
