package linux_test

import (
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/drivertest"
)

// withTools gives a harness whose machines have a distribution's programs.
func withTools(t *testing.T) drivertest.Harness {
	t.Helper()
	w := drivertest.NewWorld(t)
	return drivertest.Harness{
		Open:     func(t *testing.T) dayfly.Driver { return open(t, w) },
		Spec:     w.Tools(t),
		Connect:  connect,
		Inside:   "/bin/inside",
		Residue:  w.Residue,
		Isolated: true,
	}
}

func TestCommands(t *testing.T) { drivertest.RunExec(t, withTools(t)) }

func TestFiles(t *testing.T) { drivertest.RunFiles(t, withTools(t)) }
