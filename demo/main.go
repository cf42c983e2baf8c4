// Command demo shows Dayfly's main job on real input, step by step with the time that each took: a git repository is cloned
// into a clean machine, its dependency installed and its tests run, its artifacts uploaded, the machine deleted; a build
// is extended only while it makes progress; twenty machines outlive a server that was killed, and end on time all the same.
// Git server, package index and upload target run on this machine behind a network namespace. It needs root.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/outside"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// show is what the steps share.
type show struct {
	began time.Time
	srv   *server
	world *outside.World
	api   *sdk.Client
}

func run(ctx context.Context) error {
	s := &show{began: time.Now(), srv: newServer()}
	defer s.close()
	steps := []struct {
		title string
		do    func(context.Context) (string, error)
	}{
		{"start a server with a data directory of its own", s.startServer},
		{"start the outside: git server, package index, upload target", s.startOutside},
		{"job: create, clone, install, test, upload, delete", s.job},
		{"build: extend while it makes progress, then let the lease end it", s.build},
		{"20 machines at once", s.twenty},
		{"kill the server with kill -9; the warden ends the machines on time", s.killServer},
		{"start the server again; it recovers and sweeps", s.restart},
		{"audit: what is on the host against what is recorded", s.audit},
		{"take everything away: down --destroy", s.destroy},
	}
	for i, step := range steps {
		began := time.Now()
		fmt.Printf("%d. %s\n", i+1, step.title)
		said, err := step.do(ctx)
		if err != nil {
			return fmt.Errorf("step %d (%s): %w", i+1, step.title, err)
		}
		fmt.Printf("   %s  [%s]\n", said, took(began))
	}
	fmt.Printf("done in %s\n", took(s.began))
	return nil
}

func took(began time.Time) time.Duration { return time.Since(began).Round(time.Millisecond) }

func (s *show) close() {
	s.srv.close()
	if s.world != nil {
		if err := s.world.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "demo: take the outside away:", err)
		}
	}
}

func (s *show) startServer(ctx context.Context) (string, error) {
	if err := s.srv.up(ctx); err != nil {
		return "", err
	}
	var err error
	s.api, err = s.srv.client()
	return s.srv.url + ", data in " + s.srv.data, err
}

func (s *show) startOutside(ctx context.Context) (string, error) {
	var err error
	s.world, err = outside.Start(ctx, outside.Options{Wheels: "bin/wheels"})
	if err != nil {
		return "", err
	}
	return s.world.URL, nil
}
