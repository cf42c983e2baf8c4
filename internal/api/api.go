package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// Backend is what the edge needs of the control plane; *control.Plane is it. Its errors are shown to the client where they are
// a *dayfly.Error, and as "internal" otherwise. All methods may be called in parallel and obey ctx, which ends with the client.
type Backend interface {
	Authenticate(ctx context.Context, secret string) (control.Principal, error)

	CreateSandbox(ctx context.Context, who control.Principal, r control.CreateSandbox) (control.Outcome[dayfly.Sandbox], error)
	Sandbox(ctx context.Context, who control.Principal, id string) (dayfly.Sandbox, error)
	Sandboxes(ctx context.Context, who control.Principal, f dayfly.SandboxFilter) ([]dayfly.Sandbox, string, error)
	LabelSandbox(ctx context.Context, who control.Principal, id string, labels map[string]string, name *string) (dayfly.Sandbox, error)
	DeleteSandbox(ctx context.Context, who control.Principal, id string) (dayfly.Sandbox, error)
	ExtendSandbox(ctx context.Context, who control.Principal, id string, d time.Duration) (control.Extended, error)

	PauseSandbox(ctx context.Context, who control.Principal, id string) (dayfly.Sandbox, error)
	ResumeSandbox(ctx context.Context, who control.Principal, id string) (dayfly.Sandbox, error)

	Machine(ctx context.Context, who control.Principal, id string) (control.Machine, error)
	Launch(ctx context.Context, who control.Principal, id string, spec dayfly.ProcessSpec, stdin io.Reader, req control.Idempotency) (control.Outcome[dayfly.Process], error)
	Exec(ctx context.Context, who control.Principal, id string, spec dayfly.ProcessSpec, stdin io.Reader, req control.Idempotency) (control.Outcome[dayfly.Result], error)
	ExecStream(ctx context.Context, who control.Principal, id string, spec dayfly.ProcessSpec, stdin io.Reader, keepStdin bool, req control.Idempotency) (control.Outcome[control.Following], error)
	Once(ctx context.Context, who control.Principal, req control.Idempotency, do func(context.Context) (control.Answer, error)) (control.Answer, bool, error)

	CreateKey(ctx context.Context, who control.Principal, r control.NewKey) (control.IssuedKey, error)
	Keys(ctx context.Context, who control.Principal) ([]dayfly.Key, error)
	RemoveKey(ctx context.Context, who control.Principal, id string) error
	Accounts(ctx context.Context, who control.Principal) ([]dayfly.Account, error)

	ImportImage(ctx context.Context, who control.Principal, r control.ImportImage) (dayfly.Image, error)
	Images(ctx context.Context, who control.Principal) ([]dayfly.Image, error)
	Image(ctx context.Context, who control.Principal, ref string) (dayfly.Image, error)
	RemoveImage(ctx context.Context, who control.Principal, ref string) error

	Events(ctx context.Context, who control.Principal, f dayfly.EventFilter) ([]dayfly.Event, error)
	SandboxEvents(ctx context.Context, who control.Principal, id string, f dayfly.EventFilter) ([]dayfly.Event, error)
	AwaitEvents(ctx context.Context, seq int64) (last int64, err error)

	Reconcile(ctx context.Context, who control.Principal) (control.Swept, error)
	Ready(ctx context.Context) []control.Problem
	Stuck() []control.Stuck
	Now() dayfly.Instant
}

// Options of the edge.
type Options struct {
	Log     *slog.Logger  // one line per request, and the causes of internal errors; nil drops them
	Version string        // shown by /healthz and /readyz
	Metrics http.Handler  // answers /metrics once it was found out that the client may see them; nil: there are none
	Silence time.Duration // after which a sign of life goes out on a silent answer; 0 means SilenceDefault

	SlowLimit time.Duration // after which a client of a stream that takes nothing is cut; 0 means SlowLimitDefault
	SlowGrace time.Duration // for what is on its way to it then; 0 means SlowGraceDefault
}

// Limits of the edge.
const (
	SilenceDefault    = 15 * time.Second
	SlowLimitDefault  = time.Minute
	SlowGraceDefault  = time.Minute
	BodyMaxBytes      = 16 << 20 // of a JSON body
	headerTimeout     = 10 * time.Second
	headerMaxBytes    = 64 << 10
	idleTimeout       = 3 * time.Minute        // of a connection between two requests
	drainMaxBytes     = 64 << 20               // of a refused body that are read so that the client sees the refusal
	drainTimeout      = 5 * time.Second        // for the same
	drainQuiet        = 500 * time.Millisecond // without a byte, after which the client gets its answer
	drainStep         = 32 << 10               // bytes
	limitDefault      = 50                     // entries of a page
	limitMax          = 100
	entriesMax        = 1000 // of a page of a directory
	idempotencyKeyMax = 255  // characters
	pathMaxBytes      = 4096 // of a path inside a sandbox
)

// server holds what all requests share.
type server struct {
	backend   Backend
	log       *slog.Logger
	version   string
	metrics   http.Handler
	silence   time.Duration
	slowLimit time.Duration
	slowGrace time.Duration
	mux       *http.ServeMux
	boxes     sync.Pool // of *[]byte, for outboxes
	residents residents
}

// Handler is the whole API.
type Handler struct{ *server }

// Drain ends what may never end by itself and can be taken up again (attached terminals, followed output, watches of files) with
// an error that tells its client to come back, and waits for the terminals until ctx ends: an http.Server's Shutdown does not know
// them. Their processes go on. Nobody can attach any more.
func (h *Handler) Drain(ctx context.Context) error { return h.residents.leave(ctx) }

// New makes the handler of the whole API. It starts nothing in the background.
func New(backend Backend, o Options) *Handler {
	s := &server{
		backend: backend, log: o.Log, version: o.Version, metrics: o.Metrics, mux: http.NewServeMux(),
		silence: orDefault(o.Silence, SilenceDefault), slowLimit: orDefault(o.SlowLimit, SlowLimitDefault), slowGrace: orDefault(o.SlowGrace, SlowGraceDefault),
	}
	s.boxes.New = func() any { return new([]byte) }
	s.residents.open()
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for path, methods := range byPath(routes()) {
		s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { dispatch(w, r, methods) })
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { dispatch(w, r, nil) })
	return &Handler{s}
}

func orDefault(d, absent time.Duration) time.Duration {
	if d <= 0 {
		return absent
	}
	return d
}

// NewServer makes an HTTP server for h with limits on the time and size of a request's head and on the time between requests, and
// no other: commands and transfers last as long as they need. Vanished peers are noticed by TCP keep-alives, on by default. What
// the kernel keeps for a client that does not read is bounded.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	srv := &http.Server{
		Handler:                      h,
		ReadHeaderTimeout:            headerTimeout,
		MaxHeaderBytes:               headerMaxBytes,
		IdleTimeout:                  idleTimeout,
		DisableGeneralOptionsHandler: true,
		ConnContext:                  remember,
	}
	if log != nil {
		srv.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	}
	return srv
}
