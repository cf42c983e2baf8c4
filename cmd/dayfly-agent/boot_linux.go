package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	"dayfly.dev/dayfly/internal/agent"
	"dayfly.dev/dayfly/internal/driver/linux/boot"
)

// bootMachine makes this process PID 1 of a machine of the linux driver, then serves its agent in the same process. It returns
// when the machine could not boot or the agent failed; the driver has been told what happened, if it still listened.
func bootMachine(ctx context.Context) error {
	m, err := boot.Run()
	if err != nil {
		return err
	}
	os.Clearenv() // it tuned the runtime and means nothing to commands
	err = agent.Serve(ctx, &readyListener{Listener: m.Listener, machine: m}, agent.Config{
		User:        m.User,
		Workdir:     m.Workdir,
		Env:         m.Env,
		MemoryBytes: m.Limits.MemoryBytes,
		SwitchUser:  true,
		Granted:     m.Granted,
		GrantFile:   fmt.Sprintf("/proc/self/fd/%d/grant", m.Run.Fd()),
		Cgroup:      m.Cgroup,
		OOMScore:    m.OOMScore,
		OOMEvents:   m.OOMEvents,
	})
	m.Fail(err)
	return err
}

// readyListener tells the driver that the machine is ready once the agent accepts its first connection.
type readyListener struct {
	net.Listener
	machine *boot.Machine
	once    sync.Once
}

// Accept implements net.Listener.
func (l *readyListener) Accept() (net.Conn, error) {
	var err error
	l.once.Do(func() { err = l.machine.Ready() })
	if err != nil {
		return nil, err // nobody waits for this machine any more
	}
	return l.Listener.Accept()
}
