package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"dayfly.dev/dayfly"
)

// Source lists one kind of host object. It reads the host itself, so it works with the server up or down.
type Source struct {
	Kind string
	// List gives what is there. An error means "could not look", never "nothing there".
	List func(ctx context.Context) ([]Object, error)
}

// Object is one thing on the host that bears our mark.
type Object struct {
	Kind  string        `json:"kind"`
	Name  string        `json:"name"`
	Owner string        `json:"owner"` // sandbox id, or "installation" for what belongs to all of it
	State ObjectState   `json:"state"`
	Age   time.Duration `json:"-"` // 0: unknown
}

// ObjectState is what a survey says of an object.
type ObjectState string

// The states.
const (
	ObjectOwned       ObjectState = "owned"       // a live sandbox's, or the installation's
	ObjectReclaiming  ObjectState = "reclaiming"  // of an ended sandbox, on its way out
	ObjectUnaccounted ObjectState = "unaccounted" // nothing that is recorded owns it
	ObjectMissing     ObjectState = "missing"     // recorded as running, but no process of it is there
)

// OwnerInstallation owns what no single sandbox does.
const OwnerInstallation = "installation"

// KindMachine is the source that proves that a sandbox runs.
const KindMachine = "machine"

// Survey compares what is on the host with what is recorded, in both directions. It changes nothing. records are all
// sandboxes that are not ended, read before the host is listed by the sources; of ended ones ago tells how long they have been, by a
// clock that nobody sets.
func Survey(ctx context.Context, sources []Source, records []dayfly.Sandbox, ago func(id string) (ended time.Duration, ok bool)) ([]Object, error) {
	live := make(map[string]dayfly.Status, len(records))
	for _, sb := range records {
		live[sb.ID] = sb.Status
	}
	var found []Object
	running := map[string]bool{}
	for _, s := range sources {
		objects, err := s.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("list every %s on the host: %w", s.Kind, err)
		}
		for _, o := range objects {
			o.Kind = s.Kind
			o.State = stateOf(o, live, ago)
			if s.Kind == KindMachine {
				running[o.Owner] = true
			}
			found = append(found, o)
		}
	}
	for _, sb := range records {
		if sb.Status.Up() && !running[sb.ID] {
			found = append(found, Object{Kind: KindMachine, Name: sb.ID, Owner: sb.ID, State: ObjectMissing})
		}
	}
	slices.SortFunc(found, func(a, b Object) int {
		return strings.Compare(a.Owner+a.Kind+a.Name, b.Owner+b.Kind+b.Name)
	})
	return found, nil
}

// reclaimGrace is how long after a sandbox's end its namespaces, interfaces and space may still be on their way out.
const reclaimGrace = 5 * time.Second

func stateOf(o Object, live map[string]dayfly.Status, ago func(string) (time.Duration, bool)) ObjectState {
	if o.State != "" { // the source knows: space that is being given back
		return o.State
	}
	if o.Owner == OwnerInstallation {
		return ObjectOwned
	}
	switch status, ok := live[o.Owner]; {
	case ok && status == dayfly.StatusDeleting:
		return ObjectReclaiming
	case ok:
		return ObjectOwned
	}
	if ended, ok := ago(o.Owner); ok && ended < reclaimGrace {
		return ObjectReclaiming
	}
	return ObjectUnaccounted
}
