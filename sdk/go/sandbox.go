package dayfly

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// CreateOptions say what sandbox to make. The zero value makes a small one from the base image for 15 minutes.
type CreateOptions struct {
	Size      string // a named size; empty: small
	VCPU      int    // 0: from the size; MemoryMB and DiskMB alike
	MemoryMB  int64
	DiskMB    int64
	Image     string        // empty: base
	Isolation string        // empty: auto
	Name      string        // unique among the account's live sandboxes, or empty
	Timeout   time.Duration // of the lease, rounded up to whole seconds; 0: the server's default
	// OnLeaseEnd is what happens to the files when the lease ends, or empty for the server's default.
	OnLeaseEnd string
	Labels     map[string]string
	Env        map[string]string // set for every command; never shown again
	NoInternet bool              // closes all but loopback
	// IdempotencyKey makes this create happen once however often it is called with the same key, or is empty for a new one.
	IdempotencyKey string
}

type createBody struct {
	Size       string            `json:"size,omitempty"`
	VCPU       int               `json:"vcpu,omitempty"`
	MemoryMB   int64             `json:"memory_mb,omitempty"`
	DiskMB     int64             `json:"disk_mb,omitempty"`
	Image      string            `json:"image,omitempty"`
	Isolation  string            `json:"isolation,omitempty"`
	Name       string            `json:"name,omitempty"`
	Timeout    int64             `json:"timeout_seconds,omitempty"`
	OnLeaseEnd string            `json:"on_lease_end,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Network    *networkBody      `json:"network,omitempty"`
}

type networkBody struct {
	Internet bool `json:"internet"`
}

// Sandbox is a handle of one machine. It is safe for concurrent use and holds nothing that must be closed.
type Sandbox struct {
	// ID names the machine: sb and 20 characters.
	ID     string
	client *Client

	mu   sync.Mutex
	info Info
}

// Create makes a sandbox and returns once it accepts commands. The lease runs from the moment the server accepted it, also
// when this call fails or its answer is lost.
func (c *Client) Create(ctx context.Context, o CreateOptions) (*Sandbox, error) {
	body := createBody{
		Size: o.Size, VCPU: o.VCPU, MemoryMB: o.MemoryMB, DiskMB: o.DiskMB, Image: o.Image, Isolation: o.Isolation,
		Name: o.Name, Timeout: wholeSeconds(o.Timeout), OnLeaseEnd: o.OnLeaseEnd, Labels: o.Labels, Env: o.Env,
	}
	if o.NoInternet {
		body.Network = &networkBody{Internet: false}
	}
	if err := checkText(texts{"name": {o.Name}}, o.Labels, o.Env); err != nil {
		return nil, err
	}
	return c.sandboxCall(ctx, call{method: http.MethodPost, path: "/v1/sandboxes", json: body, key: o.IdempotencyKey})
}

// Get asks for a sandbox. Ended ones answer too, for 30 days. CodeNotFound: there is none, or it is another account's.
func (c *Client) Get(ctx context.Context, id string) (*Sandbox, error) {
	return c.sandboxCall(ctx, call{method: http.MethodGet, path: sandboxPath(id)})
}

// Sandbox gives a handle without asking the server. Its Info is empty until Refresh.
func (c *Client) Sandbox(id string) *Sandbox {
	return &Sandbox{ID: id, client: c, info: Info{ID: id}}
}

// ListOptions choose among the account's sandboxes.
type ListOptions struct {
	Labels       map[string]string // all of them must match
	Status       []Status          // any of them; empty: all live ones
	Name         string            // or empty
	IncludeEnded bool
}

// List goes through the sandboxes, newest page by page. Each is visited once, even while they are being deleted. It ends
// after the first error.
func (c *Client) List(ctx context.Context, o ListOptions) iter.Seq2[*Sandbox, error] {
	query := url.Values{}
	for k, v := range o.Labels {
		query.Add("label", k+":"+v)
	}
	slices.Sort(query["label"])
	for _, s := range o.Status {
		query.Add("status", string(s))
	}
	if o.Name != "" {
		query.Set("name", o.Name)
	}
	if o.IncludeEnded {
		query.Set("include_ended", "true")
	}
	return func(yield func(*Sandbox, error) bool) {
		for info, err := range pages[Info](ctx, c, "/v1/sandboxes", query, pageSize) {
			if err != nil {
				yield(nil, err)
				return
			}
			info.received()
			if !yield(&Sandbox{ID: info.ID, client: c, info: info}, nil) {
				return
			}
		}
	}
}

// Delete ends a sandbox and returns once the machine is gone, or after 10 s with status deleting: then it goes on. It may
// be repeated in every state. A sandbox that does not exist is CodeNotFound.
func (c *Client) Delete(ctx context.Context, id string) (Info, error) {
	s, err := c.sandboxCall(ctx, call{method: http.MethodDelete, path: sandboxPath(id)})
	if err != nil {
		return Info{}, err
	}
	return s.Info(), nil
}

// Info is what was last heard of the sandbox; Info.AsOf tells when. It asks nobody.
func (s *Sandbox) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// Refresh asks the server and remembers the answer.
func (s *Sandbox) Refresh(ctx context.Context) (Info, error) {
	return s.ask(ctx, call{method: http.MethodGet, path: sandboxPath(s.ID)})
}

// UpdateOptions change what may change. Nil fields stay as they are.
type UpdateOptions struct {
	Name   *string           // empty removes the name
	Labels map[string]string // replaces all labels; an empty map removes them
}

// Update changes name or labels.
func (s *Sandbox) Update(ctx context.Context, o UpdateOptions) (Info, error) {
	body := map[string]any{}
	if o.Name != nil {
		body["name"] = *o.Name
	}
	if o.Labels != nil {
		body["labels"] = o.Labels
	}
	if err := checkText(nil, o.Labels); err != nil {
		return Info{}, err
	}
	return s.ask(ctx, call{method: http.MethodPatch, path: sandboxPath(s.ID), json: body})
}

// Extend adds d to the lease, rounded up to whole seconds; 0 adds the server's default. clamped tells that the ceiling of
// the sandbox cut it. CodeLeaseCeiling: it is there already. CodeGone: the sandbox has ended, and stays so.
func (s *Sandbox) Extend(ctx context.Context, d time.Duration) (info Info, clamped bool, err error) {
	body := map[string]any{}
	if d != 0 {
		body["additional_seconds"] = wholeSeconds(d)
	}
	var answer struct {
		Info
		Clamped bool `json:"clamped"`
	}
	err = s.client.do(ctx, call{method: http.MethodPost, path: sandboxPath(s.ID) + "/extend", json: body}, &answer)
	if err != nil {
		return Info{}, false, err
	}
	return s.remember(answer.Info), answer.Clamped, nil
}

// Pause freezes the sandbox: nothing in it runs until Resume, and its lease runs on. Commands and files answer CodeNotRunning
// meanwhile, running commands stay as they are; Extend, Update and Delete work. Pausing a paused one succeeds. CodeGone: the
// sandbox has ended; CodeNotRunning: it is still being made.
func (s *Sandbox) Pause(ctx context.Context) (Info, error) {
	return s.ask(ctx, call{method: http.MethodPost, path: s.path("/pause"), json: map[string]any{}})
}

// Resume lets a paused sandbox go on. Resuming one that runs succeeds. CodeGone: the sandbox has ended.
func (s *Sandbox) Resume(ctx context.Context) (Info, error) {
	return s.ask(ctx, call{method: http.MethodPost, path: s.path("/resume"), json: map[string]any{}})
}

// Delete ends the sandbox. That it was gone already is success. See Client.Delete for when it returns.
func (s *Sandbox) Delete(ctx context.Context) error {
	_, err := s.ask(ctx, call{method: http.MethodDelete, path: sandboxPath(s.ID)})
	if IsGone(err) {
		return nil
	}
	return err
}

// Stop is Delete under the name that other systems use.
func (s *Sandbox) Stop(ctx context.Context) error { return s.Delete(ctx) }

func (s *Sandbox) ask(ctx context.Context, k call) (Info, error) {
	var info Info
	if err := s.client.do(ctx, k, &info); err != nil {
		return Info{}, err
	}
	return s.remember(info), nil
}

func (s *Sandbox) remember(info Info) Info {
	info.received()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info = info
	return info
}

func (s *Sandbox) path(rest string) string { return sandboxPath(s.ID) + rest }

func (c *Client) sandboxCall(ctx context.Context, k call) (*Sandbox, error) {
	var info Info
	if err := c.do(ctx, k, &info); err != nil {
		return nil, err
	}
	s := &Sandbox{ID: info.ID, client: c}
	s.remember(info)
	return s, nil
}

func sandboxPath(id string) string { return "/v1/sandboxes/" + segment(id) }

// pageSize is how many entries of a list are asked for at once.
const pageSize = 100

// pages goes through a list of the API page by page.
func pages[T any](ctx context.Context, c *Client, path string, query url.Values, size int) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		q := url.Values{"limit": {strconv.Itoa(size)}}
		for name, values := range query {
			q[name] = values
		}
		for {
			var page struct {
				Data       []T     `json:"data"`
				Entries    []T     `json:"entries"` // of a directory
				NextCursor *string `json:"next_cursor"`
			}
			var none T
			if err := c.do(ctx, call{method: http.MethodGet, path: path, query: q}, &page); err != nil {
				yield(none, err)
				return
			}
			for _, item := range append(page.Data, page.Entries...) {
				if !yield(item, nil) {
					return
				}
			}
			if page.NextCursor == nil || *page.NextCursor == "" {
				return
			}
			if *page.NextCursor == q.Get("cursor") {
				yield(none, &Error{Code: CodeBadAnswer, Message: "the server gave the same page of a list twice"})
				return
			}
			q.Set("cursor", *page.NextCursor)
		}
	}
}

func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
