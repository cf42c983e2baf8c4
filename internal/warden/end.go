package warden

import (
	"encoding/json"
	"fmt"
	"time"
)

// Cause is why a machine ended, as an enforcer saw it.
type Cause string

// The causes.
const (
	CauseLeaseExpired Cause = "lease_expired"
	CauseEmptied      Cause = "emptied" // its last process ended by itself or was ended by somebody else
	CauseFound        Cause = "found"   // an enforcer came at its deadline and it was dead: since when and why, nobody saw
)

const endMaxBytes = 4 << 10

// End says when and why a machine ended. The first to see it writes it; it is never changed.
type End struct {
	BootID string
	Boot   time.Duration // CLOCK_BOOTTIME of that boot; of CauseFound, when it was found
	Cause  Cause
	Killed bool // the writer found it alive and killed it
}

type endFile struct {
	BootID string `json:"boot_id"`
	BootNS int64  `json:"boottime_ns"`
	Cause  Cause  `json:"cause"`
	Killed bool   `json:"killed"`
}

func encodeEnd(e End) ([]byte, error) {
	return json.Marshal(endFile{BootID: e.BootID, BootNS: int64(e.Boot), Cause: e.Cause, Killed: e.Killed})
}

func decodeEnd(b []byte) (End, error) {
	var f endFile
	if err := decodeStrict(b, &f); err != nil {
		return End{}, err
	}
	if f.Cause != CauseLeaseExpired && f.Cause != CauseEmptied && f.Cause != CauseFound || f.BootID == "" || f.BootNS < 0 {
		return End{}, fmt.Errorf("no end record: cause %.40q", f.Cause)
	}
	return End{BootID: f.BootID, Boot: time.Duration(f.BootNS), Cause: f.Cause, Killed: f.Killed}, nil
}
