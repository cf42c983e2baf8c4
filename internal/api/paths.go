package api

import (
	"context"
	"io/fs"
	"net/http"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// statFile shows one entry, a link as a link.
func statFile(c *call, path string) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	info, err := m.Stat(c.ctx(), path)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, showEntry(info))
}

// change runs a change of one path once and answers with the entry as it was then.
func (c *call) change(do func(ctx context.Context, m control.Machine) (dayfly.FileInfo, error)) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	c.mayTakeLong(http.StatusOK)
	return c.once(func(ctx context.Context) (control.Answer, error) {
		info, err := do(ctx, m)
		if err != nil {
			return control.Answer{}, err
		}
		return kept(http.StatusOK, showEntry(info))
	}, nil)
}

// newDirectory is a directory to make.
type newDirectory struct {
	path    string
	mode    *fs.FileMode // nil: 0755
	parents bool
}

func parseMkdir(f *fields) newDirectory {
	d := newDirectory{path: f.path("path", ""), mode: f.mode("mode")}
	parents, given := f.flag("parents")
	d.parents = parents || !given
	return d
}

func mkdir(c *call, d newDirectory) error {
	return c.change(func(ctx context.Context, m control.Machine) (dayfly.FileInfo, error) {
		return m.Mkdir(ctx, d.path, d.mode, d.parents)
	})
}

// move is a path to move.
type move struct {
	from, to  string
	overwrite bool
}

func parseMove(f *fields) move {
	m := move{from: f.path("from", ""), to: f.path("to", "")}
	m.overwrite, _ = f.flag("overwrite")
	return m
}

func moveFile(c *call, to move) error {
	return c.change(func(ctx context.Context, m control.Machine) (dayfly.FileInfo, error) {
		return m.Move(ctx, to.from, to.to, to.overwrite)
	})
}

// newMode is a mode to set.
type newMode struct {
	path      string
	mode      fs.FileMode
	recursive bool
}

func parseChmod(f *fields) newMode {
	n := newMode{path: f.path("path", "")}
	mode := f.mode("mode")
	if _, given := f.in["mode"]; !given {
		f.wrong("mode", "is missing")
	}
	if mode != nil {
		n.mode = *mode
	}
	n.recursive, _ = f.flag("recursive")
	return n
}

func chmod(c *call, n newMode) error {
	return c.change(func(ctx context.Context, m control.Machine) (dayfly.FileInfo, error) {
		return m.Chmod(ctx, n.path, n.mode, n.recursive)
	})
}
