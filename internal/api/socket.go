package api

import (
	"context"
	"net"
	"net/http"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsentMax bounds what the kernel keeps for a client beside what is under way to it. By default it keeps megabytes for one that
// stopped reading.
const unsentMax = 128 << 10 // bytes

type connKey struct{}

// remember makes a connection known to its requests, and has the kernel keep less for it.
func remember(ctx context.Context, conn net.Conn) context.Context {
	if inner, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = inner.NetConn()
	}
	socket, ok := conn.(*net.TCPConn)
	if !ok {
		return ctx
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return ctx
	}
	_ = raw.Control(func(fd uintptr) { // without it there is only more memory in use
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentMax)
	})
	return context.WithValue(ctx, connKey{}, raw)
}

// takenBy counts the bytes that the host of a request's client has acknowledged, where that is known.
func takenBy(r *http.Request) func() (int64, bool) {
	raw, ok := r.Context().Value(connKey{}).(syscall.RawConn)
	return func() (n int64, known bool) {
		if !ok {
			return 0, false
		}
		err := raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			if err == nil {
				n, known = int64(info.Bytes_acked), true
			}
		})
		return n, known && err == nil
	}
}
