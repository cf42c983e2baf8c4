package linux_test

import (
	"context"
	"net"
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
	"dayfly.dev/dayfly/internal/driver/drivertest"
	"dayfly.dev/dayfly/internal/driver/linux"
)

func connect(ctx context.Context, conn net.Conn) (drivertest.Shell, error) {
	return agentwire.NewClient(ctx, conn)
}

// open makes a driver, which the test closes.
func open(t testing.TB, w *drivertest.World) *linux.Driver {
	t.Helper()
	d, err := linux.New(linux.Options{Installation: w.Installation, Agent: w.Agent, Scratch: w.Dir})
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
		Isolated: true,
	})
}
