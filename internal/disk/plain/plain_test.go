package plain_test

import (
	"context"
	"os"
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/disk/disktest"
	"dayfly.dev/dayfly/internal/disk/plain"
)

func TestMain(m *testing.M) { disktest.Main(m) }

func TestPool(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("disks belong to root")
	}
	disktest.Run(t, func(t *testing.T) disktest.Fixture {
		dir := t.TempDir()
		t.Cleanup(func() {
			if err := plain.Destroy(context.Background(), dir); err != nil {
				t.Errorf("Destroy: %v", err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
				t.Errorf("after Destroy: %v, %v", entries, err)
			}
		})
		return disktest.Fixture{Open: func(t *testing.T) dayfly.Pool {
			p, err := plain.Open(t.Context(), plain.Options{DataDir: dir})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}}
	})
}
