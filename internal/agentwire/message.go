package agentwire

import (
	"io/fs"
	"strings"
	"time"

	"dayfly.dev/dayfly"
)

// The requests.
const (
	opPing         = "ping"
	opRun          = "run"
	opStart        = "start"
	opOutput       = "output"
	opResult       = "result"
	opProcess      = "process"
	opProcesses    = "processes"
	opSignal       = "signal"
	opStdin        = "stdin"
	opStdinAt      = "stdin_at"
	opStat         = "stat"
	opList         = "list"
	opRead         = "read"
	opWrite        = "write"
	opRemove       = "remove"
	opReadArchive  = "read_archive"
	opWriteArchive = "write_archive"
	opResize       = "resize"
	opAwaitPort    = "await_port"
	opMkdir        = "mkdir"
	opMove         = "move"
	opChmod        = "chmod"
	opSearch       = "search"
	opFind         = "find"
	opWatch        = "watch"
)

// request is the first frame of a stream.
type request struct {
	Op         string      `json:"op"`
	Params     int         `json:"params,omitempty"`      // byte strings that follow
	ParamBytes int         `json:"param_bytes,omitempty"` // of them packed
	Body       bool        `json:"body,omitempty"`        // data frames and an end frame follow
	Spec       *specFields `json:"spec,omitempty"`
	ID         string      `json:"id,omitempty"`
	Stdout     int64       `json:"stdout,omitempty"` // offsets to resume at
	Stderr     int64       `json:"stderr,omitempty"`
	Follow     bool        `json:"follow,omitempty"`
	Signal     string      `json:"signal,omitempty"`
	Tree       bool        `json:"tree,omitempty"`
	CloseAfter bool        `json:"close_after,omitempty"`
	Offset     int64       `json:"offset,omitempty"` // of a file range, or of input
	Length     int64       `json:"length,omitempty"`
	Mode       *uint32     `json:"mode,omitempty"`
	Recursive  bool        `json:"recursive,omitempty"`
	Limit      int         `json:"limit,omitempty"`
	Overwrite  bool        `json:"overwrite,omitempty"`
	Port       int         `json:"port,omitempty"`
	Terminal   *sizeFields `json:"terminal,omitempty"`
	Search     *lookFields `json:"search,omitempty"`
	Find       *lookFields `json:"find,omitempty"`
	ParamsRaw  []byte      `json:"-"`
}

// specFields are a ProcessSpec without its byte strings, which travel as parameters: command, cwd, user, then the
// arguments, then names and values of the environment in turn.
type specFields struct {
	ID           string        `json:"id"`
	Argv         int           `json:"argv,omitempty"`
	Env          int           `json:"env,omitempty"`
	Timeout      time.Duration `json:"timeout_ns,omitempty"`
	Follow       bool          `json:"follow,omitempty"`
	OpenStdin    bool          `json:"open_stdin,omitempty"`
	OnDisconnect string        `json:"on_disconnect,omitempty"`
	CaptureBytes int           `json:"capture_bytes,omitempty"`
	Name         string        `json:"name,omitempty"`
	Terminal     *sizeFields   `json:"terminal,omitempty"`
	Restart      string        `json:"restart,omitempty"`
	Restarts     int           `json:"restarts,omitempty"`
}

const specParams = 3 // command, cwd, user

// sizeFields are the size of a terminal.
type sizeFields struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

func fromSize(t *dayfly.TerminalSize) *sizeFields {
	if t == nil {
		return nil
	}
	f := sizeFields(*t)
	return &f
}

// toSize gives a size within its limits, or nil.
func (f *sizeFields) toSize() *dayfly.TerminalSize {
	if f == nil {
		return nil
	}
	return &dayfly.TerminalSize{Cols: min(max(1, f.Cols), dayfly.TerminalSizeMax), Rows: min(max(1, f.Rows), dayfly.TerminalSizeMax)}
}

func specRequest(op string, spec dayfly.ProcessSpec, body bool) (request, []string) {
	params := make([]string, 0, specParams+len(spec.Argv)+2*len(spec.Env))
	params = append(params, spec.Command, spec.Cwd, spec.User)
	params = append(params, spec.Argv...)
	for name, value := range spec.Env {
		params = append(params, name, value)
	}
	return request{Op: op, Body: body, Spec: &specFields{
		ID: spec.ID, Argv: len(spec.Argv), Env: len(spec.Env), Timeout: spec.Timeout, Follow: spec.Follow,
		OpenStdin: spec.OpenStdin, OnDisconnect: string(spec.OnDisconnect), CaptureBytes: spec.CaptureBytes,
		Name: spec.Name, Terminal: fromSize(spec.Terminal), Restart: restart(spec.Restart), Restarts: spec.Restarts,
	}}, params
}

// restart is how a restart policy travels: the default says nothing.
func restart(r dayfly.Restart) string {
	if r == dayfly.RestartNever {
		return ""
	}
	return string(r)
}

// spec rebuilds the ProcessSpec of a request.
func (r request) spec() (dayfly.ProcessSpec, error) {
	f := r.Spec
	if f == nil || f.Argv < 0 || f.Env < 0 || f.Argv > paramsCount || f.Env > paramsCount {
		return dayfly.ProcessSpec{}, dayfly.Errorf(dayfly.CodeInvalid, "the request holds no command")
	}
	params, err := unpackParams(r.ParamsRaw, specParams+f.Argv+2*f.Env)
	if err != nil {
		return dayfly.ProcessSpec{}, err
	}
	spec := dayfly.ProcessSpec{
		ID: f.ID, Command: params[0], Cwd: params[1], User: params[2], Timeout: f.Timeout, Follow: f.Follow,
		OpenStdin: f.OpenStdin, OnDisconnect: dayfly.OnDisconnect(f.OnDisconnect), CaptureBytes: f.CaptureBytes,
		Name: f.Name, Terminal: f.Terminal.toSize(), Restart: dayfly.Restart(f.Restart), Restarts: f.Restarts,
	}
	params = params[specParams:]
	if f.Argv > 0 {
		spec.Argv = params[:f.Argv]
	}
	if f.Env > 0 {
		spec.Env = make(map[string]string, f.Env)
		for pairs := params[f.Argv:]; len(pairs) > 0; pairs = pairs[2:] {
			spec.Env[pairs[0]] = pairs[1]
		}
	}
	return spec, nil
}

// message is a JSON frame of an answer; exactly one field is set, or none for a bare success.
type message struct {
	Error   *errorFields   `json:"error,omitempty"`
	Process *processFields `json:"process,omitempty"`
	Result  *resultFields  `json:"result,omitempty"` // the four pieces of output follow as data frames
	Dropped *droppedFields `json:"dropped,omitempty"`
	Exit    *exitFields    `json:"exit,omitempty"`
	Files   []fileFields   `json:"files,omitempty"`
	Page    *pageFields    `json:"page,omitempty"` // ends a listing
	Matches []matchFields  `json:"matches,omitempty"`
	Found   *foundFields   `json:"found,omitempty"` // ends a search
	Change  *changeFields  `json:"change,omitempty"`
	Stdin   *stdinFields   `json:"stdin,omitempty"`
}

// stdinFields tell how much input a process has accepted.
type stdinFields struct {
	Bytes int64 `json:"bytes"`
}

type errorFields struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

type processFields struct {
	ID           string        `json:"id"`
	PID          int           `json:"pid"`
	Status       string        `json:"status"`
	Command      []byte        `json:"command"`
	StartedAgo   time.Duration `json:"started_ago_ns"`
	OnDisconnect string        `json:"on_disconnect"`
	Exit         *exitFields   `json:"exit,omitempty"`
	StdoutBytes  int64         `json:"stdout_bytes"`
	StderrBytes  int64         `json:"stderr_bytes"`
	Name         string        `json:"name,omitempty"`
	Terminal     *sizeFields   `json:"terminal,omitempty"`
	Restart      string        `json:"restart,omitempty"`
	Restarts     int           `json:"restarts,omitempty"`
	CPU          time.Duration `json:"cpu_ns,omitempty"`
	MemoryBytes  int64         `json:"memory_bytes,omitempty"`
	Processes    int           `json:"processes,omitempty"`
}

type exitFields struct {
	Code        int           `json:"code"`
	Signal      string        `json:"signal,omitempty"`
	TimedOut    bool          `json:"timed_out,omitempty"`
	OOMKilled   bool          `json:"oom_killed,omitempty"`
	Duration    time.Duration `json:"duration_ns"`
	StdoutBytes int64         `json:"stdout_bytes"`
	StderrBytes int64         `json:"stderr_bytes"`
}

type resultFields struct {
	ID     string        `json:"id"`
	Exit   exitFields    `json:"exit"`
	Stdout captureFields `json:"stdout"`
	Stderr captureFields `json:"stderr"`
}

type captureFields struct {
	Head  int   `json:"head"`
	Tail  int   `json:"tail"`
	Bytes int64 `json:"bytes"`
}

type droppedFields struct {
	Stream string `json:"stream"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
}

type fileFields struct {
	Name       []byte    `json:"name"`
	Path       []byte    `json:"path"`
	Type       string    `json:"type"`
	SizeBytes  int64     `json:"size"`
	Mode       uint32    `json:"mode"`
	ModifiedAt time.Time `json:"modified_at"`
	Target     []byte    `json:"target,omitempty"`
	Error      string    `json:"error,omitempty"`
}

type pageFields struct {
	Next string `json:"next,omitempty"`
}

// Limits of texts that an agent may send.
const (
	errorTextMax = 8 << 10
	commandMax   = 4 << 10
)

// sayable are the codes that an agent may answer. Any other one from it becomes CodeInternal, so that a hostile agent cannot
// make a client believe something about its account or key.
var sayable = []dayfly.Code{
	dayfly.CodeInvalid, dayfly.CodeFilePermission, dayfly.CodeNotFound, dayfly.CodeFileNotFound, dayfly.CodeConflict,
	dayfly.CodeFileConflict, dayfly.CodeGone, dayfly.CodeTooLarge, dayfly.CodeDiskFull, dayfly.CodeUnavailable,
}

func fromError(err error) *errorFields {
	e := dayfly.AsError(err)
	return &errorFields{Code: string(e.Code), Message: text(e.Message, errorTextMax), Hint: text(e.Hint, errorTextMax)}
}

func (f *errorFields) toError() error {
	for _, code := range sayable {
		if string(code) == f.Code {
			return &dayfly.Error{Code: code, Message: text(f.Message, errorTextMax), Hint: text(f.Hint, errorTextMax)}
		}
	}
	return dayfly.Errorf(dayfly.CodeInternal, "the sandbox's agent failed").WithCause(errText(text(f.Message, errorTextMax)))
}

// errText is an error that is only a text from the other end.
type errText string

func (e errText) Error() string { return string(e) }

// text cuts s to max bytes of valid UTF-8.
func text(s string, max int) string {
	if len(s) > max {
		s = s[:max]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func fromExit(e dayfly.Exit) exitFields {
	return exitFields(e)
}

func (f exitFields) toExit() dayfly.Exit {
	e := dayfly.Exit(f)
	e.Code, e.Signal = min(max(0, e.Code), 255), text(e.Signal, 16)
	e.StdoutBytes, e.StderrBytes = max(0, e.StdoutBytes), max(0, e.StderrBytes)
	return e
}

func fromProcess(p dayfly.Process) *processFields {
	f := &processFields{
		ID: p.ID, PID: p.PID, Status: string(p.Status), Command: []byte(p.Command), StartedAgo: p.StartedAgo,
		OnDisconnect: string(p.OnDisconnect), StdoutBytes: p.StdoutBytes, StderrBytes: p.StderrBytes,
		Name: p.Name, Terminal: fromSize(p.Terminal), Restart: string(p.Restart), Restarts: p.Restarts,
		CPU: p.CPU, MemoryBytes: p.MemoryBytes, Processes: p.Processes,
	}
	if p.Exit != nil {
		e := fromExit(*p.Exit)
		f.Exit = &e
	}
	return f
}

func (f *processFields) toProcess() dayfly.Process {
	p := dayfly.Process{
		ID: text(f.ID, commandMax), PID: f.PID, Status: dayfly.ProcessRunning, Command: string(f.Command[:min(len(f.Command), commandMax)]),
		StartedAgo: max(0, f.StartedAgo), OnDisconnect: dayfly.OnDisconnect(text(f.OnDisconnect, commandMax)),
		StdoutBytes: max(0, f.StdoutBytes), StderrBytes: max(0, f.StderrBytes),
		Name: text(f.Name, dayfly.ProcessNameMax), Terminal: f.Terminal.toSize(), Restart: dayfly.Restart(text(f.Restart, commandMax)),
		Restarts: max(0, f.Restarts), CPU: max(0, f.CPU), MemoryBytes: max(0, f.MemoryBytes), Processes: max(0, f.Processes),
	}
	if p.Restart == "" {
		p.Restart = dayfly.RestartNever
	}
	if f.Exit != nil {
		e := f.Exit.toExit()
		p.Status, p.Exit = dayfly.ProcessExited, &e
	}
	return p
}

func fromFile(i dayfly.FileInfo) fileFields {
	return fileFields{
		Name: []byte(i.Name), Path: []byte(i.Path), Type: string(i.Type), SizeBytes: i.SizeBytes, Mode: uint32(i.Mode),
		ModifiedAt: i.ModifiedAt, Target: []byte(i.Target), Error: text(i.Error, errorTextMax),
	}
}

// fileModeBits are the bits of a mode that travel.
const fileModeBits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

func (f fileFields) toFile() dayfly.FileInfo {
	kind := dayfly.FileType(f.Type)
	switch kind {
	case dayfly.FileRegular, dayfly.FileDirectory, dayfly.FileSymlink:
	default:
		kind = dayfly.FileOther
	}
	return dayfly.FileInfo{
		Name: string(f.Name), Path: string(f.Path), Type: kind, SizeBytes: max(0, f.SizeBytes), Mode: fs.FileMode(f.Mode) & fileModeBits,
		ModifiedAt: f.ModifiedAt, Target: string(f.Target), Error: text(f.Error, errorTextMax),
	}
}
