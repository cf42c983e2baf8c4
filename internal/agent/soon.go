package agent

import (
	"context"

	"dayfly.dev/dayfly"
)

var errSoon = dayfly.Errorf(dayfly.CodeInternal, "soon")

func (a *Agent) Watch(ctx context.Context, path string, recursive bool) (dayfly.ChangeStream, error) {
	return nil, errSoon
}
