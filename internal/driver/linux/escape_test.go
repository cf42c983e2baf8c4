package linux_test

import (
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/drivertest"
)

func TestEscapes(t *testing.T) {
	w := drivertest.NewWorld(t)
	drivertest.Escapes(t, drivertest.Harness{
		Open:     func(t *testing.T) dayfly.Driver { return open(t, w) },
		Spec:     func(t *testing.T) dayfly.InstanceSpec { return w.Spec(t) },
		Connect:  connect,
		Inside:   "/bin/inside",
		Residue:  w.Residue,
		Isolated: true,
	})
}
