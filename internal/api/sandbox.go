package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// Limits of sizes. The upper ones only keep arithmetic safe: what no node can hold, the backend refuses.
const (
	sizeMax     = 1 << 30
	memoryMinMB = 128
	diskMinMB   = 256
	minutesMax  = 1440
	secondsMin  = 5
	secondsMax  = 86400
)

func parseCreate(f *fields) control.CreateSandbox {
	var r control.CreateSandbox
	r.Size, _ = f.filled("size")
	r.VCPU = sizeField(f, "vcpu", 1)
	r.MemoryMB = sizeField(f, "memory_mb", memoryMinMB)
	r.DiskMB = sizeField(f, "disk_mb", diskMinMB)
	r.Image, _ = f.filled("image")
	isolation, _ := f.filled("isolation")
	r.Isolation = dayfly.Isolation(isolation)
	r.Timeout = parseDuration(f, "timeout_minutes", "timeout_seconds", secondsMin)
	f.choice("on_lease_end", "stop")
	r.Labels, _ = f.textMap("labels", labelsMax, labelProblem)
	r.Env, _ = f.textMap("env", envMax, envProblem)
	r.Name, _ = f.name("name")
	f.object("network", func(n *fields) {
		internet, given := n.flag("internet")
		r.NoNetwork = given && !internet
	})
	return r
}

func sizeField(f *fields, name string, low int64) int {
	n, _ := f.integer(name, low, sizeMax)
	return int(n)
}

// parseDuration reads a duration that is given in minutes or in seconds; 0 means neither.
func parseDuration(f *fields, minutes, seconds string, low int64) time.Duration {
	m, _ := f.integer(minutes, 1, minutesMax)
	s, _ := f.integer(seconds, low, secondsMax)
	_, both := f.in[minutes]
	if _, given := f.in[seconds]; both && given {
		f.wrong(seconds, "must not be given together with %s", minutes)
	}
	if m > 0 {
		return time.Duration(m) * time.Minute
	}
	return time.Duration(s) * time.Second
}

func createSandbox(c *call, r control.CreateSandbox) error {
	r.Async, r.Request = prefersAsync(c.r.Header), c.key
	status := http.StatusCreated
	if r.Async {
		status = http.StatusAccepted
	}
	c.mayTakeLong(status)
	out, err := c.backend.CreateSandbox(c.ctx(), c.who, r)
	if err != nil {
		return err
	}
	c.replayed(out.Replayed)
	return c.answer(status, createdJSON{showSandboxAt(out.Value, c.backend.Now()), out.Replayed})
}

// prefersAsync looks for the preference respond-async. Other preferences do not concern us (RFC 7240).
func prefersAsync(h http.Header) bool {
	for _, line := range h.Values("Prefer") {
		for _, one := range strings.FieldsFunc(line, func(r rune) bool { return r == ',' || r == ';' }) {
			if strings.EqualFold(strings.TrimSpace(one), "respond-async") {
				return true
			}
		}
	}
	return false
}

// listing is a query of sandboxes. never: two labels exclude each other, so nothing can match.
type listing struct {
	filter dayfly.SandboxFilter
	never  bool
}

func parseFilter(q *query) listing {
	var l listing
	l.filter.Labels, l.never = parseLabels(q)
	for _, s := range q.texts("status") {
		if status := dayfly.Status(s); status.Valid() {
			l.filter.Statuses = append(l.filter.Statuses, status)
			continue
		}
		q.bad.add("status", "must be provisioning or running or paused or deleting or deleted or failed")
	}
	if name, given := q.text("name"); given {
		if problem := nameProblem(name); problem != "" {
			q.bad.add("name", "%s", problem)
		}
		l.filter.Name = name
	}
	l.filter.IncludeEnded = q.flag("include_ended")
	page := parsePaging(q)
	l.filter.Limit, l.filter.Cursor = page.limit, page.cursor
	return l
}

// parseLabels reads repeated key:value pairs, split at the first colon.
func parseLabels(q *query) (labels map[string]string, never bool) {
	for _, text := range q.texts("label") {
		key, value, ok := strings.Cut(text, ":")
		if !ok {
			q.bad.add("label", "must have the form key:value")
			continue
		}
		if problem := labelProblem(key, value); problem != "" {
			q.bad.add("label", "%s", problem)
			continue
		}
		if labels == nil {
			labels = map[string]string{}
		}
		if before, twice := labels[key]; twice && before != value {
			never = true
		}
		labels[key] = value
	}
	if len(labels) > labelsMax {
		q.bad.add("label", "at most %d labels are allowed", labelsMax)
	}
	return labels, never
}

func listSandboxes(c *call, l listing) error {
	page := pageJSON[sandboxJSON]{Data: []sandboxJSON{}}
	if l.never {
		return c.answer(http.StatusOK, page)
	}
	l.filter.Account = c.who.Account.ID
	found, next, err := c.backend.Sandboxes(c.ctx(), c.who, l.filter)
	if err != nil {
		return err
	}
	now := c.backend.Now()
	for _, sb := range found {
		page.Data = append(page.Data, showSandboxAt(sb, now))
	}
	page.NextCursor = orNull(next)
	return c.answer(http.StatusOK, page)
}

func showSandbox(c *call, _ struct{}) error {
	return c.withSandbox(func(id string) (dayfly.Sandbox, error) { return c.backend.Sandbox(c.ctx(), c.who, id) })
}

// relabel changes what an account calls a sandbox.
type relabel struct {
	labels map[string]string // nil keeps them
	name   *string           // nil keeps it, empty removes it
}

func parseRelabel(f *fields) relabel {
	var r relabel
	r.labels, _ = f.textMap("labels", labelsMax, labelProblem)
	if string(f.in["name"]) == "null" || string(f.in["name"]) == `""` {
		f.in["name"] = json.RawMessage(`""`)
		name, _ := f.text("name")
		r.name = &name
		return r
	}
	if name, given := f.name("name"); given {
		r.name = &name
	}
	return r
}

func labelSandbox(c *call, r relabel) error {
	return c.withSandbox(func(id string) (dayfly.Sandbox, error) {
		return c.backend.LabelSandbox(c.ctx(), c.who, id, r.labels, r.name)
	})
}

func deleteSandbox(c *call, _ struct{}) error {
	return c.withSandbox(func(id string) (dayfly.Sandbox, error) { return c.backend.DeleteSandbox(c.ctx(), c.who, id) })
}

// withSandbox answers with the sandbox of the path as do returns it.
func (c *call) withSandbox(do func(id string) (dayfly.Sandbox, error)) error {
	id, err := c.sandboxID()
	if err != nil {
		return err
	}
	sb, err := do(id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, showSandboxAt(sb, c.backend.Now()))
}

func stopSandbox(c *call, _ struct{}) error { return c.changeSandbox(c.backend.DeleteSandbox) }

func pauseSandbox(c *call, _ struct{}) error { return c.changeSandbox(c.backend.PauseSandbox) }

func resumeSandbox(c *call, _ struct{}) error { return c.changeSandbox(c.backend.ResumeSandbox) }

// changeSandbox has the sandbox of the path changed, once per idempotency key; a replay shows it as it is then.
func (c *call) changeSandbox(change func(context.Context, control.Principal, string) (dayfly.Sandbox, error)) error {
	id, err := c.sandboxID()
	if err != nil {
		return err
	}
	return c.once(func(ctx context.Context) (control.Answer, error) {
		sb, err := change(ctx, c.who, id)
		if err != nil {
			return control.Answer{}, err
		}
		body, err := encode(showSandboxAt(sb, c.backend.Now()))
		return control.Answer{Status: http.StatusOK, Body: body, Kept: []byte("{}")}, err
	}, func([]byte) (any, error) {
		sb, err := c.backend.Sandbox(c.ctx(), c.who, id)
		return showSandboxAt(sb, c.backend.Now()), err
	})
}

func parseExtend(f *fields) time.Duration {
	d := parseDuration(f, "additional_minutes", "additional_seconds", 1)
	if d == 0 {
		d = dayfly.LeaseDefault
	}
	return d
}

// clampedJSON is what is kept of an extend for replays.
type clampedJSON struct {
	Clamped bool `json:"clamped"`
}

func extendSandbox(c *call, d time.Duration) error {
	id, err := c.sandboxID()
	if err != nil {
		return err
	}
	return c.once(func(ctx context.Context) (control.Answer, error) {
		out, err := c.backend.ExtendSandbox(ctx, c.who, id, d)
		if err != nil {
			return control.Answer{}, err
		}
		remembered, err := encode(clampedJSON{out.Clamped})
		if err != nil {
			return control.Answer{}, err
		}
		body, err := encode(extendedJSON{showSandboxAt(out.Sandbox, c.backend.Now()), out.Clamped})
		return control.Answer{Status: http.StatusOK, Body: body, Kept: remembered}, err
	}, func(kept []byte) (any, error) {
		var was clampedJSON
		if err := json.Unmarshal(kept, &was); err != nil {
			return nil, err
		}
		sb, err := c.backend.Sandbox(c.ctx(), c.who, id)
		return extendedJSON{showSandboxAt(sb, c.backend.Now()), was.Clamped}, err
	})
}
