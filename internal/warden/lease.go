package warden

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
)

const (
	leaseVersion  = 1
	leaseMaxBytes = 16 << 10
)

// ErrUnreadable says that a lease file is there but tells nothing: damaged, foreign, of an unknown version, or unreadable
// for now. It never means that there is no lease.
var ErrUnreadable = errors.New("the lease file cannot be read")

// Lease is what a lease file says.
type Lease struct {
	ID           string
	Installation string
	Lease        dayfly.Lease
	Cgroup       cgroup.Paths
}

// leaseFile is the JSON of a lease file.
type leaseFile struct {
	Version      int          `json:"version"`
	ID           string       `json:"id"`
	Installation string       `json:"installation"`
	BootID       string       `json:"boot_id"`
	BornNS       int64        `json:"born_ns"`
	DeadlineNS   int64        `json:"deadline_ns"`
	CeilingNS    int64        `json:"ceiling_ns"`
	Cgroup       cgroup.Paths `json:"cgroup"`
}

// group is the control group that the lease is about.
func (l Lease) group() (*cgroup.Group, error) { return cgroup.Open(l.Cgroup, l.Installation, l.ID) }

// check refuses a lease that no node could have written.
func (l Lease) check() error {
	if l.Lease.BootID == "" || l.Lease.Born < 0 || l.Lease.Deadline < l.Lease.Born || l.Lease.Ceiling < l.Lease.Deadline {
		return errors.New("its times are out of order")
	}
	if l.Lease.Ceiling-l.Lease.Born > dayfly.LeaseCeiling {
		return fmt.Errorf("it grants more than %s", dayfly.LeaseCeiling)
	}
	_, err := l.group()
	return err
}

func encodeLease(l Lease) ([]byte, error) {
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("lease of %s: %w", l.ID, err)
	}
	return json.Marshal(leaseFile{
		Version: leaseVersion, ID: l.ID, Installation: l.Installation, BootID: l.Lease.BootID, BornNS: int64(l.Lease.Born),
		DeadlineNS: int64(l.Lease.Deadline), CeilingNS: int64(l.Lease.Ceiling), Cgroup: l.Cgroup,
	})
}

// decodeLease parses a lease file of id. Anything unexpected is an error.
func decodeLease(id string, b []byte) (Lease, error) {
	var f leaseFile
	if err := decodeStrict(b, &f); err != nil {
		return Lease{}, err
	}
	if f.Version != leaseVersion {
		return Lease{}, fmt.Errorf("unknown version %d", f.Version)
	}
	if f.ID != id {
		return Lease{}, fmt.Errorf("it is about %.40q", f.ID)
	}
	l := Lease{ID: f.ID, Installation: f.Installation, Cgroup: f.Cgroup, Lease: dayfly.Lease{
		BootID: f.BootID, Born: time.Duration(f.BornNS), Deadline: time.Duration(f.DeadlineNS), Ceiling: time.Duration(f.CeilingNS),
	}}
	return l, l.check()
}

// decodeStrict reads exactly one JSON value with no unknown fields.
func decodeStrict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("parse: there is something after its end")
	}
	return nil
}
