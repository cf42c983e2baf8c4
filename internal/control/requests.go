package control

import (
	"io"
	"time"

	"dayfly.dev/dayfly"
)

// Principal is who makes a request.
type Principal struct {
	Account dayfly.Account
	Key     dayfly.Key
}

// actor names the principal in events.
func (p Principal) actor() dayfly.Actor { return dayfly.Actor("key:" + p.Key.ID) }

// Idempotency is a request's idempotency key, or the zero value for none.
type Idempotency struct {
	Key       string // 1–255 characters
	Operation string // method and path
	Hash      string // hex sha256 of the canonical body
}

// CreateSandbox is what a client asks for; zero fields get defaults. Whoever fills it has checked types and ranges of
// single fields; the plane checks what needs knowledge: sizes, images, isolation, ceiling, quota, capacity.
type CreateSandbox struct {
	Size      string // named size; empty means small
	VCPU      int    // 0: from Size
	MemoryMB  int    // 0: from Size
	DiskMB    int    // 0: from Size
	Image     string // name or id; empty means dayfly.ImageBase
	Isolation dayfly.Isolation
	Timeout   time.Duration // 0 means dayfly.LeaseDefault
	Labels    map[string]string
	Env       map[string]string
	Name      string
	NoNetwork bool
	Async     bool // answer as soon as it is accepted
	Request   Idempotency
}

// Outcome wraps an answer that an idempotency key may have replayed.
type Outcome[T any] struct {
	Value    T
	Replayed bool
}

// NewKey asks for an API key.
type NewKey struct {
	Account string // name; empty means the principal's own account
	Admin   bool
}

// IssuedKey is a new key with its secret, which is shown this once.
type IssuedKey struct {
	Key    dayfly.Key
	Secret string
}

// ImportImage asks to unpack a root file system.
type ImportImage struct {
	Name    string
	User    string // name or uid; empty means the image's uid 1000, else root
	Workdir string // empty means the user's home
	Env     map[string]string
	Body    io.Reader // tar, tar.gz or tar.zst
}

// Extended is the outcome of an extend.
type Extended struct {
	Sandbox dayfly.Sandbox
	Clamped bool
}
