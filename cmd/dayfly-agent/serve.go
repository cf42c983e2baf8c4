package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly/internal/agent"
)

// What whoever starts "dayfly-agent serve" hands over. Nothing goes by arguments or environment, which others can read.
const (
	listenDescriptor = 3       // a listening stream socket
	configDescriptor = 4       // an agent.Config as JSON, read to its end
	cgroupDescriptor = 5       // directory of a delegated v2 cgroup; may be absent
	configMax        = 4 << 20 // bytes of the configuration
)

// serve runs the agent on what the starter handed over.
func serve(ctx context.Context) error {
	cfg, err := readConfig(os.NewFile(configDescriptor, "config"))
	if err != nil {
		return err
	}
	cfg.Cgroup = inheritedDir(cgroupDescriptor)
	f := os.NewFile(listenDescriptor, "listener")
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("take over listener: %w", err)
	}
	_ = f.Close()
	return agent.Serve(ctx, l, cfg)
}

// inheritedDir gives a directory that was handed over, or nil. A descriptor that was not may be the runtime's own by now: it
// must not become a File, which is closed when it is collected.
func inheritedDir(fd int) *os.File {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	return os.NewFile(uintptr(fd), "cgroup")
}

func readConfig(f *os.File) (cfg agent.Config, err error) {
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, configMax))
	if err != nil {
		return cfg, fmt.Errorf("read configuration: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&cfg); err != nil {
		return cfg, fmt.Errorf("read configuration: %w", err)
	}
	return cfg, nil
}
