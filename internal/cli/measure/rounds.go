package measure

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// Ids of the figures of a round.
const (
	barePython  = "python"
	bareSpawn   = "spawn"
	boxFirst    = "first_output"
	boxCreate   = "create"
	boxExec     = "exec_true"
	boxPython   = "exec_python"
	boxRequest  = "request"
	boxPause    = "pause"
	boxResume   = "resume"
	boxDelete   = "delete"
	warmUp      = 3 // rounds that do not count
	restBetween = 20 * time.Millisecond
	tellEvery   = 10 // rounds
)

var pythonArgv = []string{python, "-c", "print(1)"}

// roundFigures are the figures of a round in the order of the table.
var roundFigures = []struct{ id, text, floor string }{
	{barePython, "python3 -c 'print(1)' to its first output", ""},
	{bareSpawn, "spawn of true", ""},
	{boxFirst, "create → first output of python3 -c 'print(1)'", barePython},
	{boxCreate, "of that, create", ""},
	{boxExec, "exec true in a live sandbox", bareSpawn},
	{boxPython, "exec python3 -c 'print(1)' in a live sandbox", barePython},
	{boxRequest, "request to a program that runs inside", ""},
	{boxPause, "pause", ""},
	{boxResume, "resume", ""},
	{boxDelete, "DELETE → gone", ""},
}

// answering is a program inside that answers each line at once.
const answering = "import sys\nfor line in iter(sys.stdin.readline, ''): print(line.strip()[::-1], flush=True)"

// live is a sandbox that stays for all rounds, with a program that answers.
type live struct {
	box       *sdk.Sandbox
	isolation string
	talk      *sdk.Attachment
	answers   *bufio.Reader
	stays     bool // it cannot be paused, which was told
}

func (r *run) settle(ctx context.Context, isolation string) (*live, error) {
	box, err := r.boxes.create(ctx, isolation)
	if err != nil {
		return nil, err
	}
	l := &live{box: box, isolation: isolation}
	p, err := box.Start(ctx, sdk.Argv(python, "-c", answering), sdk.ProcessOptions{OpenStdin: true})
	if err != nil {
		return nil, fmt.Errorf("start a program that answers: %w", err)
	}
	if l.talk, err = box.Attach(ctx, p.ID, sdk.AttachOptions{}); err != nil {
		return nil, fmt.Errorf("attach to it: %w", err)
	}
	l.answers = bufio.NewReader(l.talk)
	return l, nil
}

// ask sends the program a line and waits for its answer.
func (l *live) ask() error {
	if _, err := l.talk.Write([]byte("abc\n")); err != nil {
		return err
	}
	line, err := l.answers.ReadString('\n')
	if err == nil && line != "cba\n" {
		err = fmt.Errorf("it answered %q", line)
	}
	return err
}

// rounds takes the interleaved figures.
func (r *run) rounds(ctx context.Context) error {
	var lives []*live
	defer func() {
		for _, l := range lives {
			_ = l.talk.Close()
		}
	}()
	for _, isolation := range r.isolations {
		l, err := r.settle(ctx, isolation)
		if err != nil {
			return fmt.Errorf("%s: %w", isolation, err)
		}
		lives = append(lives, l)
		if err := r.tryPause(ctx, l); err != nil {
			return fmt.Errorf("%s: %w", isolation, err)
		}
	}
	s := samples{}
	for i := range r.Rounds + warmUp {
		if i == warmUp {
			s = samples{}
		}
		if n := i - warmUp; n >= 0 && n%tellEvery == 0 {
			r.Progress(fmt.Sprintf("round %d of %d", n+1, r.Rounds))
		}
		if err := r.bareRound(ctx, s); err != nil {
			return err
		}
		for _, l := range lives {
			if err := r.round(ctx, l, s); err != nil {
				return fmt.Errorf("%s: %w", l.isolation, err)
			}
		}
	}
	for _, isolation := range append([]string{Bare}, r.isolations...) {
		for _, f := range roundFigures {
			if v := s[sampleKey{f.id, isolation}]; len(v) > 0 {
				m := quantiles(f.id, f.text, isolation, Milliseconds, v)
				m.floor = f.floor
				r.keep(m)
			}
		}
	}
	return nil
}

// step is one timed act. Its id is the figure's.
type step struct {
	id string
	do func() error
}

// take does steps, each after a rest in which the aftermath of the one before ends.
func take(ctx context.Context, isolation string, s samples, steps ...step) error {
	for _, st := range steps {
		select {
		case <-time.After(restBetween):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		began := time.Now()
		if err := st.do(); err != nil {
			return fmt.Errorf("%s: %w", st.id, err)
		}
		s.add(st.id, isolation, time.Since(began))
	}
	return nil
}

// bareRound is the floor's part of a round.
func (r *run) bareRound(ctx context.Context, s samples) error {
	if !r.bare {
		return nil
	}
	steps := []step{{bareSpawn, func() error { return exec.CommandContext(ctx, "true").Run() }}}
	if r.python != "" {
		steps = append(steps, step{barePython, func() error { return r.barePrint(ctx) }})
	}
	return take(ctx, Bare, s, steps...)
}

// barePrint starts the interpreter on the bare host and waits for its end.
func (r *run) barePrint(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, r.python, pythonArgv[1:]...).Output()
	if err == nil && string(out) != "1\n" {
		err = fmt.Errorf("python3 said %.100q", out)
	}
	return err
}

// round is one isolation's part of a round.
func (r *run) round(ctx context.Context, l *live, s samples) error {
	var box *sdk.Sandbox
	steps := []step{
		{boxFirst, func() (err error) {
			began := time.Now()
			if box, err = r.boxes.create(ctx, l.isolation); err != nil {
				return err
			}
			s.add(boxCreate, l.isolation, time.Since(began))
			return expect(ctx, box, "1\n", pythonArgv...)
		}},
		{boxExec, func() error { return expect(ctx, l.box, "", "true") }},
		{boxPython, func() error { return expect(ctx, l.box, "1\n", pythonArgv...) }},
		{boxRequest, l.ask},
		{boxDelete, func() error { return r.boxes.remove(ctx, box) }},
	}
	if !l.stays {
		steps = slices.Insert(steps, len(steps)-1, r.pauseSteps(ctx, l)...)
	}
	return take(ctx, l.isolation, s, steps...)
}

// pauseSteps freeze and thaw the sandbox that stays.
func (r *run) pauseSteps(ctx context.Context, l *live) []step {
	return []step{
		{boxPause, func() error {
			_, err := l.box.Pause(ctx)
			return err
		}},
		{boxResume, func() error {
			_, err := l.box.Resume(ctx)
			return err
		}},
	}
}

// tryPause finds out whether the sandbox can be paused at all; a server or an isolation without it is measured without it.
func (r *run) tryPause(ctx context.Context, l *live) error {
	_, err := l.box.Pause(ctx)
	if err == nil {
		_, err = l.box.Resume(ctx)
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.stays = true
	for _, id := range []string{boxPause, boxResume} {
		r.skip(id, l.isolation, err.Error())
	}
	return nil
}
