package warden

import "sync"

// inbox collects what happened for the warden's one loop. Posting never blocks; what is posted twice before the loop looks
// is looked at once, so it holds at most a few words for each machine.
type inbox struct {
	wake chan struct{} // has one element while something is in the box

	mu sync.Mutex
	in news
}

// news is what one look into the inbox gives.
type news struct {
	rescan   bool                // events were lost: look at everything
	handover bool                // another warden wants to take over
	leases   map[string]bool     // ids whose lease file changed
	groups   map[string]bool     // ids whose control group was made
	life     map[string]lifeNews // ids whose control group became populated or empty
	results  []result
}

// lifeNews is what a control group went through since the last look.
type lifeNews struct {
	lived bool // it was populated at some time
	lives bool // it is populated now
}

// result is the end of an attempt to end a machine.
type result struct {
	id      string
	outcome Outcome
	err     error
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// post changes the news under the lock and wakes the loop.
func (b *inbox) post(change func(n *news)) {
	b.mu.Lock()
	change(&b.in)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take empties the box.
func (b *inbox) take() news {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.in
	b.in = news{}
	return n
}

func (n *news) lease(id string) {
	if n.leases == nil {
		n.leases = map[string]bool{}
	}
	n.leases[id] = true
}

func (n *news) group(id string) {
	if n.groups == nil {
		n.groups = map[string]bool{}
	}
	n.groups[id] = true
}

func (n *news) alive(id string, populated bool) {
	if n.life == nil {
		n.life = map[string]lifeNews{}
	}
	l := n.life[id]
	n.life[id] = lifeNews{lived: l.lived || populated, lives: populated}
}
