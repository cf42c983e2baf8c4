package btrfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/disk"
	"dayfly.dev/dayfly/internal/tree"
)

const nestedDepth = 32 // subvolumes in subvolumes

// Remove implements dayfly.Pool: it renames the disk away, which takes the same time whatever the disk holds, also while
// files of it are open. The reclaimer does the rest.
func (p *Pool) Remove(ctx context.Context, id string) error {
	if err := disk.CheckID(id); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("remove disk %s: %w", id, err)
	}
	err := unix.Renameat(int(p.disks.Fd()), id, int(p.trash.Fd()), id+"."+dayfly.NewInstallation())
	if errors.Is(err, unix.ENOSPC) { // unlike a rename, the kernel lets this use its reserve
		err = p.destroy(ctx, p.disks, id)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return disk.Error("remove disk "+id, err)
	}
	if err == nil {
		p.wake()
	}
	return nil
}

// destroy unlinks the subvolume name in parent and everything nested in it.
func (p *Pool) destroy(ctx context.Context, parent *os.File, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Ino != firstFree {
		return p.destroyPlanted(ctx, parent, name, st.Mode&unix.S_IFMT == unix.S_IFDIR)
	}
	fd, err := openDir(parent, name)
	if err != nil {
		return err
	}
	id, err := subvolumeOf(fd)
	_ = unix.Close(fd)
	if err != nil {
		return fmt.Errorf("find the subvolume: %w", err)
	}
	err = destroySubvolume(int(parent.Fd()), name)
	if errors.Is(err, unix.ENOTEMPTY) {
		if err = p.destroyNested(id, nestedDepth); err == nil {
			err = destroySubvolume(int(parent.Fd()), name)
		}
	}
	if err != nil {
		return err
	}
	p.unlinked(id)
	return nil
}

// destroyPlanted removes what bears the name of a disk and is none: somebody put it there.
func (p *Pool) destroyPlanted(ctx context.Context, parent *os.File, name string, isDir bool) error {
	if !disk.ValidID(name) && !removed(name) {
		return errors.New("it is no disk")
	}
	p.unsettled.Store(true)
	if !isDir {
		return unix.Unlinkat(int(parent.Fd()), name, 0)
	}
	return tree.RemoveAll(ctx, filepath.Join(parent.Name(), name))
}

// removed tells whether an entry of trash or dying has a name that Remove gave it.
func removed(name string) bool {
	id, suffix, ok := strings.Cut(name, ".")
	return ok && disk.ValidID(id) && dayfly.ValidInstallation(suffix)
}

func (p *Pool) destroyNested(id uint64, depth int) error {
	if depth == 0 {
		return fmt.Errorf("subvolumes are nested deeper than %d", nestedDepth)
	}
	fd := int(p.disks.Fd())
	children, err := childrenOf(fd, id)
	if err != nil {
		return fmt.Errorf("list nested subvolumes: %w", err)
	}
	for _, child := range children {
		if err := p.destroyNested(child, depth-1); err != nil {
			return err
		}
		if err := destroySubvolumeByID(fd, child); err != nil {
			return fmt.Errorf("destroy nested subvolume: %w", err)
		}
		p.unlinked(child)
	}
	return nil
}

// unlinked notes that a subvolume waits for its space to come back.
func (p *Pool) unlinked(id uint64) {
	p.mu.Lock()
	p.stale[id] = struct{}{}
	p.mu.Unlock()
	p.unsettled.Store(true)
}
