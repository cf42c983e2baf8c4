package api

import (
	"net/http"

	"dayfly.dev/dayfly"
)

// launchStdinMax bounds the standard input that a background process is started with, in bytes: it stays here until the process
// has read it.
const launchStdinMax = 4 << 20

// parseLaunch reads a background process: an exec without a stream, and what only such a process has.
func parseLaunch(f *fields) execution {
	e := parseCommand(f)
	if e.stdin != nil && len(*e.stdin) > launchStdinMax {
		f.wrong("stdin", "must have at most %d bytes; send more to …/processes/{id}/stdin", launchStdinMax)
	}
	if name, given := f.text("name"); given {
		if problem := processNameProblem(name); problem != "" {
			f.wrong("name", "%s", problem)
		}
		e.spec.Name = name
	}
	var size dayfly.TerminalSize
	f.object("tty", func(f *fields) { size = parseSize(f) })
	if _, given := f.in["tty"]; given {
		e.spec.Terminal = &size
	}
	restart, _ := f.choice("restart", string(dayfly.RestartNever), string(dayfly.RestartOnFailure))
	e.spec.Restart = dayfly.Restart(restart)
	restarts, given := f.integer("restarts", 1, dayfly.RestartsMax)
	if given && e.spec.Restart != dayfly.RestartOnFailure {
		f.wrong("restarts", "needs restart on-failure")
	}
	e.spec.Restarts = int(restarts)
	return e
}

// parseSize reads the size of a terminal. Both sides are needed, where the object is there at all.
func parseSize(f *fields) dayfly.TerminalSize {
	side := func(name string) int {
		n, _ := f.integer(name, 1, dayfly.TerminalSizeMax)
		if _, given := f.in[name]; !given && f.in != nil {
			f.wrong(name, "is missing")
		}
		return int(n)
	}
	return dayfly.TerminalSize{Cols: side("cols"), Rows: side("rows")}
}

// launch starts a process in the background.
func launch(c *call, e execution) error {
	id, err := c.sandboxID()
	if err != nil {
		return err
	}
	e.spec.OpenStdin = e.keepStdin
	out, err := c.backend.Launch(c.ctx(), c.who, id, e.spec, e.input(), c.key)
	if err != nil {
		return err
	}
	c.replayed(out.Replayed)
	answer := showProcessAt(out.Value, c.backend.Now())
	answer.Replayed = out.Replayed
	return c.answer(http.StatusCreated, answer)
}
