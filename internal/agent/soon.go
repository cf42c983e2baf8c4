package agent

import (
	"context"

	"dayfly.dev/dayfly"
)

var errSoon = dayfly.Errorf(dayfly.CodeInternal, "soon")

func (a *Agent) Resize(ctx context.Context, id string, size dayfly.TerminalSize) error {
	return errSoon
}
func (a *Agent) AwaitPort(ctx context.Context, port int) error { return errSoon }
func (a *Agent) Search(ctx context.Context, q dayfly.SearchQuery) (dayfly.SearchResult, error) {
	return dayfly.SearchResult{}, errSoon
}
func (a *Agent) Find(ctx context.Context, q dayfly.FindQuery) ([]dayfly.FileInfo, bool, error) {
	return nil, false, errSoon
}
func (a *Agent) Watch(ctx context.Context, path string, recursive bool) (dayfly.ChangeStream, error) {
	return nil, errSoon
}
