package cli

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const (
	barAfter = 300 * time.Millisecond // a copy that is over by then shows nothing
	barEvery = 100 * time.Millisecond
	barWidth = 30 // characters of the bar
)

// copyBar is the line that tells how far a copy is.
type copyBar struct {
	app   *app
	began time.Time
	total int64 // what the copy itself does not know: of a folder to upload; or -1

	mu   sync.Mutex
	bar  *progressbar.ProgressBar // nil until the first step
	seen bool                     // something was shown
	over bool
}

// showProgress gives a context whose copy is shown on standard error, if that is a terminal. finish ends the line.
func (a *app) showProgress(ctx context.Context, from place) (shown context.Context, finish func()) {
	if !isTerminal(a.Stderr) {
		return ctx, func() {}
	}
	p := &copyBar{app: a, began: time.Now(), total: folderBytes(ctx, from)}
	return sdk.WithProgress(ctx, p.report), p.finish
}

// report shows a step.
func (p *copyBar) report(step sdk.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if p.bar == nil {
		total := step.Total
		if total <= 0 {
			total = p.total
		}
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(barWriter{p}), progressbar.OptionShowBytes(true), progressbar.OptionShowCount(),
			progressbar.OptionUseIECUnits(true), progressbar.OptionShowTotalBytes(true), progressbar.OptionSetPredictTime(true),
			progressbar.OptionThrottle(barEvery), progressbar.OptionSetWidth(barWidth), progressbar.OptionSetSpinnerChangeInterval(0))
	}
	_ = p.bar.Set64(step.Bytes) // a bar that cannot be drawn is no failure of the copy
}

// finish ends the line as it stands.
func (p *copyBar) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen && !p.over {
		_, _ = io.WriteString(p.app.Stderr, "\n")
	}
	p.over = true
}

// barWriter is where the bar is drawn: nowhere as long as the copy may be over soon. p.mu is held.
type barWriter struct{ *copyBar }

// Write implements io.Writer.
func (w barWriter) Write(p []byte) (int, error) {
	if !w.seen && time.Since(w.began) < barAfter {
		return len(p), nil
	}
	w.seen = true
	return w.app.Stderr.Write(p)
}

// folderBytes is what the files of a local folder hold, or -1 for anything else. It is a figure to show: what changes meanwhile, or
// cannot be read, is told by the copy itself.
func folderBytes(ctx context.Context, from place) int64 {
	if from.id != "" || from.path == "-" || !isLocalDir(from.path) {
		return -1
	}
	var n int64
	err := filepath.WalkDir(from.path+string(os.PathSeparator), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ctx.Err()
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return ctx.Err()
	})
	if err != nil {
		return -1
	}
	return n
}
