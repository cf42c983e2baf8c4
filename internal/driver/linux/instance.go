package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver/ground"
)

// instance implements dayfly.Instance.
type instance struct {
	*ground.Instance
	runDir string
}

// Dial implements dayfly.Instance.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	return i.DialWith(ctx, func(ctx context.Context) (conn net.Conn, err error) {
		err = shortPath(i.runDir, func(path string) error {
			conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
			return err
		})
		return conn, err
	})
}

// Destroy implements dayfly.Instance.
func (i *instance) Destroy(ctx context.Context) error {
	err := i.Machine.Destroy(ctx)
	if rerr := os.Remove(filepath.Join(i.runDir, socketName)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("destroy %s: %w", i.ID(), rerr))
	}
	return err
}

// Recover implements dayfly.Driver.
func (d *Driver) Recover(ctx context.Context, id string, raw json.RawMessage) (dayfly.Instance, error) {
	i, st, err := d.Retake(ctx, id, raw)
	if err != nil {
		return nil, err
	}
	return &instance{i, st.RunDir}, nil
}
