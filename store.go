package dayfly

import (
	"context"
	"time"
)

// Store keeps the records. One method is one transaction named by a domain verb; writes compare and swap on Rev. Values
// that come back belong to the caller. Every method obeys ctx. The conformance suite is storetest.
//
// Usual errors: CodeNotFound for a record that is not there or belongs to another account, CodeConflict for a lost
// compare-and-swap, CodeUnavailable when the database cannot be reached (never an empty answer instead).
type Store interface {
	SandboxStore
	AccountStore
	ImageStore
	RequestStore
	EventStore
	// Ping tells whether the database answers, for readiness.
	Ping(ctx context.Context) error
	Close() error
}

// SandboxStore keeps sandboxes.
type SandboxStore interface {
	// CreateSandbox stores the intent of a new sandbox in one transaction with the idempotency claim (req, or nil) and the
	// quota: maxLive live sandboxes of the account at most (0: no limit), exact under parallel creates.
	// A prior claim with the same hash gives that claim's sandbox as it is now and replayed; one whose sandbox failed to
	// start is replaced. CodeKeyReused: same key, other hash. CodeQuotaExceeded names limit and use in its details.
	// CodeConflict: the name is taken by a live sandbox of the account (detail "sandbox": its id).
	CreateSandbox(ctx context.Context, sb Sandbox, req *Request, maxLive int) (stored Sandbox, replayed bool, err error)
	// ClaimedSandbox finds the sandbox that req would replay if it created one; found is false when it would make a new one.
	// It changes nothing. CodeKeyReused: same key, other hash.
	ClaimedSandbox(ctx context.Context, req Request) (sb Sandbox, found bool, err error)
	// Sandbox reads one record; account "" reads any account's.
	Sandbox(ctx context.Context, account, id string) (Sandbox, error)
	// Sandboxes reads one page, newest first, in keyset order: deleting while iterating visits everything once.
	// next is empty at the end.
	Sandboxes(ctx context.Context, f SandboxFilter) (page []Sandbox, next string, err error)
	// LiveSandboxes reads every sandbox that has not ended, of all accounts.
	LiveSandboxes(ctx context.Context) ([]Sandbox, error)
	// MoveSandbox stores sb's Wanted, Status, Driver, Node, Lease, Times and End if sb.Rev is still current and the status
	// may go there (CanMove, or stays). It returns the record with its new Rev.
	MoveSandbox(ctx context.Context, sb Sandbox) (Sandbox, error)
	// RenewLease stores a later deadline if rev is still current and the sandbox has not ended.
	RenewLease(ctx context.Context, id string, rev int64, lease Lease) (Sandbox, error)
	// LabelSandbox replaces labels (nil keeps them) and name (nil keeps it) if rev is still current.
	LabelSandbox(ctx context.Context, id string, rev int64, labels map[string]string, name *string) (Sandbox, error)
	// AdoptSandbox stores a record that was rebuilt from the host's truth; a record that exists wins and is returned.
	AdoptSandbox(ctx context.Context, sb Sandbox) (Sandbox, error)
	// PurgeSandboxes removes up to limit records that ended before t and tells how many.
	PurgeSandboxes(ctx context.Context, t time.Time, limit int) (int, error)
}

// SandboxFilter selects sandboxes. Its zero fields select everything.
type SandboxFilter struct {
	Account      string            // empty: all accounts
	Labels       map[string]string // all must match exactly
	Statuses     []Status          // any of
	Name         string
	IncludeEnded bool // without it ended ones are left out unless Statuses asks for them
	Image        string
	Limit        int    // 1–100; 0 means 50
	Cursor       string // as the page before gave it; CodeInvalid for any other text
}

// AccountStore keeps accounts and keys. Secrets never reach it.
type AccountStore interface {
	// CreateKey stores a key; an account of that name is made first when there is none (acc.ID, MaxLive and Admin are used
	// then). It returns the account as stored.
	CreateKey(ctx context.Context, acc Account, key Key) (Account, error)
	// KeyByHash finds a key and its account. CodeUnauthorized: no such key.
	KeyByHash(ctx context.Context, hash string) (Key, Account, error)
	// Keys lists keys, oldest first; account "" lists all accounts'.
	Keys(ctx context.Context, account string) ([]Key, error)
	// RemoveKey removes a key; account "" allows any account's. CodeConflict: it is the last admin key.
	RemoveKey(ctx context.Context, account, id string) error
	// Accounts lists all accounts, oldest first.
	Accounts(ctx context.Context) ([]Account, error)
	// Account reads one account.
	Account(ctx context.Context, id string) (Account, error)
}

// ImageStore keeps which name means which image.
type ImageStore interface {
	// PutImage stores an image; a name that exists is moved to it and the image that it meant before is returned, or nil.
	PutImage(ctx context.Context, im Image) (replaced *Image, err error)
	// Image finds an image by name or id.
	Image(ctx context.Context, ref string) (Image, error)
	// Images lists all images by name.
	Images(ctx context.Context) ([]Image, error)
	// RemoveImage removes the image. CodeConflict: a live sandbox runs from it (detail "sandboxes": how many).
	RemoveImage(ctx context.Context, id string) error
}

// Request is the record of a request that carried an idempotency key. Only the body's hash is stored, never a secret.
type Request struct {
	Account   string
	Key       string // as the client chose it, 1–255 characters
	Operation string // "POST /v1/sandboxes" with ids in place
	Hash      string // hex sha256 of the body in canonical form
	Resource  string // id of what it makes: a sandbox, a process, a key; or empty
	Done      bool
	Status    int    // of the answer; 0 while not done
	Response  []byte // the answer without secrets; nil when the resource is shown as it is now
	CreatedAt time.Time
}

// RequestKept is how long a request's record is kept.
const RequestKept = 24 * time.Hour

// RequestStore keeps idempotency keys of everything but the creation of sandboxes, which claims its key itself.
type RequestStore interface {
	// BeginRequest claims a key. prior is nil when the claim is new, else the record of the first request with the same
	// hash and operation. CodeKeyReused: other hash or operation.
	BeginRequest(ctx context.Context, req Request) (prior *Request, err error)
	// FinishRequest stores the outcome.
	FinishRequest(ctx context.Context, req Request) error
	// AbandonRequest gives the key back after a failure, so that it can be used again.
	AbandonRequest(ctx context.Context, account, key string) error
	// PurgeRequests removes up to limit records made before t and tells how many.
	PurgeRequests(ctx context.Context, t time.Time, limit int) (int, error)
}

// EventStore keeps what happened. Changes of a sandbox (accepted, running, extended, deleting, ended, adopted) are stored as
// events by the methods that make them, in the same transaction, with the actor of their context.
type EventStore interface {
	// AddEvent stores an event that no other method does. Seq is given by the store; a zero At is refused.
	AddEvent(ctx context.Context, e Event) (Event, error)
	// Events reads events in order of Seq.
	Events(ctx context.Context, f EventFilter) ([]Event, error)
	// AwaitEvents blocks until there may be an event after seq, of whatever account, or ctx ends. last is the seq of the newest
	// one: whoever looked for events after this returned, found none and waits for those after last, is not woken for nothing.
	AwaitEvents(ctx context.Context, seq int64) (last int64, err error)
	// PurgeEvents removes up to limit events that happened before t and tells how many.
	PurgeEvents(ctx context.Context, t time.Time, limit int) (int, error)
}

// EventFilter selects events. Its zero fields select everything.
type EventFilter struct {
	Account string // empty: every account's and the installation's own
	Sandbox string
	After   int64 // only later ones
	Limit   int   // 1–1000; 0 means 100
}
