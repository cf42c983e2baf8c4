package machine_test

import (
	"testing"

	"dayfly.dev/dayfly/internal/driver/machine"
)

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"version":1,"pid":2,"start_ticks":3,"run_dir":"/x","cpus":[0,1]}`))
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		st, err := machine.Parse(raw)
		if err == nil && (st.PID <= 0 || st.RunDir == "") {
			t.Errorf("accepted %+v", st)
		}
	})
}
