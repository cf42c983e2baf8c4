package dayfly

import (
	"context"
	"time"
)

// EventType says what happened.
type EventType string

// The types of events.
const (
	EventAccepted   EventType = "sandbox.accepted"    // its creation was accepted; the lease runs
	EventRunning    EventType = "sandbox.running"     // it accepts commands
	EventExtended   EventType = "sandbox.extended"    // its lease was made longer
	EventPaused     EventType = "sandbox.paused"      // nothing in it runs; the lease runs on
	EventResumed    EventType = "sandbox.resumed"     // it goes on
	EventDeleting   EventType = "sandbox.deleting"    // its end was decided; the cause is the end reason
	EventEnded      EventType = "sandbox.ended"       // it is gone; the time is the host's, the cause the end reason
	EventAdopted    EventType = "sandbox.adopted"     // it ran without a record, which was rebuilt
	EventReclaimed  EventType = "reconcile.reclaimed" // something on the host that no sandbox owned was removed
	EventNotSwept   EventType = "reconcile.stopped"   // a pass stopped without removing anything more; the message says why
	EventKeyMade    EventType = "key.created"
	EventKeyRemoved EventType = "key.removed"
	EventStarted    EventType = "server.started"
	EventStopping   EventType = "server.stopping"
)

// EventsKept is how long events are kept.
const EventsKept = 30 * 24 * time.Hour

// Event is one thing that happened. It never changes and holds no secret.
type Event struct {
	Seq     int64     // grows with each event of the installation: the cursor
	At      time.Time // when it happened, as the host saw it
	Account string    // whose it is, or empty for the installation's, which admins see
	Sandbox string    // which sandbox, or empty
	Type    EventType
	Actor   Actor
	Cause   string // machine-readable: an end reason, a kind of object; or empty
	Message string // for people, or empty
}

// Actor is who made something happen: a key (by its id), or a part of the server.
type Actor string

// The actors beside keys.
const (
	ActorServer     Actor = "server"
	ActorReaper     Actor = "reaper"
	ActorReconciler Actor = "reconciler"
	ActorHost       Actor = "host" // the warden, the agent, the kernel: nobody asked
)

type actorKey struct{}

// WithActor returns a context whose writes are made by a.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorOf tells who a context's writes are made by; the server itself unless WithActor said otherwise.
func ActorOf(ctx context.Context) Actor {
	if a, ok := ctx.Value(actorKey{}).(Actor); ok {
		return a
	}
	return ActorServer
}
