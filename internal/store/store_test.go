package store_test

import (
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/store"
	"dayfly.dev/dayfly/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) dayfly.Store { return open(t) })
	})
	t.Run("memory", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) dayfly.Store {
			db, err := store.Open(t.Context(), ":memory:", store.Options{})
			if err != nil {
				t.Fatalf("Open: %v", err)
			}
			t.Cleanup(func() { _ = db.Close() })
			return db
		})
	})
}
