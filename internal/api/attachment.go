package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// attached is a client's live connection to a process.
type attached struct {
	c       *call
	conn    *websocket.Conn
	ctx     context.Context         // ends with the attachment
	leave   context.CancelCauseFunc // ends it for a reason
	life    context.Context         // of the connection: the end of one that is in use cuts it
	machine control.Machine
	id      string
	next    dayfly.Offsets // behind what was put in
	dropped bool
	box     *outbox
	typed   *typed
}

// serve runs the attachment to its end: output here, input and signs of life beside it.
func (t *attached) serve(size *dayfly.TerminalSize, stream dayfly.OutputStream, detach func()) {
	var end context.CancelFunc
	t.life, end = context.WithCancel(context.WithoutCancel(t.ctx))
	defer end()
	t.box = t.c.newOutbox(t.drain, func(after time.Duration) { time.AfterFunc(after, end) })
	t.box.onUntaken = func() { t.leave(errUntaken) }
	stop := t.box.run()
	var beside sync.WaitGroup
	for _, run := range []func(){t.listen, t.feed, t.alive} {
		beside.Go(run)
	}
	err := t.reason(t.copy(size, stream))
	detach() // before the client has taken the rest: it may take its time
	t.typed.end()
	stop()
	if !errors.Is(err, errClientLeft) {
		t.goodbye(err)
	}
	_ = t.conn.CloseNow()
	t.leave(nil)
	beside.Wait()
}

// reason is why an attachment really ended that ended with err.
func (t *attached) reason(err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(t.ctx); cause != nil {
		return cause
	}
	if failed := t.box.failed(); failed != nil {
		return errClientLeft
	}
	return err
}

// goodbye tells the error that ended the attachment, if any, and closes the connection.
func (t *attached) goodbye(err error) {
	code := closeOf(err)
	switch {
	case errors.Is(err, errUntaken):
		err = resumeAt(t.c.untaken(), t.id, t.next)
	case errors.Is(err, errStopping):
		err = resumeAt(errStopping, t.id, t.next)
	}
	if err != nil {
		shown, status, _ := t.c.show(err)
		shown.Status = status
		if event, err := encode(errorEventJSON{Type: "error", Error: shown}); err == nil {
			t.box.last(func(b []byte) []byte { return appendFrame(b, websocket.MessageText, nil, event) })
		}
	}
	closing(t.conn, code)
}

// copy tells the output of the process, to its end.
func (t *attached) copy(size *dayfly.TerminalSize, stream dayfly.OutputStream) error {
	err := t.event(attachStartJSON{Type: "start", ID: t.id, StdoutOffset: t.next.Stdout, StderrOffset: t.next.Stderr, TTY: showSize(size)})
	for err == nil {
		var out dayfly.Output
		if out, err = stream.Next(); err != nil {
			break
		}
		if out.Kind == dayfly.OutputExit && out.Exit != nil {
			return t.event(exitEventJSON{Type: "exit", exitJSON: showExit(t.id, *out.Exit), Truncated: t.dropped})
		}
		err = t.show(out)
	}
	if errors.Is(err, io.EOF) {
		return dayfly.Errorf(dayfly.CodeInternal, "the stream ended before the command's end was seen")
	}
	return err
}

// show translates one output event.
func (t *attached) show(out dayfly.Output) (err error) {
	switch out.Kind {
	case dayfly.OutputStdout, dayfly.OutputStderr:
		channel := byte(channelStdout)
		if out.Kind == dayfly.OutputStderr {
			channel = channelStderr
		}
		err = t.box.put(func(b []byte) []byte { return appendFrame(b, websocket.MessageBinary, []byte{channel}, out.Data) })
		if err == nil {
			t.next = behind(t.next, out.Kind, out.Offset+int64(len(out.Data)))
		}
	case dayfly.OutputDropped:
		t.dropped = true
		offset := out.Offset
		err = t.event(eventJSON{Type: "dropped", Stream: string(out.Stream), Offset: &offset, Bytes: out.Bytes})
		if err == nil {
			t.next = behind(t.next, out.Stream, out.Offset+out.Bytes)
		}
	}
	return err
}

// event puts a text frame in.
func (t *attached) event(v any) error {
	event, err := encode(v)
	if err != nil {
		return err
	}
	return t.box.put(func(b []byte) []byte { return appendFrame(b, websocket.MessageText, nil, event) })
}

// frameHead is what stands before each frame in an outbox: its kind, and its length in four bytes.
const frameHead = 5

func appendFrame(b []byte, kind websocket.MessageType, first, rest []byte) []byte {
	b = binary.BigEndian.AppendUint32(append(b, byte(kind)), uint32(len(first)+len(rest)))
	return append(append(b, first...), rest...)
}

// drain sends the frames that are in b.
func (t *attached) drain(b []byte) error {
	for len(b) > 0 {
		end := frameHead + int(binary.BigEndian.Uint32(b[1:frameHead]))
		if err := t.conn.Write(t.life, websocket.MessageType(b[0]), b[frameHead:end]); err != nil {
			return err
		}
		b = b[end:]
	}
	return nil
}

// listen takes what the client sends until it leaves.
func (t *attached) listen() {
	for {
		kind, r, err := t.conn.Reader(t.life)
		if err == nil && kind == websocket.MessageBinary {
			err = t.input(r)
		} else if err == nil {
			err = t.control(r)
		}
		if err == nil {
			continue
		}
		var said *dayfly.Error
		if !errors.As(err, &said) {
			err = errClientLeft
		}
		t.leave(err)
		return
	}
}

// input takes a binary frame.
func (t *attached) input(r io.Reader) error {
	var channel [1]byte
	if _, err := io.ReadFull(r, channel[:]); errors.Is(err, io.EOF) || err == nil && channel[0] != channelStdin {
		return dayfly.Errorf(dayfly.CodeInvalid, "a binary frame must begin with the byte 0, for standard input")
	} else if err != nil {
		return err
	}
	_, err := io.Copy(t.typed, r)
	return err
}

// control takes a text frame.
func (t *attached) control(r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, attachControlMax+1))
	if err != nil {
		return err
	}
	if len(data) > attachControlMax {
		return dayfly.Errorf(dayfly.CodeTooLarge, "a text frame has at most %d bytes", attachControlMax)
	}
	k, err := parseJSON(data, parseControl)
	if err != nil {
		return err
	}
	switch k.kind {
	case controlResize:
		return t.machine.Resize(t.ctx, t.id, k.size)
	case controlSignal:
		return t.machine.Signal(t.ctx, t.id, k.signal.Signal, k.signal.Tree)
	case controlCloseStdin:
		t.typed.close()
	}
	return nil
}

// The kinds of text frames from a client.
const (
	controlResize     = "resize"
	controlSignal     = "signal"
	controlCloseStdin = "close_stdin"
)

// controlFrame is a text frame from a client.
type controlFrame struct {
	kind   string
	size   dayfly.TerminalSize
	signal signalJSON
}

func parseControl(f *fields) controlFrame {
	var k controlFrame
	k.kind, _ = f.choice("type", controlResize, controlSignal, controlCloseStdin)
	if _, given := f.in["type"]; !given {
		f.wrong("type", "is missing")
	}
	switch k.kind {
	case controlResize:
		k.size = parseSize(f)
	case controlSignal:
		k.signal = parseSignal(f)
	}
	return k
}

// feed writes what is typed to the process, a piece at a time: others may be attached and type too.
func (t *attached) feed() {
	for {
		piece, closed, ok := t.typed.take()
		if !ok {
			return
		}
		err := t.machine.WriteStdin(t.ctx, t.id, bytes.NewReader(piece), closed)
		if err != nil {
			t.typed.end()
			if p, known := t.machine.Process(t.ctx, t.id); known == nil && p.Status == dayfly.ProcessExited {
				return // its exit is told
			}
			t.leave(err)
			return
		}
		if closed {
			return
		}
	}
}
