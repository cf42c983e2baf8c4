// Package cgroup is the host's control groups: one Group per sandbox, which everything of that sandbox is born in, is
// limited by and is killed through. It knows two layouts: pure v2, and hybrid, where limits are v1 groups and one v2 group
// beside them does what v1 cannot (kill, freeze, tell when it is empty). It keeps no state and decides nothing: what there
// is on the host is the record.
//
// Names are dayfly-<installation>/<id> below each hierarchy's mount point. To use one more controller, add it to
// controllers in host.go and its limit files to limits.go; both layouts follow.
package cgroup
