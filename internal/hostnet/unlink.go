package hostnet

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const linksPerBatch = 256 // requests in one system call

// deleteLinks removes links by name on a thread in the host's namespace. Those that are gone already are no fault. Each
// deletion waits for the kernel, tens of milliseconds, so several go together: as a group they wait once.
func deleteLinks(names []string) error {
	if len(names) == 0 {
		return nil
	}
	r, err := openRTNL()
	if err != nil {
		return err
	}
	defer r.close()
	if len(names) == 1 {
		_, failed := r.do(deleteLink(names[0]))
		return unlessGone("remove link "+names[0], failed)
	}
	// A number that nobody else has for a group; a small one might be the operator's.
	var random [4]byte
	_, _ = rand.Read(random[:])
	group := binary.NativeEndian.Uint32(random[:]) | 1<<30
	var errs []error
	for rest := names; len(rest) > 0; {
		n := min(len(rest), linksPerBatch)
		var requests []*nl.NetlinkRequest
		for _, name := range rest[:n] {
			requests = append(requests, request(unix.RTM_SETLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), nameAttr(name),
				numberAttr(unix.IFLA_GROUP, group)))
		}
		_, failed := r.do(requests...)
		errs = append(errs, unlessGone("group links for removal", failed))
		rest = rest[n:]
	}
	_, failed := r.do(request(unix.RTM_DELLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), numberAttr(unix.IFLA_GROUP, group)))
	return errors.Join(append(errs, unlessGone(fmt.Sprintf("remove %d links", len(names)), failed))...)
}

func deleteLink(name string) *nl.NetlinkRequest {
	return request(unix.RTM_DELLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), nameAttr(name))
}

// unlessGone is named without the links that do not exist.
func unlessGone(step string, errs []error) error {
	for i, err := range errs {
		if errors.Is(err, unix.ENODEV) {
			errs[i] = nil
		}
	}
	return named(step, errs)
}
