package agentwire

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hashicorp/yamux"
)

// The parts of the yamux framing that the guard must know: a header of twelve bytes.
const (
	muxHeader = 12
	muxData   = 0 // type: data follows
	muxUpdate = 1 // type: window update
	muxPing   = 2
	muxSYN    = 1 // flag: opens a stream
)

// Limits of a session.
const (
	// windowBytes bounds what one stream holds unread on the receiving side.
	windowBytes = 512 << 10
	// backlog bounds the streams that wait to be accepted.
	backlog = 256
	// writeTimeout bounds one write to the connection. A paused or stopped peer does not read for as long as it is paused;
	// a dead one closes the connection, which ends every write at once.
	writeTimeout = 24 * time.Hour
	// closeTimeout is how long after one end closed a stream the other has to close it too before it is reset. What an agent that
	// never closes has sent stays in memory that long.
	closeTimeout = time.Second
)

// muxConfig is the same on both ends. Keep-alives are off: the connection is a local socket, whose end is seen at once.
func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = backlog
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = writeTimeout
	c.MaxStreamWindowSize = windowBytes
	c.StreamOpenTimeout = 0 // the callers' contexts bound an open
	c.StreamCloseTimeout = closeTimeout
	c.LogOutput = nil
	c.Logger = silent{}
	return c
}

// silent drops what yamux would log: every failure also comes back as an error, and a hostile agent must not fill a log.
type silent struct{}

func (silent) Print(...any)          {}
func (silent) Printf(string, ...any) {}
func (silent) Println(...any)        {}

// guard sits between yamux and the connection. Outbound it joins a frame's header and body (and the frame that opens a
// stream with the first request on it) into one write. Inbound, on the node's side, it refuses frames that an honest agent
// never sends and that would cost memory: pings (each starts a goroutine) and streams opened by the agent.
type guard struct {
	net.Conn
	strict bool // inbound frames are those of an agent

	in     [muxHeader]byte // a header that arrives in pieces
	inLen  int
	inBody uint32 // bytes of the present frame's body that still arrive

	held []byte // headers not yet written
	body bool   // the last of them announces a body
}

func newGuard(conn net.Conn, strict bool) *guard { return &guard{Conn: conn, strict: strict} }

// Read implements net.Conn.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if g.strict && n > 0 {
		if bad := g.inspect(p[:n]); bad != nil {
			return 0, bad
		}
	}
	return n, err
}

// inspect follows the inbound framing over any split of it.
func (g *guard) inspect(p []byte) error {
	for len(p) > 0 {
		if g.inBody > 0 {
			skip := min(uint64(g.inBody), uint64(len(p)))
			g.inBody -= uint32(skip)
			p = p[skip:]
			continue
		}
		n := copy(g.in[g.inLen:], p)
		g.inLen += n
		p = p[n:]
		if g.inLen < muxHeader {
			return nil
		}
		g.inLen = 0
		kind, flags, size := muxFields(g.in[:])
		if kind == muxPing || flags&muxSYN != 0 {
			return fmt.Errorf("%w: the agent sent a frame of type %d with flags %d", errFrame, kind, flags)
		}
		if kind == muxData {
			g.inBody = size
		}
	}
	return nil
}

// Write implements net.Conn. yamux calls it from one goroutine, header and body apart.
func (g *guard) Write(p []byte) (int, error) {
	if !g.body && len(p) == muxHeader {
		kind, flags, size := muxFields(p)
		if g.body = kind == muxData && size > 0; g.body || kind == muxUpdate && flags&muxSYN != 0 {
			g.held = append(g.held, p...)
			return len(p), nil
		}
	}
	g.body = false
	if len(g.held) == 0 {
		return g.Conn.Write(p)
	}
	return g.writeHeld(p)
}

// writeHeld writes the held headers and p in one call.
func (g *guard) writeHeld(p []byte) (int, error) {
	held := g.held
	g.held = g.held[:0]
	if len(p) <= readBuffer { // copying is cheaper than a vectored write
		b := append(held, p...)
		g.held = b[:0]
		if _, err := g.Conn.Write(b); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	bufs := net.Buffers{held, p}
	if _, err := bufs.WriteTo(g.Conn); err != nil {
		return 0, err
	}
	return len(p), nil
}

// muxFields reads a yamux header.
func muxFields(h []byte) (kind byte, flags uint16, size uint32) {
	return h[1], binary.BigEndian.Uint16(h[2:]), binary.BigEndian.Uint32(h[8:])
}

var _ io.ReadWriteCloser = (*guard)(nil)
