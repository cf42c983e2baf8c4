package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// The job's time limits, as a user of the API would choose them.
const (
	jobLease       = 20 * time.Minute
	cloneTimeout   = 2 * time.Minute
	installTimeout = 5 * time.Minute
	testTimeout    = 10 * time.Minute
)

// job is one unit of work: in, work, out, gone.
func (s *show) job(ctx context.Context) (string, error) {
	const upload = "artifacts.tar.gz"
	began := time.Now()
	box, err := s.api.Create(ctx, sdk.CreateOptions{Size: "small", Timeout: jobLease, IdempotencyKey: "demo-job"})
	if err != nil {
		return "", err
	}
	defer func() { _ = box.Delete(context.WithoutCancel(ctx)) }() // an optimisation; the lease is the guarantee
	s.line("create", began, box.ID)
	var tests string
	for _, step := range []struct {
		name, command string
		env           map[string]string
		timeout       time.Duration
	}{
		{"git clone", "git clone --depth 1 $REPO_URL work", map[string]string{"REPO_URL": s.world.CloneURL()}, cloneTimeout},
		{"pip install", "cd work && pip install --user -qr requirements.txt", nil, installTimeout},
		{"pytest", "cd work && python3 -m pytest -q 2>&1 | tail -n 50", nil, testTimeout},
		{"upload", "cd work && tar czf - artifacts | curl -fsS -T - $UPLOAD_URL", map[string]string{"UPLOAD_URL": s.world.UploadURL(upload)}, cloneTimeout},
	} {
		began := time.Now()
		res, err := box.Exec(ctx, sdk.Command(step.command), sdk.ExecOptions{Env: step.env, Timeout: step.timeout, Check: true})
		if err != nil {
			return "", fmt.Errorf("%s: %w", step.name, err)
		}
		said := lastLine(string(res.Stdout))
		if step.name == "pytest" {
			tests = said
		}
		s.line(step.name, began, said)
	}
	files, err := unpack(s.world.Uploads.Get(upload))
	if err != nil {
		return "", fmt.Errorf("look at the uploaded artifacts: %w", err)
	}
	began = time.Now()
	if err := box.Delete(ctx); err != nil {
		return "", err
	}
	s.line("delete", began, "the machine is gone")
	return fmt.Sprintf("tests: %s; %d bytes of artifacts arrived: %s", tests, len(s.world.Uploads.Get(upload)), strings.Join(files, ", ")), nil
}

// The build's pace: short, so that the demo is.
const (
	buildLease  = 6 * time.Second
	buildExtend = 3 * time.Second
	buildLook   = time.Second
	buildLines  = 5 // then progress stops
)

// build watches a long job's log and extends only while work is live. When progress stops, so do the extends, and the lease
// ends the machine by itself.
func (s *show) build(ctx context.Context) (string, error) {
	box, err := s.api.Create(ctx, sdk.CreateOptions{Timeout: buildLease})
	if err != nil {
		return "", err
	}
	loop := fmt.Sprintf("for i in $(seq %d); do echo step $i >> build.log; sleep 1; done; sleep 1000", buildLines)
	if _, err := box.Exec(ctx, sdk.Command("nohup bash -c '"+loop+"' >/dev/null 2>&1 &"), sdk.ExecOptions{Check: true}); err != nil {
		return "", err
	}
	extends, last := 0, ""
	tick := time.NewTicker(buildLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		res, err := box.Exec(ctx, sdk.Command("tail -n 5 build.log"), sdk.ExecOptions{})
		if sdk.IsGone(err) {
			break
		}
		if err != nil {
			return "", err
		}
		if log := string(res.Stdout); log != last {
			last = log
			if _, _, err := box.Extend(ctx, buildExtend); err != nil {
				return "", err
			}
			extends++
		}
	}
	info, err := box.Refresh(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("extended %d times, last line %q; ended: %s", extends, lastLine(last), info.EndReason), nil
}

func (s *show) line(name string, began time.Time, said string) {
	fmt.Printf("   %-12s %7s  %s\n", name, took(began), said)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// unpack gives the names of the files in a tar.gz.
func unpack(b []byte) ([]string, error) {
	if len(b) == 0 {
		return nil, errors.New("nothing was uploaded")
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	var names []string
	for files := tar.NewReader(z); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			names = append(names, h.Name)
		}
	}
}
