package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const (
	crowd      = 20
	crowdLease = 8 * time.Second
	crowdLabel = "demo"
	crowdMax   = crowdLease + 5*time.Second // for the last of them to be gone
)

// twenty makes twenty machines at the same instant and has each answer.
func (s *show) twenty(ctx context.Context) (string, error) {
	began := time.Now()
	var g errgroup.Group
	for range crowd {
		g.Go(func() error {
			box, err := s.api.Create(ctx, sdk.CreateOptions{Timeout: crowdLease, Labels: map[string]string{crowdLabel: "crowd"}})
			if err != nil {
				return err
			}
			_, err = box.Exec(ctx, sdk.Argv("python3", "-c", "print(1)"), sdk.ExecOptions{Check: true})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	return fmt.Sprintf("all of them had run python after %s", took(began)), nil
}

// killServer kills the server and watches the host, not the API: each machine's control group disappears from view as its
// last process ends.
func (s *show) killServer(ctx context.Context) (string, error) {
	alive, err := s.machines()
	if err != nil {
		return "", err
	}
	if err := s.srv.kill(); err != nil {
		return "", err
	}
	fmt.Printf("   the server is dead; %d machines live\n", alive)
	ctx, cancel := context.WithTimeout(ctx, crowdMax)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := s.machines()
		if err != nil {
			return "", err
		}
		if left == 0 {
			return "no process of any machine lives", nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("%d machines outlived their leases", left)
		}
	}
}

// machines counts the sandboxes with a living process by looking at the host's process table.
func (s *show) machines() (int, error) {
	installation, err := os.ReadFile(filepath.Join(s.srv.data, "installation"))
	if err != nil {
		return 0, err
	}
	mark := "/dayfly-" + strings.TrimSpace(string(installation)) + "/sb"
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	ids := map[string]bool{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it ended while we looked
		}
		if _, rest, ok := strings.Cut(string(b), mark); ok {
			id, _, _ := strings.Cut(rest, "\n")
			id, _, _ = strings.Cut(id, "/")
			ids[id] = true
		}
	}
	return len(ids), nil
}

// restart starts the server again and reads from it how the machines ended while it was dead.
func (s *show) restart(ctx context.Context) (string, error) {
	if err := s.srv.up(ctx); err != nil {
		return "", err
	}
	var err error
	if s.api, err = s.srv.client(); err != nil {
		return "", err
	}
	ended, late := 0, time.Duration(0)
	for box, err := range s.api.List(ctx, sdk.ListOptions{Labels: map[string]string{crowdLabel: "crowd"}, IncludeEnded: true}) {
		if err != nil {
			return "", err
		}
		info := box.Info()
		if info.EndReason != "lease_expired" || info.Life.EndedAt == nil || info.Life.CreatedAt == nil {
			return "", fmt.Errorf("%s ended as %q", box.ID, info.EndReason)
		}
		ended++
		late = max(late, info.Life.EndedAt.Sub(info.Life.CreatedAt.Add(crowdLease)))
	}
	if ended != crowd {
		return "", fmt.Errorf("%d of %d are on record", ended, crowd)
	}
	return fmt.Sprintf("%d of %d: lease_expired, the latest %s after its deadline", ended, crowd, late.Round(time.Millisecond)), nil
}

func (s *show) audit(ctx context.Context) (string, error) {
	out, err := s.srv.dayfly(ctx, "audit")
	if err != nil {
		return "", err
	}
	return lastLine(out), nil
}

// destroy ends the demo's installation and shows that nothing of it is left.
func (s *show) destroy(ctx context.Context) (string, error) {
	if _, err := s.srv.dayfly(ctx, "down", "--destroy"); err != nil {
		return "", err
	}
	found, err := s.machines()
	if err != nil {
		return "", err
	}
	if found != 0 {
		return "", errors.New("a process is left")
	}
	out, err := s.srv.dayfly(ctx, "audit")
	if err != nil {
		return "", err
	}
	return lastLine(out), nil
}
