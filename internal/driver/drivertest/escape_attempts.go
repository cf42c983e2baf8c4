package drivertest

// Why there is no control on the host.
const (
	harmful = "it would harm the host"
)

// Why a user-space kernel may let it happen.
const (
	ownMounts   = "a mount of the user-space kernel's own, in a namespace that only it knows"
	ownSettings = "a setting of the user-space kernel, which the host's does not see"
)

var mountAttempts = []attempt{
	{name: "mount a file system", try: "mount tmpfs", want: "EPERM"},
	{name: "mount a second procfs, without masks", try: "mount proc", want: "EPERM"},
	{name: "mount a second sysfs, to write to it", try: "mount sysfs", want: "EPERM"},
	{name: "mount the control groups", try: "mount cgroup2", want: "EPERM"},
	{name: "mount control groups of version 1 for their release_agent", try: "mount cgroup none,name=dayfly-attempt", want: "EPERM"},
	{name: "mount binfmt_misc", try: "mount binfmt_misc", want: "EPERM"},
	{name: "mount debugfs", try: "mount debugfs", want: "EPERM"},
	{name: "mount a device file system", try: "mount devtmpfs", want: "EPERM"},
	{name: "bind mount", try: "bind", want: "EPERM"},
	{name: "remount without read-only", try: "remount /proc/sys", control: "remount /proc", want: "EPERM"},
	{name: "change a mount's attributes", try: "mount_setattr /run/dayfly", control: "mount_setattr /proc", want: "EPERM"},
	{name: "unmount a mask", try: "unmount /proc/sys", control: "unmount /proc", want: "EPERM"},
	{name: "share mounts with another namespace", try: "share", want: "EPERM"},
	{name: "mount an overlay", try: "overlay", want: "EPERM"},
	{name: "mount by descriptors", try: "mount_by_fd", want: "EPERM"},
	{name: "clone a tree of mounts", try: "clone_tree", want: "EPERM"},
	{name: "change the root", try: "pivot", want: "EPERM"},
	{name: "dance out of a changed root", try: "chroot_dance", want: "inside"},
	{name: "open files by handle", try: "handle", want: "EPERM ENOTSUP"},
	{name: "mount in a user namespace", try: "userns mount tmpfs", want: "EPERM", own: ownMounts},
	{name: "mount an overlay in a user namespace", try: "userns overlay", want: "EPERM", own: ownMounts},
	{name: "mount procfs in a user namespace", try: "userns mount proc", control: "userns mount tmpfs", want: "EPERM", own: ownMounts},
	{name: "mount cgroups in a user namespace (CVE-2022-0492)", try: "userns mount cgroup2", control: "userns mount tmpfs", want: "EPERM", own: ownMounts},
}

var nodeAttempts = []attempt{
	{name: "make a node of a disk", try: "mknod b 8 0", control: "mknod c 1 5", want: "EPERM"},
	{name: "make a node of the host's memory", try: "mknod c 1 1", control: "mknod c 1 5", want: "EPERM"},
	{name: "make a node of the kernel's log", try: "mknod c 1 11", control: "mknod c 1 5", want: "EPERM"},
	{name: "make a node of the loop devices", try: "mknod c 10 237", control: "mknod c 1 5", want: "EPERM"},
	{name: "make a node of FUSE", try: "mknod c 10 229", control: "mknod c 1 5", want: "EPERM"},
	{name: "make a node of network tunnels", try: "mknod c 10 200", control: "mknod c 1 5", want: "EPERM"},
	{name: "make a node of the hypervisor", try: "mknod c 10 232", control: "mknod c 1 5", want: "EPERM"},
}

var rightAttempts = []attempt{
	{name: "sys_admin: change the domain name", try: "domainname", want: "EPERM"},
	{name: "sys_module: load a module", try: "module_load", want: "EPERM"},
	{name: "sys_module: unload a module", try: "module_unload", want: "EPERM"},
	{name: "sys_boot: load another kernel", try: "kexec_file", want: "EPERM"},
	{name: "sys_boot: change what Ctrl-Alt-Del does", try: "reboot", want: "EPERM", alone: harmful},
	{name: "sys_rawio: use I/O ports", try: "ports", want: "EPERM ENOSYS"},
	{name: "sys_time: set the clock", try: "clock", want: "EPERM"},
	{name: "sys_time: adjust the clock", try: "adjtimex", want: "EPERM"},
	{name: "syslog: read the kernel's log", try: "syslog", want: "EPERM", own: "the log is the user-space kernel's own, with nothing of the host in it"},
	{name: "sys_pacct: switch accounting", try: "acct", want: "EPERM"},
	{name: "sys_admin: switch a swap area off", try: "swapoff", want: "EPERM"},
	{name: "sys_tty_config: hang the terminal up", try: "vhangup", want: "EPERM", alone: harmful},
	{name: "sys_ptrace: trace another user's process", try: "trace other", want: "EPERM"},
	{name: "sys_resource: raise a hard limit", try: "raise_files", want: "EPERM"},
	{name: "sys_nice: go before all others", try: "nice", want: "EACCES EPERM", own: "its priorities are its own; on the host they are no thread's"},
	{name: "sys_nice: run in real time", try: "realtime", want: "EPERM", own: "the same"},
	{name: "wake_alarm: wake the host", try: "alarm", want: "EPERM"},
	{name: "linux_immutable: make a file that cannot be deleted", try: "immutable", want: "EPERM ENOTTY ENOTSUP"},
	{name: "mac_admin: label a file", try: "xattr security.dayfly", want: "EPERM ENOTSUP"},
	{name: "sys_admin: forge an overlay's marks", try: "xattr trusted.overlay.opaque", want: "EPERM ENOTSUP"},
	{name: "audit_control: switch auditing", try: "audit", want: "EPERM ECONNREFUSED EPROTONOSUPPORT"},
	{name: "take a capability back", try: "capset", want: "EPERM"},
	{name: "take a capability back by the ambient set", try: "ambient", want: "EPERM"},
	{name: "take a capability back by a file", try: "file_caps", want: "EPERM"},
	{name: "map more ids into the machine", try: "write /proc/1/uid_map 0 0 65536", want: "EPERM EACCES", alone: "a map is written once, the host's too"},
}

var kernelAttempts = []attempt{
	{name: "bpf: make a map", try: "bpf", want: "EPERM"},
	{name: "perf: count one's own task", try: "perf", want: "EPERM"},
	{name: "userfaultfd: handle faults", try: "userfaultfd", want: "EPERM"},
	{name: "io_uring: make a ring", try: "io_uring", want: "EPERM"},
	{name: "fanotify: watch the whole file system", try: "fanotify", want: "EPERM"},
	{name: "quotactl: reach the disk's quotas", try: "quota", want: "EPERM"},
	{name: "set the limit of core files to nothing", try: "core_limit", want: "still_1", own: "the user-space kernel starts no program of the host"},
	{name: "kernel addresses in kallsyms", try: "addresses /proc/kallsyms", want: "EPERM EACCES ENOENT"},
	{name: "physical addresses in iomem", try: "addresses /proc/iomem", want: "EPERM EACCES ENOENT"},
	{name: "the kernel's log in /proc/kmsg", try: "open /proc/kmsg", want: "EPERM EACCES ENOENT"},
	{name: "page flags of the host", try: "open /proc/kpageflags", want: "EPERM EACCES ENOENT"},
	{name: "addresses of vmalloc", try: "open /proc/vmallocinfo", want: "EPERM EACCES ENOENT"},
	{name: "slabs of the host", try: "open /proc/slabinfo", want: "EPERM EACCES ENOENT"},
}

var switchAttempts = []attempt{
	{name: "everything in /proc/sys and /sys", try: "writable /proc/sys /sys", control: "writable /proc/sys/net", want: "EROFS EACCES", own: ownSettings},
	{name: "interrupts, buses and file systems in /proc", try: "writable /proc/irq /proc/bus /proc/fs", control: "writable /proc/sys/net", want: "EROFS EACCES", own: ownSettings},
	{name: "core_pattern", try: "open_write /proc/sys/kernel/core_pattern", want: "EROFS EACCES"},
	{name: "modprobe", try: "open_write /proc/sys/kernel/modprobe", want: "EROFS EACCES ENOENT"},
	{name: "uevent_helper", try: "open_write /sys/kernel/uevent_helper", want: "EROFS EACCES ENOENT"},
	{name: "sysrq-trigger", try: "open_write /proc/sysrq-trigger", want: "EROFS EACCES ENOENT", own: ownSettings},
	{name: "binfmt_misc register", try: "open_write /proc/sys/fs/binfmt_misc/register", want: "EROFS EACCES ENOENT"},
	{name: "max_user_namespaces", try: "open_write /proc/sys/user/max_user_namespaces", want: "EROFS EACCES"},
	{name: "ns_last_pid", try: "open_write /proc/sys/kernel/ns_last_pid", want: "EROFS EACCES ENOENT"},
	{name: "power state", try: "open_write /sys/power/state", want: "EROFS EACCES ENOENT"},
	{name: "mtrr", try: "open_write /proc/mtrr", want: "EROFS EACCES ENOENT EPERM"},
	{name: "cgroup.procs in /sys", try: "open_write /sys/fs/cgroup/cgroup.procs", control: "open_write /proc/self/oom_score_adj", want: "EROFS ENOENT EACCES"},
	{name: "IPv6 switched on again", try: "open_write /proc/sys/net/ipv6/conf/all/disable_ipv6", want: "EROFS EACCES ENOENT", own: ownSettings},
	{name: "forwarding switched on", try: "open_write /proc/sys/net/ipv4/ip_forward", want: "EROFS EACCES", own: ownSettings},
}

var networkAttempts = []attempt{
	{name: "net_admin: add an interface", try: "link_add", want: "EPERM"},
	{name: "net_admin: add an address", try: "address", want: "EPERM"},
	{name: "net_admin: take an interface down", try: "lo_down", want: "EPERM"},
	{name: "net_admin: socket buffers beyond the limit", try: "buffer", want: "EPERM"},
	{name: "net_admin: the packet filter", try: "nft", want: "EPERM EPROTONOSUPPORT"},
	{name: "packet filter in a user namespace (CVE-2024-1086)", try: "userns nft", want: "EPERM", own: "the filter of the user-space kernel's own network stack"},
	{name: "tunnels by /dev/net/tun", try: "open /dev/net/tun", want: "ENOENT"},
	{name: "join the network of PID 1", try: "join 1", control: "join 0", want: "EPERM"},
}

var processAttempts = []attempt{
	{name: "descriptors of PID 1", try: "pidfd_getfd 1", control: "pidfd_getfd 0", want: "EPERM"},
	{name: "memory of PID 1 written", try: "vm_write 1", control: "vm_write 0", want: "EPERM"},
	{name: "memory of PID 1 by its file", try: "open_write /proc/1/mem", control: "open_write /proc/self/mem", want: "EACCES EPERM"},
	{name: "executable of PID 1 for writing (CVE-2019-5736)", try: "open_write /proc/1/exe", control: "open_write /proc/self/oom_score_adj", want: "EACCES EPERM"},
	{name: "output of PID 1", try: "open_write /proc/1/fd/1", control: "open_write /proc/self/fd/1", want: "EACCES EPERM ENOENT"},
	{name: "root directory of PID 1", try: "open /proc/1/root/", control: "open /proc/self/root/", want: "EACCES EPERM"},
	{name: "namespaces of PID 1", try: "open /proc/1/ns/mnt", control: "open /proc/self/ns/mnt", want: "EACCES EPERM ENOENT", own: "namespaces of the user-space kernel, of which the machine has one each"},
}
