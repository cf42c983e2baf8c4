package agentwire

import (
	"io"
	"io/fs"

	"dayfly.dev/dayfly"
)

// dispatch does one request. An error is still to be sent.
func (x *exchange) dispatch() error {
	switch x.req.Op {
	case opPing:
		return x.out.json(message{})
	case opRun, opResult:
		return x.result()
	case opStart, opOutput:
		return x.follow()
	case opProcess, opProcesses, opSignal, opStdin, opStdinAt, opResize, opAwaitPort:
		return x.process()
	case opSearch:
		return x.search()
	case opFind:
		return x.find()
	default:
		return x.files()
	}
}

// result answers with a finished process.
func (x *exchange) result() error {
	var res dayfly.Result
	var err error
	if x.req.Op == opResult {
		res, err = x.m.Result(x.ctx, x.req.ID)
	} else {
		var spec dayfly.ProcessSpec
		if spec, err = x.req.spec(); err != nil {
			return err
		}
		res, err = x.m.Run(x.ctx, spec, x.input())
	}
	if err != nil {
		return err
	}
	err = x.out.json(message{Result: &resultFields{
		ID: res.ID, Exit: fromExit(res.Exit), Stdout: fromCaptured(res.Stdout), Stderr: fromCaptured(res.Stderr),
	}})
	for _, b := range [][]byte{res.Stdout.Head, res.Stdout.Tail, res.Stderr.Head, res.Stderr.Tail} {
		if err == nil {
			err = x.out.chunks(frameData, b)
		}
	}
	return err
}

func fromCaptured(c dayfly.Captured) captureFields {
	return captureFields{Head: len(c.Head), Tail: len(c.Tail), Bytes: c.Bytes}
}

// follow answers with a process and its output as it comes.
func (x *exchange) follow() error {
	stream, p, err := x.openOutput()
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := x.out.json(message{Process: fromProcess(p)}); err != nil {
		return err
	}
	for {
		if err := x.out.flush(); err != nil {
			return err
		}
		o, err := stream.Next()
		if err == io.EOF {
			return x.out.frame(frameEnd)
		}
		if err != nil {
			return err
		}
		if err := x.event(o); err != nil {
			return err
		}
		if o.Kind == dayfly.OutputExit {
			return nil
		}
	}
}

func (x *exchange) openOutput() (dayfly.OutputStream, dayfly.Process, error) {
	if x.req.Op == opStart {
		spec, err := x.req.spec()
		if err != nil {
			return nil, dayfly.Process{}, err
		}
		return x.m.Start(x.ctx, spec, x.input())
	}
	p, err := x.m.Process(x.ctx, x.req.ID)
	if err != nil {
		return nil, p, err
	}
	stream, err := x.m.Output(x.ctx, x.req.ID, dayfly.Offsets{Stdout: x.req.Stdout, Stderr: x.req.Stderr}, x.req.Follow)
	return stream, p, err
}

// event appends one event of an output stream.
func (x *exchange) event(o dayfly.Output) error {
	switch o.Kind {
	case dayfly.OutputStdout:
		return x.out.output(frameStdout, o.Offset, o.Data)
	case dayfly.OutputStderr:
		return x.out.output(frameStderr, o.Offset, o.Data)
	case dayfly.OutputDropped:
		return x.out.json(message{Dropped: &droppedFields{Stream: string(o.Stream), Offset: o.Offset, Bytes: o.Bytes}})
	default:
		exit := fromExit(*o.Exit)
		return x.out.json(message{Exit: &exit})
	}
}

// process answers the requests about processes that are neither results nor output.
func (x *exchange) process() error {
	switch x.req.Op {
	case opProcess:
		p, err := x.m.Process(x.ctx, x.req.ID)
		if err != nil {
			return err
		}
		return x.out.json(message{Process: fromProcess(p)})
	case opProcesses:
		all, err := x.m.Processes(x.ctx)
		if err != nil {
			return err
		}
		for _, p := range all {
			if err := x.out.json(message{Process: fromProcess(p)}); err != nil {
				return err
			}
		}
		return x.out.frame(frameEnd)
	case opResize:
		if x.req.Terminal == nil {
			return dayfly.Errorf(dayfly.CodeInvalid, "the request holds no size")
		}
		return x.done(x.m.Resize(x.ctx, x.req.ID, *x.req.Terminal.toSize()))
	case opAwaitPort:
		return x.done(x.m.AwaitPort(x.ctx, x.req.Port))
	case opStdinAt:
		n, err := x.m.WriteStdinAt(x.ctx, x.req.ID, x.req.Offset, x.content(), x.req.CloseAfter)
		if err != nil {
			return err
		}
		return x.out.json(message{Stdin: &stdinFields{Bytes: n}})
	case opSignal:
		return x.done(x.m.Signal(x.ctx, x.req.ID, x.req.Signal, x.req.Tree))
	default:
		return x.done(x.m.WriteStdin(x.ctx, x.req.ID, x.content(), x.req.CloseAfter))
	}
}

// done answers a bare success unless err is set.
func (x *exchange) done(err error) error {
	if err != nil {
		return err
	}
	return x.out.json(message{})
}

// files answers the requests about files. The first parameter is the path.
func (x *exchange) files() error {
	params, err := unpackParams(x.req.ParamsRaw, x.req.Params)
	if err != nil || len(params) == 0 {
		return older()
	}
	path := params[0]
	switch x.req.Op {
	case opStat:
		return x.file(x.m.Stat(x.ctx, path))
	case opWrite:
		return x.file(x.m.Write(x.ctx, path, x.req.mode(), x.content()))
	case opRemove:
		return x.done(x.m.Remove(x.ctx, path, x.req.Recursive))
	case opWriteArchive:
		return x.done(x.m.WriteArchive(x.ctx, path, x.content()))
	case opReadArchive:
		r, err := x.m.ReadArchive(x.ctx, path)
		if err != nil {
			return err
		}
		return x.send(message{}, r)
	case opRead:
		info, r, err := x.m.Read(x.ctx, path, dayfly.FileRange{Offset: x.req.Offset, Length: x.req.Length})
		if err != nil {
			return err
		}
		return x.send(message{Files: []fileFields{fromFile(info)}}, r)
	case opMkdir:
		return x.file(x.m.Mkdir(x.ctx, path, x.req.mode(), x.req.Recursive))
	case opMove:
		if len(params) == 2 {
			return x.file(x.m.Move(x.ctx, path, params[1], x.req.Overwrite))
		}
	case opChmod:
		if mode := x.req.mode(); mode != nil {
			return x.file(x.m.Chmod(x.ctx, path, *mode, x.req.Recursive))
		}
	case opWatch:
		return x.watchFiles(path)
	case opList:
		if len(params) == 2 {
			return x.list(dayfly.ListQuery{Path: path, Cursor: params[1], Recursive: x.req.Recursive, Limit: x.req.Limit})
		}
	}
	return older()
}

// mode is the requested mode, or nil.
func (r request) mode() *fs.FileMode {
	if r.Mode == nil {
		return nil
	}
	m := fs.FileMode(*r.Mode) & fileModeBits
	return &m
}

// file answers with one entry unless err is set.
func (x *exchange) file(info dayfly.FileInfo, err error) error {
	if err != nil {
		return err
	}
	return x.out.json(message{Files: []fileFields{fromFile(info)}})
}

// send answers with a message and then all of r, which it closes.
func (x *exchange) send(m message, r io.ReadCloser) error {
	defer r.Close()
	if err := x.out.json(m); err != nil {
		return err
	}
	buf := make([]byte, dataMax)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := x.out.frame(frameData, buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return x.out.frame(frameEnd)
		}
		if err != nil {
			return err
		}
	}
}

// listBatch is how many bytes of names and paths go into one message; JSON makes them up to three times as long.
const listBatch = jsonMax / 8

// list answers with a page of a directory.
func (x *exchange) list(q dayfly.ListQuery) error {
	entries, next, err := x.m.List(x.ctx, q)
	if err != nil {
		return err
	}
	if err := x.entries(entries); err != nil {
		return err
	}
	return x.out.json(message{Page: &pageFields{Next: next}})
}

// entries answers with entries, batch by batch.
func (x *exchange) entries(entries []dayfly.FileInfo) error {
	var batch []fileFields
	size := 0
	for _, e := range entries {
		batch = append(batch, fromFile(e))
		size += len(e.Name) + len(e.Path) + len(e.Target) + len(e.Error) + 256
		if size >= listBatch {
			if err := x.out.json(message{Files: batch}); err != nil {
				return err
			}
			batch, size = nil, 0
		}
	}
	if len(batch) > 0 {
		if err := x.out.json(message{Files: batch}); err != nil {
			return err
		}
	}
	return nil
}
