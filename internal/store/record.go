package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"dayfly.dev/dayfly"
)

// sandboxColumns is every column of a sandbox, in the order of sandboxArgs and scanSandbox.
const sandboxColumns = "id, account, rev, name, status, wanted, node, driver, end_reason, image, image_id, spec, labels, env_names, " +
	"lease_boot, lease_born, lease_deadline, lease_ceiling, created_at, ready_at, ended_at, ready_boot, ended_boot"

// specRecord is a dayfly.SandboxSpec at rest. It has no field for the values of env.
type specRecord struct {
	Size        string           `json:"size"`
	VCPU        int              `json:"vcpu"`
	MemoryBytes int64            `json:"memory_bytes"`
	DiskBytes   int64            `json:"disk_bytes"`
	PIDs        int              `json:"pids"`
	Isolation   dayfly.Isolation `json:"isolation"`
	TimeoutNS   int64            `json:"timeout_ns"`
	Internet    bool             `json:"internet"`
}

// sandboxRow is a sandbox as it is stored.
type sandboxRow struct {
	dayfly.Sandbox
	imageID string // which image the name meant when the sandbox was made; empty: unknown
}

func sandboxArgs(r sandboxRow) ([]any, error) {
	sb := r.Sandbox
	spec, err := json.Marshal(specRecord{
		Size: sb.Spec.Size, VCPU: sb.Spec.Limits.VCPU, MemoryBytes: sb.Spec.Limits.MemoryBytes, DiskBytes: sb.Spec.Limits.DiskBytes,
		PIDs: sb.Spec.Limits.PIDs, Isolation: sb.Spec.Isolation, TimeoutNS: int64(sb.Spec.Timeout), Internet: sb.Spec.Network.Internet,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the spec: %w", err)
	}
	labels, err := encodeLabels(sb.Labels)
	if err != nil {
		return nil, err
	}
	names := slices.Clone(sb.EnvNames)
	slices.Sort(names)
	env, err := json.Marshal(names)
	if err != nil {
		return nil, fmt.Errorf("encode the names of env: %w", err)
	}
	return []any{
		sb.ID, sb.Account, sb.Rev, sb.Name, string(sb.Status), string(sb.Wanted), sb.Node, string(sb.Driver), string(sb.End),
		sb.Spec.Image, r.imageID, string(spec), labels, string(env),
		sb.Lease.BootID, int64(sb.Lease.Born), int64(sb.Lease.Deadline), int64(sb.Lease.Ceiling),
		micros(sb.Times.CreatedAt), micros(sb.Times.ReadyAt), micros(sb.Times.EndedAt),
		int64(sb.Times.ReadyBoot), int64(sb.Times.EndedBoot),
	}, nil
}

func encodeLabels(labels map[string]string) (string, error) {
	if len(labels) == 0 {
		return "{}", nil
	}
	b, err := json.Marshal(labels)
	if err != nil {
		return "", fmt.Errorf("encode the labels: %w", err)
	}
	return string(b), nil
}

// scanSandbox reads a row of sandboxColumns. Labels are never nil.
func scanSandbox(row scanner) (sandboxRow, error) {
	var (
		r                     sandboxRow
		spec, labels, env     []byte
		created, ready, ended int64
		sb                    = &r.Sandbox
	)
	err := row.Scan(&sb.ID, &sb.Account, &sb.Rev, &sb.Name, &sb.Status, &sb.Wanted, &sb.Node, &sb.Driver, &sb.End,
		&sb.Spec.Image, &r.imageID, &spec, &labels, &env,
		&sb.Lease.BootID, &sb.Lease.Born, &sb.Lease.Deadline, &sb.Lease.Ceiling, &created, &ready, &ended,
		&sb.Times.ReadyBoot, &sb.Times.EndedBoot)
	if err != nil {
		return sandboxRow{}, err
	}
	var s specRecord
	for _, part := range []struct {
		text []byte
		to   any
	}{{spec, &s}, {labels, &sb.Labels}, {env, &sb.EnvNames}} {
		if err := json.Unmarshal(part.text, part.to); err != nil {
			return sandboxRow{}, fmt.Errorf("decode sandbox %s: %w", sb.ID, err)
		}
	}
	if sb.Labels == nil {
		sb.Labels = make(map[string]string)
	}
	sb.Spec.Size, sb.Spec.Isolation, sb.Spec.Timeout = s.Size, s.Isolation, time.Duration(s.TimeoutNS)
	sb.Spec.Limits = dayfly.Limits{VCPU: s.VCPU, MemoryBytes: s.MemoryBytes, DiskBytes: s.DiskBytes, PIDs: s.PIDs}
	sb.Spec.Network.Internet, sb.Spec.ImageID = s.Internet, r.imageID
	sb.Times.CreatedAt, sb.Times.ReadyAt, sb.Times.EndedAt = wall(created), wall(ready), wall(ended)
	return r, nil
}

// micros is a time at rest: UTC microseconds since 1970, 0 for none.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// wall is the reverse of micros.
func wall(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
