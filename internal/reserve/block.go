package reserve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"dayfly.dev/dayfly"
)

const (
	blocksName    = "blocks"
	lockName      = "lock"
	blockVersion  = 1
	blockMaxBytes = 16 << 10
	dirMode       = 0o755

	turnTries = 250                   // for the host-wide lock, which is held for milliseconds
	turnWait  = 20 * time.Millisecond // between two tries
)

// Limits of blocks.
const (
	Blocks        = 14   // installations on one host: user ids end at 2^32
	SlotsPerBlock = 4096 // sandboxes of one installation at once
)

// Locks that a live installation holds below its data directory.
const (
	serverLock = "server.lock"
	wardenLock = "warden/lock"
)

// Block is one installation's share of the host's user ids and network addresses.
type Block struct {
	Number       int // 0 ≤ Number < Blocks; the network derives its addresses from it
	Installation string
	DataDir      string
}

// UIDBase is the first host uid (and gid) of the block. Slot n owns the dayfly.IDCount ids from UIDBase + n·dayfly.IDCount.
func (b Block) UIDBase() uint32 { return uint32(b.Number+1) * SlotsPerBlock * dayfly.IDCount }

type blockFile struct {
	Version      int    `json:"version"`
	Installation string `json:"installation"`
	DataDir      string `json:"data_dir"`
}

// Checks are what Take asks about the host. A nil function agrees always.
type Checks struct {
	// Fits tells whether a free block can be used; one that cannot, because a route of the host has its addresses, is passed
	// over. It is not asked about a block that the installation has already.
	Fits func(Block) (bool, error)
	// Unused tells that another installation has no machine on this host.
	Unused func(installation string) (bool, error)
}

// Take gives installation its block, the same one each time until Release or a restart of the host. The caller must hold
// dataDir's server.lock. A block whose installation has no machine, and whose server and warden locks are free, was left
// behind and may be taken over; when any of that cannot be told, it may not. CodeNoCapacity: all blocks are in use. It blocks
// for a few milliseconds, 5 s at most.
func Take(runDir, installation, dataDir string, check Checks) (Block, error) {
	if !dayfly.ValidInstallation(installation) || !filepath.IsAbs(dataDir) {
		return Block{}, dayfly.Errorf(dayfly.CodeInvalid, "no block can be taken for installation %q at %q", installation, dataDir)
	}
	unlock, err := turn(runDir)
	if err != nil {
		return Block{}, err
	}
	defer unlock()
	mine, own, err := Find(runDir, installation)
	if err != nil {
		return Block{}, err
	}
	if !own {
		if mine, err = choose(runDir, check); err != nil {
			return Block{}, err
		}
	}
	mine.Installation, mine.DataDir = installation, dataDir // which may have moved
	return mine, writeBlock(runDir, mine)
}

// choose finds a block that nobody has, or else one that was left behind.
func choose(runDir string, check Checks) (Block, error) {
	var free, stale []Block
	for n := range Blocks {
		b, err := readBlock(runDir, n)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			free = append(free, Block{Number: n})
		case err != nil: // cannot be read: somebody's
		case leftBehind(b, check.Unused):
			stale = append(stale, Block{Number: n})
		}
	}
	for _, b := range append(free, stale...) {
		if check.Fits == nil {
			return b, nil
		}
		fits, err := check.Fits(b)
		if err != nil {
			return Block{}, fmt.Errorf("check block %d: %w", b.Number, err)
		}
		if fits {
			return b, nil
		}
	}
	return Block{}, dayfly.Errorf(dayfly.CodeNoCapacity, "none of this host's %d blocks of user ids and addresses is free", Blocks).
		WithHint("`dayfly down --destroy --data DIR` ends an installation that is not needed (%s lists them), or choose another network.range", filepath.Join(runDir, blocksName))
}

// Find gives the block that an installation has, if any. It changes nothing.
func Find(runDir, installation string) (b Block, ok bool, err error) {
	blocks, err := List(runDir)
	for _, b := range blocks {
		if b.Installation == installation && installation != "" {
			return b, true, nil
		}
	}
	return Block{}, false, err
}

// leftBehind tells whether nothing of a block's installation lives. What cannot be told counts as alive.
func leftBehind(b Block, unused func(string) (bool, error)) bool {
	if unused != nil {
		if none, err := unused(b.Installation); !none || err != nil {
			return false
		}
	}
	for _, lock := range []string{serverLock, wardenLock} {
		if held, err := Held(filepath.Join(b.DataDir, lock)); held || err != nil {
			return false
		}
	}
	return true
}

// Release gives installation's block back. Releasing none succeeds.
func Release(runDir, installation string) error {
	unlock, err := turn(runDir)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for n := range Blocks {
		b, err := readBlock(runDir, n)
		if err != nil || b.Installation != installation {
			continue
		}
		if err := os.Remove(blockPath(runDir, n)); err != nil {
			errs = append(errs, fmt.Errorf("release block %d: %w", n, err))
		}
	}
	return errors.Join(errs...)
}

// List gives the blocks that are taken, in order. One that cannot be read is listed with its number alone.
func List(runDir string) ([]Block, error) {
	var out []Block
	for n := range Blocks {
		b, err := readBlock(runDir, n)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			b = Block{Number: n}
		}
		out = append(out, b)
	}
	return out, nil
}

// turn takes the host-wide lock.
func turn(runDir string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(runDir, blocksName), dirMode); err != nil {
		return nil, fmt.Errorf("make %s: %w", runDir, err)
	}
	for range turnTries {
		f, err := Lock(filepath.Join(runDir, lockName))
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, ErrHeld) {
			return nil, err
		}
		time.Sleep(turnWait)
	}
	return nil, dayfly.Errorf(dayfly.CodeUnavailable, "another Dayfly on this host has held %s for %s", filepath.Join(runDir, lockName), turnTries*turnWait).
		WithHint("look for a stopped dayfly process")
}

func blockPath(runDir string, n int) string {
	return filepath.Join(runDir, blocksName, strconv.Itoa(n))
}

func readBlock(runDir string, n int) (Block, error) {
	f, err := os.Open(blockPath(runDir, n))
	if err != nil {
		return Block{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, blockMaxBytes))
	if err != nil {
		return Block{}, fmt.Errorf("read block %d: %w", n, err)
	}
	file, err := decodeBlock(b)
	if err != nil {
		return Block{}, fmt.Errorf("read block %d: %w", n, err)
	}
	return Block{Number: n, Installation: file.Installation, DataDir: file.DataDir}, nil
}

func decodeBlock(b []byte) (blockFile, error) {
	var f blockFile
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return blockFile{}, err
	}
	if f.Version != blockVersion || !dayfly.ValidInstallation(f.Installation) || !filepath.IsAbs(f.DataDir) {
		return blockFile{}, fmt.Errorf("version %d, installation %.20q, data directory %.40q", f.Version, f.Installation, f.DataDir)
	}
	return f, nil
}

// writeBlock replaces a block's file, whole or not at all.
func writeBlock(runDir string, b Block) error {
	text, err := json.Marshal(blockFile{Version: blockVersion, Installation: b.Installation, DataDir: b.DataDir})
	if err != nil {
		return fmt.Errorf("write block %d: %w", b.Number, err)
	}
	temp := filepath.Join(runDir, blocksName, ".new") // one writer at a time has the turn
	if err := os.WriteFile(temp, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write block %d: %w", b.Number, err)
	}
	if err := os.Rename(temp, blockPath(runDir, b.Number)); err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("write block %d: %w", b.Number, err)
	}
	return nil
}
