package agentwire

import "io"

// search answers with the matches of a search, batch by batch, and then what it covered.
func (x *exchange) search() error {
	q, err := x.req.search()
	if err != nil {
		return err
	}
	res, err := x.m.Search(x.ctx, q)
	if err != nil {
		return err
	}
	var batch []matchFields
	size := 0
	for _, m := range res.Matches {
		batch = append(batch, fromMatch(m))
		size += len(m.Path) + len(m.Text) + 256
		for _, lines := range [][]string{m.Before, m.After} {
			for _, l := range lines {
				size += len(l) + 16
			}
		}
		if size >= listBatch {
			if err := x.out.json(message{Matches: batch}); err != nil {
				return err
			}
			batch, size = nil, 0
		}
	}
	if len(batch) > 0 {
		if err := x.out.json(message{Matches: batch}); err != nil {
			return err
		}
	}
	return x.out.json(message{Found: &foundFields{Files: res.Files, Skipped: res.Skipped, Truncated: res.Truncated}})
}

// find answers with the entries that were found.
func (x *exchange) find() error {
	q, err := x.req.find()
	if err != nil {
		return err
	}
	entries, truncated, err := x.m.Find(x.ctx, q)
	if err == nil {
		err = x.entries(entries)
	}
	if err != nil {
		return err
	}
	return x.out.json(message{Found: &foundFields{Truncated: truncated}})
}

// watchFiles answers with the changes below a path until it is gone or the client leaves.
func (x *exchange) watchFiles(path string) error {
	stream, err := x.m.Watch(x.ctx, path, x.req.Recursive)
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := x.out.json(message{}); err != nil {
		return err
	}
	for {
		if err := x.out.flush(); err != nil {
			return err
		}
		change, err := stream.Next()
		if err == io.EOF {
			return x.out.frame(frameEnd)
		}
		if err != nil {
			return err
		}
		if err := x.out.json(message{Change: fromChange(change)}); err != nil {
			return err
		}
	}
}
