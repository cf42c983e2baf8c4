package node

import (
	"context"
	"io"
	"io/fs"

	"dayfly.dev/dayfly"
)

// Stat implements control.Machine.
func (b *Box) Stat(ctx context.Context, path string) (dayfly.FileInfo, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	info, err := agent.Stat(ctx, path)
	return info, b.explain(err)
}

// List implements control.Machine.
func (b *Box) List(ctx context.Context, q dayfly.ListQuery) ([]dayfly.FileInfo, string, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return nil, "", err
	}
	entries, next, err := agent.List(ctx, q)
	return entries, next, b.explain(err)
}

// Read implements control.Machine.
func (b *Box) Read(ctx context.Context, path string, r dayfly.FileRange) (dayfly.FileInfo, io.ReadCloser, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.FileInfo{}, nil, err
	}
	info, body, err := agent.Read(ctx, path, r)
	return info, body, b.explain(err)
}

// Write implements control.Machine.
func (b *Box) Write(ctx context.Context, path string, mode *fs.FileMode, r io.Reader) (dayfly.FileInfo, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	info, err := agent.Write(ctx, path, mode, r)
	return info, b.explain(err)
}

// Remove implements control.Machine.
func (b *Box) Remove(ctx context.Context, path string, recursive bool) error {
	agent, err := b.session(ctx)
	if err != nil {
		return err
	}
	return b.explain(agent.Remove(ctx, path, recursive))
}

// ReadArchive implements control.Machine.
func (b *Box) ReadArchive(ctx context.Context, path string) (io.ReadCloser, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	body, err := agent.ReadArchive(ctx, path)
	return body, b.explain(err)
}

// WriteArchive implements control.Machine.
func (b *Box) WriteArchive(ctx context.Context, path string, r io.Reader) error {
	agent, err := b.session(ctx)
	if err != nil {
		return err
	}
	return b.explain(agent.WriteArchive(ctx, path, r))
}

// Mkdir implements control.Machine.
func (b *Box) Mkdir(ctx context.Context, path string, mode *fs.FileMode, parents bool) (dayfly.FileInfo, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	info, err := agent.Mkdir(ctx, path, mode, parents)
	return info, b.explain(err)
}

// Move implements control.Machine.
func (b *Box) Move(ctx context.Context, from, to string, overwrite bool) (dayfly.FileInfo, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	info, err := agent.Move(ctx, from, to, overwrite)
	return info, b.explain(err)
}

// Chmod implements control.Machine.
func (b *Box) Chmod(ctx context.Context, path string, mode fs.FileMode, recursive bool) (dayfly.FileInfo, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.FileInfo{}, err
	}
	info, err := agent.Chmod(ctx, path, mode, recursive)
	return info, b.explain(err)
}

// Search implements control.Machine.
func (b *Box) Search(ctx context.Context, q dayfly.SearchQuery) (dayfly.SearchResult, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return dayfly.SearchResult{}, err
	}
	res, err := agent.Search(ctx, q)
	return res, b.explain(err)
}

// Find implements control.Machine.
func (b *Box) Find(ctx context.Context, q dayfly.FindQuery) ([]dayfly.FileInfo, bool, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return nil, false, err
	}
	entries, truncated, err := agent.Find(ctx, q)
	return entries, truncated, b.explain(err)
}

// Watch implements control.Machine.
func (b *Box) Watch(ctx context.Context, path string, recursive bool) (dayfly.ChangeStream, error) {
	agent, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	s, err := agent.Watch(ctx, path, recursive)
	if err != nil {
		return nil, b.explain(err)
	}
	return &watching{s, b}, nil
}

// watching explains the error that ends a stream of changes.
type watching struct {
	dayfly.ChangeStream
	box *Box
}

func (w *watching) Next() (dayfly.FileChange, error) {
	change, err := w.ChangeStream.Next()
	if err != nil && err != io.EOF {
		err = w.box.explain(err)
	}
	return change, err
}
