package agentwire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"slices"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

// FuzzFrames: whatever arrives, the reader takes no more memory than the limits allow, and what it accepts is written again
// to the same bytes.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("J\x00\x00\x00\x02{}Z\x00\x00\x00\x00"))
	f.Add([]byte("O\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x01x"))
	f.Add([]byte("D\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newFrameReader(bytes.NewReader(in))
		var again bytes.Buffer
		w := newFrameWriter(&again)
		for {
			kind, payload, err := r.next()
			if err != nil {
				break
			}
			if len(payload) > frameLimit(kind) || cap(r.buf) > 2*jsonMax {
				t.Fatalf("kind %q with %d bytes in a buffer of %d", kind, len(payload), cap(r.buf))
			}
			if kind == frameStdout {
				_, _, _ = splitOutput(payload)
			}
			if err := w.frame(kind, payload); err != nil {
				t.Fatal(err)
			}
		}
		_ = w.flush()
		if !bytes.HasPrefix(in, again.Bytes()) {
			t.Fatalf("%q was read as %q", in, again.Bytes())
		}
	})
}

func FuzzParams(f *testing.F) {
	f.Add(packParams("a", "", "b\x00c"), 3)
	f.Add([]byte("\xff\xff\xff\xff"), 1)
	f.Fuzz(func(t *testing.T, in []byte, want int) {
		params, err := unpackParams(in, want)
		if err == nil && (len(params) != want || !bytes.Equal(packParams(params...), in)) {
			t.Fatalf("%q became %q", in, params)
		}
	})
}

func FuzzHello(f *testing.F) {
	var good bytes.Buffer
	_ = writeHello(&good, hello{Min: 1, Max: 3, Features: []string{"x"}})
	f.Add(good.Bytes())
	f.Add([]byte("DFA1\xff\xff{}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := readHello(bytes.NewReader(in))
		if err == nil {
			if v, err := settle(h); err == nil && (v < versionMin || v > versionMax || v < h.Min || v > h.Max) {
				t.Fatalf("settled on %d with %+v", v, h)
			}
		}
	})
}

// FuzzAnswer feeds an agent's answer to the client: whatever it is, the client ends, and says no more than an agent may.
func FuzzAnswer(f *testing.F) {
	var good bytes.Buffer
	w := newFrameWriter(&good)
	_ = w.json(message{Result: &resultFields{ID: "x", Stdout: captureFields{Head: 2, Bytes: 2}}})
	_ = w.frame(frameData, []byte("ok"))
	_ = w.json(message{Process: &processFields{ID: "x"}})
	_ = w.output(frameStdout, 7, []byte("y"))
	_ = w.json(message{Exit: &exitFields{Code: 999}})
	_ = w.flush()
	f.Add(good.Bytes())
	f.Add([]byte("J\x00\x00\x00\x22" + `{"error":{"code":"unauthorized"}}` + " "))
	f.Fuzz(func(t *testing.T, in []byte) {
		k := &call{ctx: context.Background(), frames: newFrameReader(bytes.NewReader(in))}
		for {
			m, err := k.message()
			if err != nil {
				checkError(t, err)
				break
			}
			if m.Result != nil {
				if c, err := k.captured(m.Result.Stdout); err == nil && int64(len(c.Head)+len(c.Tail)) > c.Bytes {
					t.Fatalf("captured %d bytes of %d", len(c.Head)+len(c.Tail), c.Bytes)
				}
			}
			if m.Process != nil {
				_ = m.Process.toProcess()
			}
			for _, file := range m.Files {
				_ = file.toFile()
			}
		}
		k = &call{ctx: context.Background(), frames: newFrameReader(bytes.NewReader(in))}
		o := &outputStream{call: k}
		for {
			out, err := o.Next()
			if err != nil {
				break
			}
			if out.Offset < 0 || out.Bytes < 0 || out.Exit != nil && (out.Exit.Code < 0 || out.Exit.Code > 255) {
				t.Fatalf("event %+v", out)
			}
		}
	})
}

func checkError(t *testing.T, err error) {
	var e *dayfly.Error
	if errors.As(err, &e) && e.Code != dayfly.CodeInternal && !slices.Contains(sayable, e.Code) {
		t.Fatalf("an agent said %q", e.Code)
	}
	if e == nil && !errors.Is(err, ErrLost) {
		t.Fatalf("unclear end: %v", err)
	}
}

// FuzzRequest feeds a request to the agent's end.
func FuzzRequest(f *testing.F) {
	seed := func(req request, params []string, body ...string) {
		packed := packParams(params...)
		req.Params, req.ParamBytes = len(params), len(packed)
		var b bytes.Buffer
		w := newFrameWriter(&b)
		_ = w.json(req)
		_ = w.chunks(frameParams, packed)
		for _, d := range body {
			_ = w.frame(frameData, []byte(d))
		}
		_ = w.frame(frameEnd)
		_ = w.flush()
		f.Add(b.Bytes())
	}
	req, params := specRequest(opRun, dayfly.ProcessSpec{ID: "x", Command: "c", Argv: []string{"a"}, Env: map[string]string{"A": "b"}}, true)
	seed(req, params, "stdin")
	seed(request{Op: opList, Limit: 3}, []string{"p", ""})
	seed(request{Op: opWrite, Body: true}, []string{"p"}, "content", "more")
	req, params = searchRequest(dayfly.SearchQuery{Path: "p", Pattern: "x", Include: []string{"*.go"}, Exclude: []string{"a", "b"}, Limit: 3})
	seed(req, params)
	req, params = findRequest(dayfly.FindQuery{Path: "p", Names: []string{"*.go"}, ModifiedAfter: time.Unix(1, 0), Limit: 3})
	seed(req, params)
	seed(request{Op: opWatch, Recursive: true}, []string{"p"})
	seed(request{Op: opMove, Overwrite: true}, []string{"p", "q"})
	seed(request{Op: opResize, ID: "x", Terminal: &sizeFields{Cols: -1, Rows: 1 << 30}}, nil)
	seed(request{Op: opAwaitPort, Port: 80}, nil)
	f.Fuzz(func(t *testing.T, in []byte) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var answer bytes.Buffer
		x := &exchange{ctx: ctx, cancel: cancel, m: nothing{}, in: newFrameReader(bytes.NewReader(in)), out: newFrameWriter(&answer)}
		if x.readRequest() != nil {
			return
		}
		if x.req.Body {
			x.body = &upload{x: x}
		}
		x.answer()
		if ctx.Err() == nil && x.out.flush() == nil && answer.Len() == 0 {
			t.Fatal("no answer")
		}
		var m message
		r := newFrameReader(&answer)
		if kind, payload, err := r.next(); err == nil && (kind != frameJSON || json.Unmarshal(payload, &m) != nil) {
			t.Fatalf("the answer begins with %q %q", kind, payload)
		}
	})
}

// nothing is a machine that reads what it is given and does nothing.
type nothing struct{ Machine }

func (nothing) Run(_ context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.Result, error) {
	if stdin != nil {
		_, _ = io.Copy(io.Discard, stdin)
	}
	return dayfly.Result{ID: spec.ID}, nil
}

func (n nothing) Start(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (dayfly.OutputStream, dayfly.Process, error) {
	_, err := n.Run(ctx, spec, stdin)
	return ended{}, dayfly.Process{ID: spec.ID}, err
}

func (nothing) Output(context.Context, string, dayfly.Offsets, bool) (dayfly.OutputStream, error) {
	return ended{}, nil
}
func (nothing) Result(context.Context, string) (dayfly.Result, error)   { return dayfly.Result{}, nil }
func (nothing) Process(context.Context, string) (dayfly.Process, error) { return dayfly.Process{}, nil }
func (nothing) Processes(context.Context) ([]dayfly.Process, error)     { return nil, nil }
func (nothing) Signal(context.Context, string, string, bool) error      { return nil }
func (nothing) WriteStdin(_ context.Context, _ string, r io.Reader, _ bool) error {
	_, err := io.Copy(io.Discard, r)
	return err
}
func (nothing) WriteStdinAt(_ context.Context, _ string, offset int64, r io.Reader, _ bool) (int64, error) {
	n, err := io.Copy(io.Discard, r)
	return max(0, offset) + n, err
}
func (nothing) Stat(context.Context, string) (dayfly.FileInfo, error) { return dayfly.FileInfo{}, nil }
func (nothing) List(context.Context, dayfly.ListQuery) ([]dayfly.FileInfo, string, error) {
	return nil, "", nil
}
func (nothing) Read(context.Context, string, dayfly.FileRange) (dayfly.FileInfo, io.ReadCloser, error) {
	return dayfly.FileInfo{}, io.NopCloser(bytes.NewReader([]byte("x"))), nil
}
func (nothing) Write(_ context.Context, _ string, _ *fs.FileMode, r io.Reader) (dayfly.FileInfo, error) {
	_, err := io.Copy(io.Discard, r)
	return dayfly.FileInfo{}, err
}
func (nothing) Remove(context.Context, string, bool) error { return nil }
func (nothing) Resize(context.Context, string, dayfly.TerminalSize) error {
	return nil
}
func (nothing) AwaitPort(context.Context, int) error { return nil }
func (nothing) Mkdir(context.Context, string, *fs.FileMode, bool) (dayfly.FileInfo, error) {
	return dayfly.FileInfo{}, nil
}
func (nothing) Move(context.Context, string, string, bool) (dayfly.FileInfo, error) {
	return dayfly.FileInfo{}, nil
}
func (nothing) Chmod(context.Context, string, fs.FileMode, bool) (dayfly.FileInfo, error) {
	return dayfly.FileInfo{}, nil
}
func (nothing) Search(context.Context, dayfly.SearchQuery) (dayfly.SearchResult, error) {
	return dayfly.SearchResult{Matches: []dayfly.SearchMatch{{Text: "x"}}}, nil
}
func (nothing) Find(context.Context, dayfly.FindQuery) ([]dayfly.FileInfo, bool, error) {
	return []dayfly.FileInfo{{Name: "x"}}, true, nil
}
func (nothing) Watch(context.Context, string, bool) (dayfly.ChangeStream, error) {
	return unchanging{}, nil
}
func (nothing) ReadArchive(context.Context, string) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(nil)), nil
}
func (nothing) WriteArchive(_ context.Context, _ string, r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

type ended struct{}

func (ended) Next() (dayfly.Output, error) { return dayfly.Output{}, io.EOF }
func (ended) Close() error                 { return nil }

type unchanging struct{}

func (unchanging) Next() (dayfly.FileChange, error) { return dayfly.FileChange{}, io.EOF }
func (unchanging) Close() error                     { return nil }

// FuzzSession lets an agent say anything at all after a proper hello: every call on the client ends, in time.
func FuzzSession(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9})             // a ping
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 'x'})        // a stream of its own
	f.Add([]byte{0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4}) // an ACK, then half a header
	f.Add([]byte{0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 7, 'J', 0, 0, 0, 2, '{', '}'})
	f.Fuzz(func(t *testing.T, in []byte) {
		node, agent := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer agent.Close()
			_, _ = readHello(agent)
			_ = writeHello(agent, hello{Min: 1, Max: 1})
			go func() { _, _ = io.Copy(io.Discard, agent) }()
			_, _ = agent.Write(in)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c, err := NewClient(ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Ping(ctx)
		_ = c.Close()
		if ctx.Err() != nil {
			t.Fatal("the client hung")
		}
		<-done
	})
}
