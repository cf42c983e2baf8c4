package btrfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Trees, object ids and item types of btrfs's own metadata that this package looks at.
const (
	treeRoots = 1
	treeQuota = 8

	objectOrphans = math.MaxUint64 - 4 // BTRFS_ORPHAN_OBJECTID, -5

	itemOrphan       = 48
	itemRoot         = 132
	itemRootRef      = 156
	itemQgroupStatus = 240
	itemQgroupInfo   = 242

	searchBuffer = 64 << 10
	searchMax    = 1 << 20 // items of one search; far more than a pool can hold disks
	searchHead   = 112     // struct btrfs_ioctl_search_args_v2 without its buffer
	itemHead     = 32      // struct btrfs_ioctl_search_header
)

// key is where an item stands in its tree.
type key struct {
	object uint64
	kind   uint32
	offset uint64
}

// item is one found item; its data is valid until the next step of the search.
type item struct {
	key
	data []byte
}

// search calls each for the items of one kind with object ids and offsets within the bounds, in order, until it returns
// false. ENOENT: there is no such tree.
func search(fd int, tree uint64, kind uint32, from, to key, each func(item) bool) error {
	arg := make([]byte, searchHead+searchBuffer)
	at := key{from.object, kind, from.offset}
	for seen := 0; seen < searchMax; {
		copy(arg, words(tree, at.object, to.object, at.offset, to.offset, 0, math.MaxUint64))
		binary.NativeEndian.PutUint32(arg[56:], at.kind)
		binary.NativeEndian.PutUint32(arg[60:], kind)
		binary.NativeEndian.PutUint32(arg[64:], math.MaxUint32)
		binary.NativeEndian.PutUint64(arg[104:], searchBuffer)
		if err := ioctl(fd, iocSearchV2, arg); err != nil {
			return err
		}
		n := int(binary.NativeEndian.Uint32(arg[64:]))
		if n == 0 {
			return nil
		}
		items, err := parseItems(arg[searchHead:], n)
		if err != nil {
			return err
		}
		for _, it := range items {
			if it.kind == kind && it.offset >= from.offset && it.offset <= to.offset && !each(it) {
				return nil
			}
		}
		seen += n
		var more bool
		if at, more = items[n-1].next(); !more {
			return nil
		}
	}
	return fmt.Errorf("a search found more than %d items", searchMax)
}

// next is the least key after k; false means that there is none.
func (k key) next() (key, bool) {
	switch {
	case k.offset < math.MaxUint64:
		k.offset++
	case k.kind < math.MaxUint8:
		k.kind, k.offset = k.kind+1, 0
	case k.object < math.MaxUint64:
		k = key{object: k.object + 1}
	default:
		return key{}, false
	}
	return k, true
}

var errSearchResult = errors.New("the kernel's answer to a search makes no sense")

// parseItems reads n items from b, each a header and its data.
func parseItems(b []byte, n int) ([]item, error) {
	if n < 0 || n > len(b)/itemHead {
		return nil, errSearchResult
	}
	items := make([]item, 0, n)
	for range n {
		if len(b) < itemHead {
			return nil, errSearchResult
		}
		size := binary.NativeEndian.Uint32(b[28:])
		if uint64(size) > uint64(len(b)-itemHead) {
			return nil, errSearchResult
		}
		items = append(items, item{
			key{binary.NativeEndian.Uint64(b[8:]), binary.NativeEndian.Uint32(b[24:]), binary.NativeEndian.Uint64(b[16:])},
			b[itemHead : itemHead+size],
		})
		b = b[itemHead+size:]
	}
	return items, nil
}

// quotaState tells how the file system of fd accounts, and whether its counts are known to be wrong.
func quotaState(fd int) (mode Quota, inconsistent bool, err error) {
	const on, wrong, simple = 1 << 0, 1 << 2, 1 << 3
	mode = QuotaOff
	err = search(fd, treeQuota, itemQgroupStatus, key{}, key{}, func(it item) bool {
		if len(it.data) < 24 {
			return false
		}
		flags := binary.LittleEndian.Uint64(it.data[16:])
		switch {
		case flags&simple != 0:
			mode = QuotaSimple
		case flags&on != 0:
			mode = QuotaClassic
		}
		inconsistent = flags&wrong != 0
		return false
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return mode, inconsistent, err
}

// deadSubvolumes gives the ids of unlinked subvolumes whose space has not come back yet.
func deadSubvolumes(fd int) (map[uint64]bool, error) {
	dead := map[uint64]bool{}
	err := search(fd, treeRoots, itemOrphan, key{object: objectOrphans, offset: firstFree}, key{object: objectOrphans, offset: objectOrphans},
		func(it item) bool { dead[it.offset] = true; return true })
	return dead, err
}

// subvolumeExists tells whether anything of subvolume id is left, unlinked or not.
func subvolumeExists(fd int, id uint64) (bool, error) {
	found := false
	err := search(fd, treeRoots, itemRoot, key{object: id}, key{object: id, offset: math.MaxUint64},
		func(item) bool { found = true; return false })
	return found, err
}

// childrenOf gives the ids of the subvolumes directly in subvolume id.
func childrenOf(fd int, id uint64) ([]uint64, error) {
	var children []uint64
	err := search(fd, treeRoots, itemRootRef, key{object: id}, key{object: id, offset: math.MaxUint64},
		func(it item) bool { children = append(children, it.offset); return true })
	return children, err
}

// qgroups gives what each quota group of a subvolume refers to, in bytes as of the last commit.
func qgroups(fd int, from, to uint64) (map[uint64]uint64, error) {
	groups := map[uint64]uint64{}
	err := search(fd, treeQuota, itemQgroupInfo, key{offset: from}, key{offset: to}, func(it item) bool {
		if len(it.data) >= 16 {
			groups[it.offset] = binary.LittleEndian.Uint64(it.data[8:])
		}
		return true
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return groups, err
}
