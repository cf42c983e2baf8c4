package cgroup

import (
	"context"

	"dayfly.dev/dayfly"
)

// KillByFreezing is the way to kill on a kernel without cgroup.kill.
func (g *Group) KillByFreezing(ctx context.Context) error { return g.killByFreezing(ctx) }

// ParseMounts runs the mount table's parser.
func ParseMounts(table string) int { return len(parseMounts(table)) }

// Limit writes the limits into a group whose files exist.
func (g *Group) Limit(l dayfly.Limits) error { return g.limit(l) }
