package agent

import (
	"os"
	"time"
)

// try is one run of a process's command. A process that is restarted has several, one after the other.
type try struct {
	p     *process
	stdin input
	pipes [streams]*os.File // stderr's is nil on a terminal
	wide  [streams]bool     // the pipe was made larger; belongs to the stream's pump
	tty   *terminal         // or nil
}

func (p *process) newTry(s stdio) *try {
	if s.tty != nil {
		return &try{p: p, stdin: newInput(s.tty.master, s.tty, &p.fed), pipes: [streams]*os.File{stdout: s.tty.master}, tty: s.tty}
	}
	return &try{p: p, stdin: newInput(s.pipes[0].ours, nil, &p.fed), pipes: [streams]*os.File{s.pipes[1].ours, s.pipes[2].ours}}
}

// parts is how many things must happen before the try is over: the leader's exit and the drain of each stream.
func (t *try) parts() int {
	n := 1
	for _, pipe := range t.pipes {
		if pipe != nil {
			n++
		}
	}
	return n
}

// start starts the pumps.
func (t *try) start() {
	for stream, pipe := range t.pipes {
		if pipe != nil {
			go t.pump(stream)
		}
	}
}

// leaderExited ends the input and wakes the pumps, which then drain.
func (t *try) leaderExited() {
	t.stdin.end()
	for _, pipe := range t.pipes {
		if pipe != nil {
			_ = pipe.SetReadDeadline(time.Unix(1, 0))
		}
	}
}
