// Package cell is what surrounds a machine of the gvisor driver on the host: a process in namespaces of its own (mounts, pids,
// network, names, IPC) that prepares a root directory with nothing of the host in it, starts runsc there, and stays as PID 1
// of that pid namespace, so that whatever runsc leaves behind is reaped, and everything ends with it. The same binary as the agent
// runs it ("dayfly-agent cell"), so hundreds of cells share one copy of its code.
//
// Inside the machine, behind the user-space kernel, the binary runs once more as the agent ("dayfly-agent guest", package
// guest.go here): the cell gives it its configuration on standard input and hears on standard output that it accepts.
//
// Nothing here links gVisor. To give the machine another mount, add it to tree.go (the host's half) and spec.go (the inside).
package cell
