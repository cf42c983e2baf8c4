package hostnet

import (
	"context"
	"os"
	"runtime"
	"testing"

	"dayfly.dev/dayfly"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// TestFullBlock is bug 118: it fills every slot's permission and has the whole table put back at once. It is an internal test because 4096
// pairs of links would take minutes; the set does not need them.
func TestFullBlock(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	var ns *os.File
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies and leaves the namespace to ns
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	options := Options{Installation: dayfly.NewInstallation(), Netns: ns, StateDir: t.TempDir() + "/state"}
	n, err := Open(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	id := dayfly.NewID(dayfly.PrefixSandbox)
	for slot := range Slots {
		e := element{slot: slot, id: id, name: linkName(options.Installation, slot, id), address: address(n.block, slot)}
		if back, ok := decodeElement(e.encode(), n.block); !ok || back != e {
			t.Fatalf("slot %d comes back as %+v", slot, back)
		}
		if s, ok := slotOfName(options.Installation, e.name); !ok || s != slot {
			t.Fatalf("name %s means slot %d", e.name, s)
		}
		if err := n.set.add(e); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := n.host.nftables()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseLasting()
	conn.DelTable(&nftables.Table{Name: n.rules.table.Name, Family: nftables.TableFamilyINet})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := n.repair(); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err = Open(context.Background(), options); err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if got := len(n.set.list()); got != Slots {
		t.Errorf("%d permissions came back, want %d", got, Slots)
	}
}
