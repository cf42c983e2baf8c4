package hostnet

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	rtnlBufferBytes = 64 << 10
	rtnlWaitSeconds = 10 // the kernel answers within the call that sends; this only bounds a broken one
)

// rtnl is a routing socket that sends several requests in one system call. It belongs to the network namespace of the
// thread that opened it and may be used from any. It is not safe for concurrent use.
type rtnl struct {
	fd  int
	buf []byte
}

func openRTNL() (*rtnl, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routing socket: %w", err)
	}
	wait := unix.Timeval{Sec: rtnlWaitSeconds}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) // errors need not carry the request back
	return &rtnl{fd: fd, buf: make([]byte, rtnlBufferBytes)}, nil
}

func (r *rtnl) close() { _ = unix.Close(r.fd) }

// do sends the requests together and waits for all answers. The kernel carries out each in order, whatever became of the
// ones before. answers holds the payload of each request's last message before its acknowledgement, or nil; errs has one
// entry per request.
func (r *rtnl) do(requests ...*nl.NetlinkRequest) (answers [][]byte, errs []error) {
	answers, errs = make([][]byte, len(requests)), make([]error, len(requests))
	fail := func(err error) ([][]byte, []error) {
		for i := range errs {
			errs[i] = err
		}
		return answers, errs
	}
	var out []byte
	for i, q := range requests {
		q.Seq, q.Flags = uint32(i+1), q.Flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK
		out = append(out, q.Serialize()...)
	}
	if err := unix.Sendto(r.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fail(fmt.Errorf("send to the kernel: %w", err))
	}
	for waiting := len(requests); waiting > 0; {
		n, _, err := unix.Recvfrom(r.fd, r.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fail(fmt.Errorf("receive from the kernel: %w", err))
		}
		messages, err := syscall.ParseNetlinkMessage(r.buf[:n])
		if err != nil {
			return fail(fmt.Errorf("parse the kernel's answer: %w", err))
		}
		for _, m := range messages {
			i := int(m.Header.Seq) - 1
			if i < 0 || i >= len(requests) {
				continue
			}
			if m.Header.Type != unix.NLMSG_ERROR {
				answers[i] = append([]byte(nil), m.Data...)
				continue
			}
			waiting--
			if err := errnoOf(m.Data); err != unix.Errno(0) {
				errs[i] = err
			}
		}
	}
	return answers, errs
}

// linkIndex reads the interface index from an answer to getLink.
func linkIndex(answer []byte) (int, error) {
	if len(answer) < unix.SizeofIfInfomsg {
		return 0, errors.New("the kernel did not show the interface")
	}
	return int(nl.DeserializeIfInfomsg(answer).Index), nil
}

func request(kind, flags int, header nl.NetlinkRequestData, attributes ...*nl.RtAttr) *nl.NetlinkRequest {
	q := &nl.NetlinkRequest{NlMsghdr: unix.NlMsghdr{Len: unix.SizeofNlMsghdr, Type: uint16(kind), Flags: uint16(flags)}}
	q.AddData(header)
	for _, a := range attributes {
		q.AddData(a)
	}
	return q
}

func getLink(name string) *nl.NetlinkRequest {
	return request(unix.RTM_GETLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), nameAttr(name))
}

func nameAttr(name string) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)) }

func numberAttr(kind int, n uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(n)) }
