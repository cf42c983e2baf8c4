// Package boot turns a process that the linux driver has just cloned into PID 1 of a machine: it mounts what belongs inside,
// leaves the host's mount tree, and gives up every right that a machine must not have. It runs inside the agent's binary,
// so there is a single exec between the host and a serving agent; its imports stay small for that reason.
//
// The driver opens everything that needs the host (overlay, device nodes, listening socket) and sends the descriptors with
// a Config over the boot channel; boot never resolves a host path. The root file system is hostile: every path in it is
// opened beneath its root and without magic links before it is mounted on or written to.
//
// It decides nothing: lists of devices, capabilities, masked paths and the seccomp program come in the Config. To add a
// step, add a function to steps in run.go; its name is what a failed start reports.
package boot
