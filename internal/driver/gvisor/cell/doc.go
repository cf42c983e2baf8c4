// Package cell is what surrounds a machine of the gvisor driver on the host: a process in namespaces of its own (user, mounts,
// pids, network, names, IPC) that builds a root directory with nothing of the host in it, starts runsc there, and stays as PID 1
// of that pid namespace: whatever runsc leaves behind is reaped, and everything ends with it. Root of the cell is an ordinary
// user on the host, from the machine's own range of ids, and so are the user-space kernel and its file server.
//
// The same binary as the agent runs it ("dayfly-agent cell"), so hundreds of cells share one copy of its code. Behind the
// user-space kernel the binary runs once more as the agent ("dayfly-agent guest", guest.go): the cell gives it its configuration
// on standard input and hears on standard output that it accepts.
//
// Nothing here links gVisor, and no path of the host is resolved here: the driver sends descriptors. The image is hostile; what
// is touched in its root file system goes through package beneath, before runsc looks at it. To give the machine another mount,
// add its mount point to tree.go and the mount to spec.go.
package cell
