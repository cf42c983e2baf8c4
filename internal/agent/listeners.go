package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// The kernel's interface for asking about sockets, from linux/sock_diag.h and linux/inet_diag.h.
const (
	diagByFamily   = 20 // SOCK_DIAG_BY_FAMILY
	diagRequest    = 56 // bytes of struct inet_diag_req_v2
	diagStateAt    = 1  // in an answer
	diagPortAt     = 4  // in an answer, big endian
	diagAnswer     = 72 // bytes of struct inet_diag_msg
	netlinkHeader  = 16
	netlinkBuffer  = 32 << 10 // the kernel never puts more into one message
	netlinkRounds  = 1 << 16  // messages of one answer
	tcpListen      = 10
	portTableMax   = 16 << 20 // bytes of /proc/net/tcp that are read
	portTableChunk = 64 << 10
	portLineMax    = 1 << 10
)

// portTables are where a kernel that cannot be asked lists its sockets.
var portTables = [...]string{"/proc/net/tcp", "/proc/net/tcp6"}

// portEyes see which ports something listens on. The zero value is ready.
type portEyes struct {
	socket int    // netlink socket, or 0
	blind  bool   // there is no such socket: read the tables
	buf    []byte // of either
	open   portSet
}

func (e *portEyes) close() {
	if e.socket > 0 {
		_ = unix.Close(e.socket)
	}
	e.socket = 0
}

// look tells the ports that are open now. The set is valid until the next look.
func (e *portEyes) look() (*portSet, error) {
	if !e.blind {
		e.open = portSet{}
		err := e.ask()
		if err == nil {
			return &e.open, nil
		}
		e.close()
		e.blind = true
	}
	e.open = portSet{}
	read := 0
	for _, name := range portTables {
		if err := e.readTable(name); err == nil {
			read++
		}
	}
	if read == 0 {
		return nil, dayfly.Errorf(dayfly.CodeUnavailable, "the sandbox cannot tell which ports are listened on")
	}
	return &e.open, nil
}

// ask asks the kernel for the listening sockets, which it finds without looking at the others.
func (e *portEyes) ask() error {
	if e.socket == 0 {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		if err != nil {
			return fmt.Errorf("open netlink socket: %w", err)
		}
		e.socket, e.buf = fd, make([]byte, netlinkBuffer)
	}
	for _, family := range [...]byte{unix.AF_INET, unix.AF_INET6} {
		if err := e.askFamily(family); err != nil {
			return err
		}
	}
	return nil
}

func (e *portEyes) askFamily(family byte) error {
	request := make([]byte, netlinkHeader+diagRequest)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], diagByFamily)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request[netlinkHeader], request[netlinkHeader+1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(request[netlinkHeader+4:], 1<<tcpListen)
	if err := unix.Sendto(e.socket, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask for sockets: %w", err)
	}
	for range netlinkRounds {
		n, _, err := unix.Recvfrom(e.socket, e.buf, unix.MSG_DONTWAIT) // the kernel has answered before the request returned
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("read sockets: %w", err)
		}
		if done, err := e.open.addAnswer(e.buf[:n]); done || err != nil {
			return err
		}
	}
	return errors.New("the list of sockets has no end")
}

// addAnswer adds the listeners of one netlink message; done tells that it was the last.
func (s *portSet) addAnswer(b []byte) (done bool, err error) {
	for len(b) >= netlinkHeader {
		size := int(binary.NativeEndian.Uint32(b))
		kind := binary.NativeEndian.Uint16(b[4:])
		if size < netlinkHeader || size > len(b) {
			return false, fmt.Errorf("netlink message of %d bytes in %d", size, len(b))
		}
		switch body := b[netlinkHeader:size]; {
		case kind == unix.NLMSG_DONE:
			return true, nil
		case kind == unix.NLMSG_ERROR:
			return false, errors.New("the kernel tells no sockets")
		case kind == diagByFamily && len(body) >= diagAnswer && body[diagStateAt] == tcpListen:
			s.add(binary.BigEndian.Uint16(body[diagPortAt:]))
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return false, nil
}

// readTable adds the listeners that a table of /proc/net has.
func (e *portEyes) readTable(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if len(e.buf) < portTableChunk {
		e.buf = make([]byte, portTableChunk)
	}
	return e.open.addTable(io.LimitReader(f, portTableMax), e.buf)
}

// addTable reads a table line by line: number, local address and port, remote ones, state, …, in hexadecimal.
func (s *portSet) addTable(r io.Reader, buf []byte) error {
	held := 0
	for {
		n, err := r.Read(buf[held:])
		held += n
		b := buf[:held]
		for {
			line, rest, whole := bytes.Cut(b, []byte("\n"))
			if !whole {
				break
			}
			s.addLine(line)
			b = rest
		}
		held = copy(buf, b[max(0, len(b)-portLineMax):]) // a longer line is none of the kernel's
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *portSet) addLine(line []byte) {
	fields := bytes.Fields(line)
	if len(fields) < 4 || string(fields[3]) != "0A" {
		return
	}
	_, hex, ok := bytes.Cut(fields[1], []byte(":"))
	if !ok || len(hex) != 4 {
		return
	}
	var port uint16
	for _, c := range hex {
		digit := bytes.IndexByte([]byte("0123456789ABCDEF"), c)
		if digit < 0 {
			return
		}
		port = port<<4 | uint16(digit)
	}
	s.add(port)
}
