package plain_test

import (
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/disk/disktest"
	"dayfly.dev/dayfly/internal/disk/plain"
)

func TestPool(t *testing.T) {
	disktest.Run(t, func(t *testing.T) disktest.Fixture {
		dir := t.TempDir()
		t.Cleanup(func() {
			if err := plain.Destroy(t.Context(), dir); err == nil {
				return
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
