package node_test

import (
	"os"
	"testing"

	"dayfly.dev/dayfly/internal/node"
)

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"version":1,"sandbox":{"ID":"sb1"},"slot":3}`))
	f.Add([]byte("{\"version\":1,\"slot\":3}\n{\"version\":1,\"slot\":4}"))
	f.Add([]byte("{\"slot\":3}\n{\"slot\":"))
	f.Add([]byte("\n\n{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, slot, err := node.ParseState(b)
		if err != nil && (id != "" || slot != 0) {
			t.Errorf("a damaged file gives %q, slot %d", id, slot)
		}
	})
}

// TestStateCutOff: a process that dies while it adds to a state file leaves the state before; what came to life is undone.
func TestStateCutOff(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	w.manager.Close()
	b, err := os.ReadFile(w.stateFile(sb.ID))
	if err == nil {
		err = os.WriteFile(w.stateFile(sb.ID), b[:len(b)-2], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	sb.Status = "provisioning"
	rec, err := w.restart(sb)
	if err != nil || len(rec.Ended) != 1 || rec.Ended[0].Reason != "startup_failed" {
		t.Fatalf("Recover = %+v, %v", rec, err)
	}
	w.nothingOf(sb.ID)
	if !w.freeSlot(0) {
		t.Error("its slot is not free")
	}
}
