package faults_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"
)

// operation is one thing that a client wants, with all it takes to want it again after a crash.
type operation interface {
	// run makes the request, once. settled is false when nobody knows what became of it; then it is run again after the
	// restart, with the same idempotency key. An error is a broken promise.
	run(w *world) (settled bool, err error)
	// check holds what was promised against what is, after the restart, when everything is settled.
	check(w *world) error
	String() string
}

// createOp makes a sandbox.
type createOp struct {
	key     string
	seconds int
	image   string
	id      string // of the 201
	gaveUp  bool
	last    answer // that left it open
}

func (o *createOp) String() string {
	if o.last.cut() {
		return fmt.Sprintf("create %s (last answered %s)", o.key, o.last)
	}
	return "create " + o.key
}

func (o *createOp) run(w *world) (bool, error) {
	body := map[string]any{"timeout_seconds": o.seconds, "labels": map[string]string{"key": o.key}, "disk_mb": 256, "memory_mb": 128}
	if o.image != "" {
		body["image"] = o.image
	}
	a := w.do("POST", "/v1/sandboxes", o.key, body)
	if a.status == 410 { // it was made, lost its answer, and has ended
		o.gaveUp = true
		return true, nil
	}
	if o.last = a; a.cut() {
		return false, nil
	}
	var r record
	if err := a.into(&r); err != nil || a.status != 201 {
		return true, fmt.Errorf("%s answered %s", o, a)
	}
	if o.id != "" && r.ID != o.id {
		return true, fmt.Errorf("%s made %s and %s", o, o.id, r.ID)
	}
	o.id = r.ID
	if r.ended() {
		if !r.Replayed {
			return true, fmt.Errorf("%s answered 201 with an ended sandbox: %s", o, a)
		}
		o.gaveUp = true
		return true, nil
	}
	if want := r.CreatedAt.Add(time.Duration(o.seconds) * time.Second); !r.Replayed && r.ExpiresAt.Sub(want).Abs() > slack {
		return true, fmt.Errorf("%s: made at %s for %d s, due %s", o, clock(r.CreatedAt), o.seconds, clock(r.ExpiresAt))
	}
	w.addBox(r)
	return true, nil
}

func (o *createOp) check(w *world) error {
	all, err := w.sandboxes("include_ended=true&label=" + url.QueryEscape("key:"+o.key))
	if err != nil {
		return err
	}
	var made []string
	for _, r := range all {
		if r.EndReason != "startup_failed" {
			made = append(made, r.ID+" "+r.Status+" "+r.EndReason)
		}
	}
	if len(made) > 1 || len(made) == 0 && o.id != "" {
		return fmt.Errorf("%s made %d machines: %v", o, len(made), made)
	}
	return nil
}

// execOp runs a command that leaves a line behind.
type execOp struct {
	b     *box
	key   string
	sleep float64
	done  bool // answered with its result
}

func (o *execOp) String() string { return fmt.Sprintf("exec %s in %s", o.key, o.b.id) }

func (o *execOp) run(w *world) (bool, error) {
	body := map[string]any{"command": fmt.Sprintf("echo %s >> log; sleep %.2f; echo out-%s; exit 7", o.key, o.sleep, o.key)}
	a := w.do("POST", "/v1/sandboxes/"+o.b.id+"/exec", o.key, body)
	o.b.note("%s: %s", o, a)
	if a.status == 410 || a.cut() && !o.b.usable(0) {
		return true, nil
	}
	if a.cut() {
		return false, nil
	}
	var got struct {
		Exit   int    `json:"exit_code"`
		Stdout string `json:"stdout"`
	}
	if err := a.into(&got); err != nil || a.status != 200 || got.Exit != 7 || got.Stdout != "out-"+o.key+"\n" {
		return true, fmt.Errorf("%s answered %s", o, a)
	}
	o.done = true
	return true, nil
}

func (o *execOp) check(w *world) error {
	if !o.b.usable(time.Second) {
		return nil
	}
	a := w.do("POST", "/v1/sandboxes/"+o.b.id+"/exec", "", map[string]any{"command": "grep -c " + o.key + " log || true"})
	if a.status == 410 || a.err != nil {
		return nil // the box is looked at by itself
	}
	var got struct {
		Stdout string `json:"stdout"`
	}
	if err := a.into(&got); err != nil || a.status != 200 {
		return fmt.Errorf("look after %s: %s", o, a)
	}
	if n := strings.TrimSpace(got.Stdout); n != "1" && (o.done || n != "0" && n != "") {
		return fmt.Errorf("%s ran %q times", o, n)
	}
	return nil
}

// extendOp makes a lease longer, now or around its end.
type extendOp struct {
	b       *box
	key     string
	aim     time.Duration // after the deadline; 0: at once
	seconds int
	patient bool // waits for its aim however long that takes; else it goes ahead where the deadline is far
}

func (o *extendOp) String() string { return fmt.Sprintf("extend %s of %s", o.key, o.b.id) }

func (o *extendOp) run(w *world) (bool, error) {
	if o.aim != 0 {
		o.b.mu.Lock()
		due := o.b.lo
		o.b.mu.Unlock()
		if wait := time.Until(due.Add(o.aim)); o.patient || wait < 2*time.Second {
			pause(wait)
		}
	}
	o.b.mu.Lock()
	defer o.b.mu.Unlock() // extends of one sandbox, one after the other: that makes the bounds of its deadline simple
	more := time.Duration(o.seconds) * time.Second
	old := o.b.hi
	a := w.do("POST", "/v1/sandboxes/"+o.b.id+"/extend", o.key, map[string]any{"additional_seconds": o.seconds})
	o.b.tell("%s: %s", o, a)
	switch {
	case a.status == 200:
		var r record
		if err := a.into(&r); err != nil {
			return true, err
		}
		if r.ended() || !r.Replayed && (r.ExpiresAt.Before(o.b.lo.Add(more-slack)) || r.ExpiresAt.After(old.Add(more+slack))) {
			return true, fmt.Errorf("%s from %s answered %s", o, clock(old), a)
		}
		if r.Replayed && r.ExpiresAt.After(o.b.hi.Add(slack)) {
			o.b.hi = r.ExpiresAt
		}
		if !r.Replayed {
			o.b.lo, o.b.hi = r.ExpiresAt, r.ExpiresAt
		}
		return true, nil
	case a.status == 410:
		o.b.toldEnd = true
		return true, nil
	case a.cut():
		o.b.hi = old.Add(more)
		return true, nil // its outcome is whatever the deadline turns out to be
	}
	return true, fmt.Errorf("%s answered %s", o, a)
}

func (o *extendOp) check(*world) error { return nil } // the box's death tells

// deleteOp ends a sandbox.
type deleteOp struct{ b *box }

func (o *deleteOp) String() string { return "delete " + o.b.id }

func (o *deleteOp) run(w *world) (bool, error) {
	o.b.mu.Lock()
	if o.b.ended.IsZero() {
		o.b.ended = time.Now()
	}
	o.b.mu.Unlock()
	a := w.do("DELETE", "/v1/sandboxes/"+o.b.id, "", nil)
	o.b.note("%s: %s", o, a)
	if a.cut() {
		return false, nil
	}
	var r record
	if err := a.into(&r); err != nil || a.status != 200 || !r.ended() && r.Status != "deleting" {
		return true, fmt.Errorf("%s answered %s", o, a)
	}
	if lives, err := w.s.Lives(o.b.id); r.ended() && (lives || err != nil) {
		return true, fmt.Errorf("%s answered %s, and it lives (%v)", o, a, err)
	}
	return true, nil
}

func (o *deleteOp) check(w *world) error {
	return within(10*time.Second, func() error {
		r, err := w.sandbox(o.b.id)
		if err == nil && !r.ended() {
			err = fmt.Errorf("%s: it is %s", o, r.Status)
		}
		return err
	})
}

// writeOp replaces a file.
type writeOp struct {
	b       *box
	path    string
	content string
}

func (o *writeOp) String() string { return fmt.Sprintf("write %s of %s", o.path, o.b.id) }

func (o *writeOp) run(w *world) (bool, error) {
	o.b.mu.Lock()
	f := o.b.files[o.path]
	if f == nil {
		f = &file{}
		o.b.files[o.path] = f
	}
	f.pending = append(f.pending, o.content)
	o.b.mu.Unlock()
	a := w.do("PUT", "/v1/sandboxes/"+o.b.id+"/files/content?path="+o.path, "", []byte(o.content))
	o.b.note("%s (%d × %.1s): %s", o, len(o.content), o.content, a)
	if a.status == 200 {
		o.b.mu.Lock()
		defer o.b.mu.Unlock()
		f.confirmed = o.content // writes of one path are one at a time
		f.pending = nil
		return true, nil
	}
	if a.status == 410 || a.cut() || a.status == 409 && !o.b.usable(0) {
		return true, nil // old or new: the check reads which
	}
	return true, fmt.Errorf("%s answered %s", o, a)
}

func (o *writeOp) check(w *world) error {
	if !o.b.usable(time.Second) {
		return nil
	}
	a := w.do("GET", "/v1/sandboxes/"+o.b.id+"/files/content?path="+o.path, "", nil)
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	f := o.b.files[o.path]
	switch {
	case a.status == 410 || a.err != nil:
		return nil
	case a.status == 404 && f.confirmed == "":
		return nil
	case a.status != 200:
		return fmt.Errorf("read after %s: %s", o, a)
	}
	got := string(a.body)
	for _, may := range append([]string{f.confirmed}, f.pending...) {
		if got == may {
			f.confirmed, f.pending = got, nil
			return nil
		}
	}
	return fmt.Errorf("%s: the file has %d bytes (%.20q) and is neither the old nor the new one", o, len(got), got)
}

// keyOp makes an API key.
type keyOp struct {
	key        string
	id, secret string
}

func (o *keyOp) String() string { return "key " + o.key }

func (o *keyOp) run(w *world) (bool, error) {
	a := w.do("POST", "/v1/keys", o.key, map[string]any{})
	if a.cut() {
		return false, nil
	}
	var got struct {
		ID     string `json:"id"`
		Secret string `json:"secret"`
	}
	if a.status == 409 { // the first one is still running
		return false, nil
	}
	if err := a.into(&got); err != nil || a.status != 201 {
		return true, fmt.Errorf("%s answered %s", o, a)
	}
	o.id, o.secret = got.ID, got.Secret
	return true, nil
}

func (o *keyOp) check(w *world) error {
	if o.secret != "" {
		if a := (client{w.s, o.secret}).do("GET", "/v1/sandboxes?limit=1", "", nil); a.status != 200 {
			return fmt.Errorf("%s was made and does not work: %s", o, a)
		}
	}
	if o.id != "" {
		if a := w.do("DELETE", "/v1/keys/"+o.id, "", nil); a.status != 200 && a.status != 204 && a.err == nil {
			return fmt.Errorf("remove %s: %s", o, a)
		}
	}
	return nil
}

// imageOp imports an image under one of a few names, so that it replaces an earlier one.
type imageOp struct {
	key, name string
	id        string
}

func (o *imageOp) String() string { return "image " + o.name }

func (o *imageOp) run(w *world) (bool, error) {
	a := w.do("POST", "/v1/images?name="+o.name, o.key, w.image)
	if a.cut() || a.status == 409 {
		return false, nil
	}
	var got struct {
		ID string `json:"id"`
	}
	if err := a.into(&got); err != nil || a.status != 201 {
		return true, fmt.Errorf("%s answered %s", o, a)
	}
	o.id = got.ID
	return true, nil
}

func (o *imageOp) check(w *world) error {
	if o.id == "" {
		return nil
	}
	var got struct {
		ID string `json:"id"`
	}
	a := w.do("GET", "/v1/images/"+o.name, "", nil)
	if err := a.into(&got); err != nil || a.status != 200 || got.ID != o.id {
		return fmt.Errorf("%s: %s was made, but the name gives %s", o, o.id, a)
	}
	make := &createOp{key: o.key + "-box", seconds: 5, image: o.name}
	if settled, err := make.run(w); err != nil || !settled {
		return fmt.Errorf("%s: a sandbox of it: %w", o, err)
	}
	return nil
}

// imageRemovalOp imports an image under a name of its own and removes it.
type imageRemovalOp struct {
	imageOp
	made bool
}

func (o *imageRemovalOp) String() string { return "removal of " + o.imageOp.String() }

func (o *imageRemovalOp) run(w *world) (bool, error) {
	if !o.made {
		settled, err := o.imageOp.run(w)
		if o.made = settled && err == nil; !o.made {
			return settled, err
		}
	}
	a := w.do("DELETE", "/v1/images/"+o.name, "", nil)
	if a.cut() {
		return false, nil
	}
	if a.status != 200 && a.status != 204 && a.status != 404 { // the latter: by the one that lost its answer
		return true, fmt.Errorf("%s answered %s", o, a)
	}
	return true, nil
}

func (o *imageRemovalOp) check(w *world) error {
	if a := w.do("GET", "/v1/images/"+o.name, "", nil); a.status != 404 {
		return fmt.Errorf("%s: it is there: %s", o, a)
	}
	return nil
}

// provoke gives an operation that comes past a point, or nil.
func (w *world) provoke(point string, round int, b *box) operation {
	key := fmt.Sprintf("%s-provoke-%d", w.tag, round)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(point, word) })
	}
	switch {
	case has("image.removed"):
		return &imageRemovalOp{imageOp: imageOp{key: key, name: fmt.Sprintf("provoked-%d", round)}}
	case has("image."):
		return &imageOp{key: key, name: "provoked"}
	case has(".key."):
		return &keyOp{key: key}
	case has(".pause.", ".resume."):
		return &pauseOp{key: key, steps: []string{"pause", "resume"}}
	case b == nil:
	case has("exec."):
		return &execOp{b: b, key: key}
	case has("extend.", "renew."):
		return &extendOp{b: b, key: key, seconds: 3}
	case has("agent.write."):
		return &writeOp{b: b, path: "provoked", content: key}
	case has("destroy.", "control.end."):
		return &deleteOp{b}
	}
	return nil
}

// choose makes the operations of one round.
func (w *world) choose(rng *rand.Rand, round int) []operation {
	name := func(kind string, i int) string { return fmt.Sprintf("%s-%s-%d-%d", w.tag, kind, round, i) }
	var ops []operation
	for i := range 1 + rng.IntN(2) {
		ops = append(ops, &createOp{key: name("create", i), seconds: 5 + rng.IntN(5)})
	}
	paths := map[string]bool{}
	for i := range 5 + rng.IntN(4) {
		b := w.anyBox(rng)
		kind := rng.IntN(10)
		switch {
		case b == nil || kind == 0:
			ops = append(ops, &keyOp{key: name("key", i)})
		case kind <= 3:
			ops = append(ops, &execOp{b: b, key: name("exec", i), sleep: float64(rng.IntN(4)) / 10})
		case kind <= 5:
			o := &extendOp{b: b, key: name("extend", i), seconds: 3 + rng.IntN(3)}
			if rng.IntN(2) == 0 {
				o.aim = time.Duration(rng.IntN(300)-250) * time.Millisecond
			}
			ops = append(ops, o)
		case kind <= 8:
			path := fmt.Sprintf("f%d", rng.IntN(2))
			if paths[b.id+path] {
				continue
			}
			paths[b.id+path] = true
			letter := string(rune('a' + rng.IntN(26)))
			ops = append(ops, &writeOp{b: b, path: path, content: strings.Repeat(letter, 1+rng.IntN(1<<18)) + fmt.Sprint(round)})
		default:
			ops = append(ops, &deleteOp{b: b})
		}
	}
	if rng.IntN(4) == 0 {
		ops = append(ops, &imageOp{key: name("image", 0), name: fmt.Sprint("small-", rng.IntN(2))})
	}
	if rng.IntN(2) == 0 {
		o := &pauseOp{key: name("pause", 0)}
		for range 1 + rng.IntN(4) {
			o.steps = append(o.steps, []string{"pause", "resume"}[rng.IntN(2)])
		}
		ops = append(ops, o)
	}
	return ops
}
