package hostnet_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/hostnet"
)

// TestUserNamespace attaches a real process whose network namespace belongs to a user namespace of its own, as drivers make
// it, and lets it die without a Detach.
func TestUserNamespace(t *testing.T) {
	w := newWorld(t)
	n := w.open()
	const base = 1 << 20
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: 65536}}
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids, GidMappings: ids,
	}
	stdin, err := cmd.StdinPipe()
	must(t, err)
	if err := cmd.Start(); err != nil {
		t.Skipf("user namespaces do not work here: %v", err)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	must(t, err)
	b := box{id: dayfly.NewID(dayfly.PrefixSandbox), slot: hostnet.Slots - 1, ns: ns}
	must(t, n.Attach(context.Background(), b.slot, b.id, ns))
	if got, err := get(ns, internet); err != nil {
		t.Errorf("internet: %q, %v", got, err)
	}
	if _, err := get(ns, resolver); !refused(err) {
		t.Errorf("closed: %v, want it refused", err)
	}
	must(t, ns.Close())
	must(t, stdin.Close())
	must(t, cmd.Wait())
	eventually(t, "the link dies with its namespace", func() bool {
		found, err := n.List(context.Background())
		must(t, err)
		return len(found) == 1 && found[0].Link == "" && found[0].Permitted
	})
	must(t, n.Reclaim(context.Background(), b.id))
	found, err := n.List(context.Background())
	must(t, err)
	if len(found) != 0 {
		t.Errorf("after Reclaim: %+v", found)
	}
}
