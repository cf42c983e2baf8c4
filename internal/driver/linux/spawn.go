package linux

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cgroup"
	"dayfly.dev/dayfly/internal/cleanup"
)

const (
	cloneFlags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET |
		syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	agentProcsMax = 4 // threads of the agent that run Go code at once
	bootLogMax    = 4 << 10
)

// child is a cloned machine that boots: PID 1 of it, and the driver's ends of what connects them. It was not waited for yet,
// so its pid cannot belong to anybody else.
type child struct {
	pid     int
	channel *net.UnixConn
	log     *os.File // what PID 1 says on standard error, until it is ready
}

func (c *child) close() {
	_ = c.channel.Close()
	_ = c.log.Close()
}

// open opens one of the child's namespaces.
func (c *child) open(namespace string) (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", c.pid, namespace))
	if err != nil {
		return nil, fmt.Errorf("open %s namespace: %w", namespace, err)
	}
	return f, nil
}

// spawn clones the agent into group and into namespaces of its own.
func (d *Driver) spawn(group *cgroup.Group, spec dayfly.InstanceSpec, cpus []int) (*child, error) {
	var undo, always cleanup.Stack
	defer undo.Clean()
	defer always.Clean()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make boot channel: %w", err)
	}
	always.Add(func() { _ = unix.Close(pair[1]) })
	ours := os.NewFile(uintptr(pair[0]), "boot channel")
	always.Add(func() { _ = ours.Close() }) // FileConn makes a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("make boot channel: %w", err)
	}
	undo.Add(func() { _ = conn.Close() })
	log, logEnd, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make boot log: %w", err)
	}
	undo.Add(func() { _ = log.Close() })
	always.Add(func() { _ = logEnd.Close() })
	c := &child{channel: conn.(*net.UnixConn), log: log}
	err = group.Start(func(v2 int) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return d.cpus.on(cpus, func() error {
			c.pid, err = syscall.ForkExec(fdPath(d.agent), []string{agentName, "boot"}, &syscall.ProcAttr{
				Env:   agentEnv(spec.Limits),
				Files: []uintptr{d.null.Fd(), d.null.Fd(), logEnd.Fd(), uintptr(pair[1])},
				Sys:   cloneAttr(spec.UIDBase, v2),
			})
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("clone the agent: %w", err)
	}
	undo.Release()
	return c, nil
}

// agentEnv keeps the agent's runtime small and away from the host's cgroup files.
func agentEnv(l dayfly.Limits) []string {
	procs := agentProcsMax
	if l.VCPU > 0 {
		procs = min(procs, l.VCPU)
	}
	return []string{"GOMAXPROCS=" + strconv.Itoa(procs), "GODEBUG=containermaxprocs=0,updatemaxprocs=0"}
}

func cloneAttr(base uint32, v2 int) *syscall.SysProcAttr {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(base), Size: dayfly.IDCount}}
	return &syscall.SysProcAttr{
		Cloneflags:                 cloneFlags,
		UidMappings:                ids,
		GidMappings:                ids,
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0},
		Setsid:                     true,
		UseCgroupFD:                true,
		CgroupFD:                   v2,
	}
}
