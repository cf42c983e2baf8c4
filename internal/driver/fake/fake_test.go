package fake_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
	"dayfly.dev/dayfly/internal/driver/drivertest"
	"dayfly.dev/dayfly/internal/driver/fake"
)

func TestConformance(t *testing.T) { drivertest.Run(t, harness(t)) }

func TestCommands(t *testing.T) { drivertest.RunExec(t, harness(t)) }

func TestFiles(t *testing.T) { drivertest.RunFiles(t, harness(t)) }

func harness(t *testing.T) drivertest.Harness {
	t.Helper()
	installation := dayfly.NewInstallation()
	agent, inside := drivertest.Build(t, drivertest.AgentPackage), drivertest.Build(t, drivertest.InsidePackage)
	dir := t.TempDir()
	open := func(t *testing.T) dayfly.Driver {
		d, err := fake.New(installation, agent)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return drivertest.Harness{
		Open: open,
		Spec: func(t *testing.T) dayfly.InstanceSpec {
			id := dayfly.NewID(dayfly.PrefixSandbox)
			run := filepath.Join(dir, id)
			if err := os.MkdirAll(filepath.Join(run, "in"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(run, "in", "grant"), []byte("60"), 0o644); err != nil {
				t.Fatal(err)
			}
			return dayfly.InstanceSpec{ID: id, RunDir: run, Granted: time.Minute}
		},
		Connect: func(ctx context.Context, conn net.Conn) (drivertest.Shell, error) {
			return agentwire.NewClient(ctx, conn)
		},
		Inside: inside,
		Residue: func(t *testing.T) []string {
			ids, err := open(t).List(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			sockets, err := filepath.Glob(dir + "/*/sock")
			if err != nil {
				t.Fatal(err)
			}
			return append([]string{fmt.Sprint("machines ", strings.Join(ids, " "))}, sockets...)
		},
	}
}
