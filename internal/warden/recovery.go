package warden

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// unwatchedName is a file in the warden's directory: since when nobody is known to have watched, kept over starts of the
// server that were cut off before they had recovered. Without it, the warden of such a start would pass for one that saw
// what it came too late for.
const unwatchedName = "unwatched"

type unwatchedFile struct {
	BootID string `json:"boot_id"`
	BootNS int64  `json:"boottime_ns"`
	PID    int    `json:"pid,omitempty"` // of the warden that was alive then
}

// BeginRecovery keeps what Unwatched tells until EndRecovery, over any number of starts that are cut off in between. The
// server calls it before it starts a warden.
func (g *Guard) BeginRecovery() error {
	path := filepath.Join(wardenDir(g.opt.DataDir), unwatchedName)
	bootID := g.opt.Clock.Now().BootID
	var kept unwatchedFile
	b, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(b, &kept) == nil && kept.BootID == bootID && kept.BootNS > 0 {
		if before := time.Duration(kept.BootNS); before < g.unwatched {
			g.unwatched, g.watcher = before, kept.PID
		}
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read since when nobody watched: %w", err)
	}
	if b, err = json.Marshal(unwatchedFile{bootID, int64(g.unwatched), g.watcher}); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return fmt.Errorf("make warden directory: %w", err)
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("keep since when nobody watched: %w", err)
	}
	return os.Rename(path+".new", path)
}

// EndRecovery says that every end that happened unwatched has been told.
func (g *Guard) EndRecovery() error {
	err := os.Remove(filepath.Join(wardenDir(g.opt.DataDir), unwatchedName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
