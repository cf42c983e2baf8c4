package api

import (
	"net"
	"sync"
)

// Limit makes a listener that has at most limit connections open at a time and closes further ones at once. Anybody can open
// connections, with or without a key, and each takes a descriptor that the machines of this process need too. It owns l.
func Limit(l net.Listener, limit int) net.Listener {
	return &limited{Listener: l, slots: make(chan struct{}, limit)}
}

type limited struct {
	net.Listener
	slots chan struct{} // one entry for each open connection
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &counted{Conn: c, done: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			_ = c.Close()
		}
	}
}

// counted gives its slot back when it is closed.
type counted struct {
	net.Conn
	done func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.done()
	return c.Conn.Close()
}

// NetConn is the connection itself.
func (c *counted) NetConn() net.Conn { return c.Conn }
