package main

import (
	"context"
	"time"
)

// measurePause takes the times of a pause and of the resume after it, of a sandbox in which something runs.
func measurePause(ctx context.Context, s *server, rounds int) ([]figure, error) {
	id, err := s.create(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.remove(context.WithoutCancel(ctx), id) }()
	if err := s.exec(ctx, id, []string{"sh", "-c", "sleep 1000 >/dev/null 2>&1 &"}, ""); err != nil {
		return nil, err
	}
	took := map[string][]time.Duration{}
	for i := range rounds + warmUp {
		for _, step := range []string{"pause", "resume"} {
			if err := rest(ctx); err != nil {
				return nil, err
			}
			var sb struct{ Status string }
			began := time.Now()
			if err := s.call(ctx, "POST", "/v1/sandboxes/"+id+"/"+step, map[string]any{}, &sb); err != nil {
				return nil, err
			}
			if i >= warmUp {
				took[step] = append(took[step], time.Since(began))
			}
		}
	}
	pause, resume := summarize("pause → 200", took["pause"]), summarize("resume → 200", took["resume"])
	pause.Goal, resume.Goal = "p50 ≤ 5 ms", "p50 ≤ 5 ms"
	return []figure{pause, resume}, nil
}
