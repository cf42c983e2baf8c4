// Package linux is the driver that isolates a machine with kernel namespaces: user (host ids of its own), pid, mount, net,
// uts, ipc and cgroup, with a seccomp allow list, Docker's capabilities, masked paths and cgroup limits. It shares the
// host's kernel: it is for trusted code, at the highest density and speed.
//
// The agent's binary is cloned directly, with the boot code in it (package boot), so there is one exec between Start and a
// serving agent. While it starts, the driver makes what needs the host (overlay, device nodes, listening socket) and sends
// it the descriptors; no host path ever reaches the inside. A machine has no state but its cgroup, its namespaces and a
// socket in its RunDir: killing the cgroup ends all of it.
//
// It does not join running machines (the agent starts everything inside), does not make disks or networks, and keeps no
// records. One more thing that every machine needs is a step in package boot; what must be opened on the host for it is one
// more descriptor in boot.Descriptors.
package linux
