package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	"dayfly.dev/dayfly/internal/agent"
	"dayfly.dev/dayfly/internal/driver/gvisor/cell"
)

// guest serves the agent as PID 1 behind the user-space kernel of the gvisor driver. Its cell has been told what happened
// when it returns an error.
func guest(ctx context.Context) error {
	m, err := cell.Enter()
	if err != nil {
		cell.Failed(err)
		return err
	}
	defer m.Shown.Close() // the path of the grant goes through it: without a holder the collector closes it before the agent has it
	os.Clearenv()         // it tuned the runtime and means nothing to commands
	err = agent.Serve(ctx, &guestListener{Listener: m.Listener}, agent.Config{
		User: m.User, Workdir: m.Workdir, Env: m.Env, MemoryBytes: m.Memory, SwitchUser: true,
		Granted: m.Duration(), GrantFile: fmt.Sprintf("/proc/self/fd/%d/grant", m.Shown.Fd()),
	})
	cell.Failed(err)
	return err
}

// guestListener tells the cell that the machine is ready once the agent accepts its first connection.
type guestListener struct {
	net.Listener
	once sync.Once
}

// Accept implements net.Listener.
func (l *guestListener) Accept() (net.Conn, error) {
	var err error
	l.once.Do(func() { err = cell.Ready() })
	if err != nil {
		return nil, err // nobody waits for this machine any more
	}
	return l.Listener.Accept()
}
