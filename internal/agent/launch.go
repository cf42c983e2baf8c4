package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/agentwire"
	"dayfly.dev/dayfly/internal/failpoint"
)

// Codes and limits of starting commands.
const (
	codeNotFound  = 127 // as a shell gives them
	codeNoExec    = 126
	argStringMax  = 128<<10 - 1 // bytes of one argument or environment entry: the kernel's MAX_ARG_STRLEN without the NUL
	argTotalMax   = 2 << 20
	argTotalText  = "about 2 MiB"
	forkTextStart = "fork: "
)

// checkSpec refuses what can never be started, whatever is inside.
func checkSpec(spec dayfly.ProcessSpec) error {
	switch {
	case !dayfly.ValidID(dayfly.PrefixProcess, spec.ID):
		return dayfly.Errorf(dayfly.CodeInvalid, "the process id %q is not valid", spec.ID)
	case spec.Command == "" && len(spec.Argv) == 0:
		return dayfly.Errorf(dayfly.CodeInvalid, "command or argv must be given")
	case spec.Command != "" && len(spec.Argv) > 0:
		return dayfly.Errorf(dayfly.CodeInvalid, "command and argv cannot both be given")
	case strings.ContainsRune(spec.Command, 0):
		return dayfly.Errorf(dayfly.CodeInvalid, "command holds a NUL byte")
	case spec.Timeout < 0 && spec.Timeout != dayfly.NoTimeout || spec.Timeout > dayfly.ExecTimeoutMax:
		return dayfly.Errorf(dayfly.CodeInvalid, "the timeout must be at most %s", dayfly.ExecTimeoutMax)
	case spec.CaptureBytes < 0 || spec.CaptureBytes > agentwire.CaptureMax:
		return dayfly.Errorf(dayfly.CodeInvalid, "at most %d bytes of output can be kept", agentwire.CaptureMax)
	case !validName(spec.Name):
		return dayfly.Errorf(dayfly.CodeInvalid, "name: %q is not 1 to %d of the characters a–z, A–Z, 0–9, '_', '.' and '-'", spec.Name, dayfly.ProcessNameMax)
	case spec.Terminal != nil && !validSize(*spec.Terminal):
		return dayfly.Errorf(dayfly.CodeInvalid, "a terminal's sides must be 1 to %d", dayfly.TerminalSizeMax)
	case spec.Restart != "" && spec.Restart != dayfly.RestartNever && spec.Restart != dayfly.RestartOnFailure:
		return dayfly.Errorf(dayfly.CodeInvalid, "restart must be %q or %q", dayfly.RestartNever, dayfly.RestartOnFailure)
	case spec.Restarts < 0 || spec.Restarts > dayfly.RestartsMax:
		return dayfly.Errorf(dayfly.CodeInvalid, "a process can be restarted at most %d times", dayfly.RestartsMax)
	}
	for i, arg := range spec.Argv {
		if strings.ContainsRune(arg, 0) {
			return dayfly.Errorf(dayfly.CodeInvalid, "argv[%d] holds a NUL byte", i)
		}
	}
	if len(spec.Argv) > 0 && spec.Argv[0] == "" {
		return dayfly.Errorf(dayfly.CodeInvalid, "argv[0] is empty")
	}
	for name, value := range spec.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return dayfly.Errorf(dayfly.CodeInvalid, "env: the name %q is not valid: it is empty or holds '=' or a NUL byte", name)
		}
		if strings.ContainsRune(value, 0) {
			return dayfly.Errorf(dayfly.CodeInvalid, "env: the value of %q holds a NUL byte", name)
		}
	}
	return nil
}

// validName tells whether a process may have the name; none is one.
func validName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return len(name) <= dayfly.ProcessNameMax
}

// plan is everything that is settled before the fork.
type plan struct {
	who    identity
	cwd    *os.File // the checked directory
	env    []string
	path   string // of the program, or empty when there is none
	argv   []string
	script *os.File // a command too long for an argument, read by the shell as descriptor 3, or nil
	fail   *failure // the command ends at once with this, or nil
}

// failure is a command that could not run, told as a shell tells it.
type failure struct {
	code int
	text string
}

func (p *plan) close() {
	_ = p.cwd.Close()
	if p.script != nil {
		_ = p.script.Close()
	}
}

// launch starts a command. An error means that it was not started and left no record. stdin may be nil.
func (a *Agent) launch(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) (*process, error) {
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	p := a.newProcess(spec)
	p.tidyAfter(ctx)
	a.untidied.all()
	p.gate <- struct{}{}
	defer func() { <-p.gate }()
	if err := a.table.add(p); err != nil {
		return nil, err
	}
	failpoint.Hit("agent.exec.added")
	if err := p.begin(ctx, spec, stdin); err != nil {
		a.table.abandon(p)
		return nil, err
	}
	failpoint.Hit("agent.exec.started")
	return p, nil
}

// begin begins a try; the caller holds the gate. An error means that the command cannot be started as asked.
func (p *process) begin(ctx context.Context, spec dayfly.ProcessSpec, stdin io.Reader) error {
	plan, err := p.agent.plan(ctx, spec)
	if err != nil {
		return err
	}
	defer plan.close()
	failpoint.Hit("agent.exec.planned")
	if plan.fail == nil {
		plan.fail, err = p.run(plan, spec, stdin)
	}
	if err == nil && plan.fail != nil {
		p.failed(*plan.fail)
	}
	return err
}

// failed ends a try that never ran.
func (p *process) failed(f failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.try, p.again.resting = nil, false
	if p.size != nil {
		p.out[stdout].write([]byte(f.text + "\r\n"))
	} else {
		p.out[stderr].write([]byte(f.text + "\n"))
	}
	p.changedLocked()
	p.status = unix.WaitStatus(f.code << 8)
	p.ended = time.Now()
	p.settleLocked()
}

// pipePair is a pipe of which the agent holds one end, which never blocks a thread.
type pipePair struct {
	ours, theirs *os.File
}

// newPipe makes a pipe owned by the command's user, who may then also open it by its name in /dev.
func newPipe(who identity, weRead bool) (pipePair, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return pipePair{}, fmt.Errorf("make pipe: %w", err)
	}
	mine, other := fds[0], fds[1]
	if !weRead {
		mine, other = fds[1], fds[0]
	}
	if who.change {
		_ = unix.Fchown(other, int(who.uid), int(who.gid))
	}
	_ = unix.SetNonblock(mine, true)
	return pipePair{ours: os.NewFile(uintptr(mine), "pipe"), theirs: os.NewFile(uintptr(other), "pipe")}, nil
}

// stdio are the three standard streams of a command.
type stdio struct {
	pipes [3]pipePair
	tty   *terminal // instead of the pipes, or nil
}

// openStdio makes the pipes of stdout and stderr, and of stdin if there is input, or a terminal.
func (a *Agent) openStdio(who identity, input bool, size *dayfly.TerminalSize) (s stdio, err error) {
	if size != nil {
		if s.tty, err = openTerminal(who, *size); err == nil {
			for i := range s.pipes {
				s.pipes[i].theirs = s.tty.slave
			}
		}
		return s, err
	}
	for i := range s.pipes {
		if i == 0 && !input && a.null != nil {
			s.pipes[0].theirs = a.null
			continue
		}
		if s.pipes[i], err = newPipe(who, i > 0); err != nil {
			s.closeOurs()
			s.closeTheirs(a.null)
			return s, err
		}
	}
	if !input && s.pipes[0].ours != nil {
		_ = s.pipes[0].ours.Close() // an empty pipe is an end of file too
		s.pipes[0].ours = nil
	}
	return s, nil
}

func (s *stdio) closeTheirs(null *os.File) {
	if s.tty != nil {
		return // the agent keeps it
	}
	for _, p := range s.pipes {
		if p.theirs != nil && p.theirs != null {
			_ = p.theirs.Close()
		}
	}
}

func (s *stdio) closeOurs() {
	s.tty.hangUp()
	for _, p := range s.pipes {
		if p.ours != nil {
			_ = p.ours.Close()
		}
	}
}

// run forks the command and starts what serves it. A failure is a result, an error is not.
func (p *process) run(plan *plan, spec dayfly.ProcessSpec, stdin io.Reader) (*failure, error) {
	a := p.agent
	s, err := a.openStdio(plan.who, stdin != nil || spec.OpenStdin, spec.Terminal)
	if err != nil {
		return nil, noResources(err)
	}
	defer s.closeTheirs(a.null)
	leaf, made := p.leaf(), false
	if a.children.cgroup != nil && leaf == nil {
		if leaf = a.children.leaves.take(); leaf == nil {
			leaf, err = newLeaf(a.children.cgroup, p.leafName())
		}
		if err != nil {
			s.closeOurs()
			return nil, noResources(err)
		}
		made = true
	}
	t := p.newTry(s)
	p.enter(t, leaf)
	if fail, err := p.fork(plan, s, leaf); fail != nil || err != nil {
		s.closeOurs()
		p.leave(leaf, made)
		return fail, err
	}
	p.serve(t, spec, stdin)
	return nil, nil
}

// enter notes a try that is about to be forked, whose leader may exit at any time from then on.
func (p *process) enter(t *try, l *leaf) {
	p.agent.oom.enter(p, l != nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.try, p.kin.leaf, p.again.resting = t, l, false
	p.pending, p.leaderUp = t.parts(), true
}

// leave takes enter back; nothing was forked.
func (p *process) leave(l *leaf, made bool) {
	p.mu.Lock()
	p.try, p.leaderUp, p.pending = nil, false, 0
	if made {
		p.kin.leaf = nil
	}
	p.mu.Unlock()
	if made {
		_ = l.remove()
	}
	if made || l == nil {
		p.agent.oom.leave(p)
	}
}

// serve starts the goroutines of a running try, and the clock of all tries.
func (p *process) serve(t *try, spec dayfly.ProcessSpec, stdin io.Reader) {
	t.start()
	if stdin != nil {
		t.stdin.turn <- struct{}{}
		go t.feed(stdin, !spec.OpenStdin && t.tty == nil)
	}
	timeout := spec.Timeout
	if timeout == 0 {
		timeout = dayfly.ExecTimeoutDefault
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit == nil && p.timer == nil && timeout != dayfly.NoTimeout {
		p.again.deadline = p.started.Add(timeout)
		p.timer = time.AfterFunc(timeout, p.expire)
	}
}

// fork starts the leader, once more through the shell if it is a script without an interpreter line.
func (p *process) fork(plan *plan, s stdio, l *leaf) (*failure, error) {
	if tooLong(plan.argv, plan.env) {
		return explain(syscall.E2BIG, plan)
	}
	attr := &syscall.ProcAttr{
		Dir: fdPath(plan.cwd), Env: plan.env,
		Files: []uintptr{s.pipes[0].theirs.Fd(), s.pipes[1].theirs.Fd(), s.pipes[2].theirs.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	if plan.script != nil {
		attr.Files = append(attr.Files, plan.script.Fd())
	}
	if plan.who.change {
		attr.Sys.Credential = &syscall.Credential{Uid: plan.who.uid, Gid: plan.who.gid, Groups: plan.who.groups}
	}
	if s.tty != nil {
		attr.Sys.Setctty, attr.Sys.Ctty = true, 0
	}
	if l != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(l.dir.Fd())
	}
	err := p.agent.children.start(p, plan.path, plan.argv, attr)
	if err == syscall.ENOEXEC && p.agent.isScript(plan) {
		argv := append([]string{"sh", plan.path}, plan.argv[1:]...)
		if shell, _ := findShell("sh"); shell != "" {
			err = p.agent.children.start(p, shell, argv, attr)
		}
	}
	if err == nil {
		return nil, nil
	}
	return explain(err, plan)
}

// tooLong tells what Linux takes in no case. The kernel itself counts a little more; one in user space may take all of it, and
// a command must not depend on where it runs.
func tooLong(lists ...[]string) bool {
	total := 0
	for _, list := range lists {
		for _, s := range list {
			if len(s) > argStringMax {
				return true
			}
			total += len(s) + 1
		}
	}
	return total > argTotalMax
}

// fdPath names an open file of the agent's for a child that has not yet executed.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// explain turns the reason why a program did not start into a result, or an error where the request is at fault.
func explain(err error, plan *plan) (*failure, error) {
	name := plan.argv[0]
	switch {
	case errors.Is(err, syscall.E2BIG):
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "the arguments and environment are too long for the kernel: one entry may have %d bytes, all together %s", argStringMax, argTotalText).
			WithHint("send large input as stdin or as a file; a command string may be long")
	case errors.Is(err, syscall.ENOENT):
		return &failure{codeNotFound, name + ": bad interpreter or loader: No such file or directory"}, nil
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return &failure{codeNoExec, forkTextStart + name + ": " + errnoText(err) + " (the sandbox has reached its limit of processes or memory)"}, nil
	case errors.Is(err, syscall.ENOEXEC):
		return &failure{codeNoExec, name + ": cannot execute binary file: Exec format error"}, nil
	}
	return &failure{codeNoExec, name + ": " + errnoText(err)}, nil
}

// errnoText is the C library's text of an error, as a shell prints it.
func errnoText(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		s := errno.Error()
		return strings.ToUpper(s[:1]) + s[1:]
	}
	return err.Error()
}

// noResources tells that the sandbox has used up something that starting a command needs.
func noResources(err error) error {
	if errors.Is(err, errNotTerminal) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return dayfly.Errorf(dayfly.CodeUnavailable, "the sandbox has no terminals").WithCause(err)
	}
	return dayfly.Errorf(dayfly.CodeUnavailable, "the sandbox has no room for another process").WithCause(err).
		WithHint("end some of its processes")
}
