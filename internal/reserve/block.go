package reserve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// What a host has of blocks, and a block of slots.
const (
	Blocks        = 14   // all of the 32-bit user ids above the first 2^28, less the last block
	SlotsPerBlock = 4096 // sandboxes of one installation at once
	uidBits       = 28   // of a block: 4096 ranges of 65536
	blocksDir     = "blocks"
	blocksLock    = "lock"
	blockMaxBytes = 64 << 10
)

// Block is an installation's share of what the host has only once: a range of user ids and, by its number, of addresses.
type Block struct {
	Number int
}

// UIDBase is the host user id of the block's first range.
func (b Block) UIDBase() uint32 { return uint32(1+b.Number) << uidBits }

// holder is what a block's file says.
type holder struct {
	Installation string   `json:"installation"`
	DataDir      string   `json:"data_dir"`
	Locks        []string `json:"locks"` // files that a live installation holds a lock on
}

// Checks are what Take asks about the host. Nil functions always agree.
type Checks struct {
	Fits   func(Block) (bool, error)               // a block that does not fit, for example a route's, is passed over
	Unused func(installation string) (bool, error) // no machine of another installation is there
}

// Take reserves a block for an installation, or gives the one that it has. A block is stale, and is taken over, when none of
// its installation's locks (its server's, its warden's) is held and no machine of it is there; one that cannot be told is
// not stale. CodeNoCapacity: no block is left.
func Take(runDir, installation, dataDir string, check Checks) (Block, error) {
	if !dayfly.ValidInstallation(installation) {
		return Block{}, fmt.Errorf("reserve a block: %.40q is no installation id", installation)
	}
	release, err := lockBlocks(runDir)
	if err != nil {
		return Block{}, err
	}
	defer release()
	me := holder{Installation: installation, DataDir: dataDir, Locks: []string{
		filepath.Join(dataDir, "server.lock"), filepath.Join(dataDir, "warden", "lock"),
	}}
	if b, ok, err := find(runDir, installation); err != nil || ok {
		if ok {
			err = errors.Join(err, write(runDir, b, me)) // the data directory may have moved
		}
		return b, err
	}
	for n := range Blocks {
		b := Block{Number: n}
		free := vacant(runDir, b, check.Unused)
		if free && check.Fits != nil {
			if free, err = check.Fits(b); err != nil {
				return b, fmt.Errorf("check block %d: %w", n, err)
			}
		}
		if free {
			return b, write(runDir, b, me)
		}
	}
	return Block{}, dayfly.Errorf(dayfly.CodeNoCapacity, "none of this host's %d blocks of user ids and addresses is free", Blocks).
		WithHint("stop another installation with `dayfly down --destroy`, or choose another network.range")
}

// Find gives the block that an installation holds, if any. It changes nothing.
func Find(runDir, installation string) (b Block, ok bool, err error) {
	return find(runDir, installation)
}

// Release gives an installation's block back. Releasing what it does not hold does nothing.
func Release(runDir, installation string) error {
	release, err := lockBlocks(runDir)
	if err != nil {
		return err
	}
	defer release()
	b, ok, err := find(runDir, installation)
	if err != nil || !ok {
		return err
	}
	if err := os.Remove(path(runDir, b)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release block %d: %w", b.Number, err)
	}
	return nil
}

func path(runDir string, b Block) string {
	return filepath.Join(runDir, blocksDir, strconv.Itoa(b.Number))
}

func find(runDir, installation string) (Block, bool, error) {
	for n := range Blocks {
		h, ok, err := read(runDir, Block{n})
		if err == nil && ok && h.Installation == installation {
			return Block{n}, true, nil
		}
	}
	return Block{}, false, nil
}

// vacant tells whether nobody holds a block. What cannot be told is not vacant.
func vacant(runDir string, b Block, unused func(string) (bool, error)) bool {
	h, ok, err := read(runDir, b)
	if err != nil || !ok {
		return err == nil
	}
	for _, lock := range h.Locks {
		if held, err := Held(lock); held || err != nil {
			return false
		}
	}
	if unused == nil {
		return true
	}
	none, err := unused(h.Installation)
	return none && err == nil
}

func read(runDir string, b Block) (h holder, ok bool, err error) {
	text, err := os.ReadFile(path(runDir, b))
	if errors.Is(err, fs.ErrNotExist) {
		return h, false, nil
	}
	if err == nil && len(text) > blockMaxBytes {
		err = errors.New("too large")
	}
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		return h, false, fmt.Errorf("read block %d: %w", b.Number, err)
	}
	return h, true, nil
}

func write(runDir string, b Block, h holder) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	tmp := path(runDir, b) + ".new"
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return fmt.Errorf("reserve block %d: %w", b.Number, err)
	}
	return os.Rename(tmp, path(runDir, b))
}

// lockBlocks takes the host-wide lock, waiting for others, which hold it for milliseconds.
func lockBlocks(runDir string) (release func(), err error) {
	if err := os.MkdirAll(filepath.Join(runDir, blocksDir), 0o711); err != nil {
		return nil, fmt.Errorf("make %s: %w", runDir, err)
	}
	f, err := os.OpenFile(filepath.Join(runDir, blocksLock), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the host-wide lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("take the host-wide lock: %w", err)
	}
	return func() { _ = f.Close() }, nil
}
