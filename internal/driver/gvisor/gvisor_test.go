package gvisor_test

import (
	"context"
	"net"
	"os"
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
	"dayfly.dev/dayfly/internal/driver/drivertest"
	"dayfly.dev/dayfly/internal/driver/gvisor"
)

func connect(ctx context.Context, conn net.Conn) (drivertest.Shell, error) {
	return agentwire.NewClient(ctx, conn)
}

// open makes a driver, which the test closes.
func open(t testing.TB, w *drivertest.World) *gvisor.Driver {
	t.Helper()
	agent, err := os.ReadFile(w.Agent)
	if err != nil {
		t.Fatal(err)
	}
	d, err := gvisor.New(gvisor.Options{Installation: w.Installation, Dir: w.Dir, Agent: func() ([]byte, error) { return agent, nil }, Scratch: w.Dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestConformance(t *testing.T) {
	w := drivertest.NewWorld(t)
	drivertest.Run(t, drivertest.Harness{
		Open:     func(t *testing.T) dayfly.Driver { return open(t, w) },
		Spec:     func(t *testing.T) dayfly.InstanceSpec { return w.Spec(t) },
		Connect:  connect,
		Inside:   "/bin/inside",
		Residue:  w.Residue,
		Isolated: true, UserKernel: true,
	})
}
