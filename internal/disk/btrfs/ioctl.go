package btrfs

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The requests of linux/btrfs.h that this package uses.
const (
	iocWrite = 1
	iocRead  = 2

	iocSubvolCreate  = iocWrite<<30 | 4096<<16 | 0x94<<8 | 24
	iocStartSync     = iocRead<<30 | 8<<16 | 0x94<<8 | 24
	iocDestroy       = iocWrite<<30 | 4096<<16 | 0x94<<8 | 15
	iocDestroyV2     = iocWrite<<30 | 4096<<16 | 0x94<<8 | 63
	iocInoLookup     = (iocRead|iocWrite)<<30 | 4096<<16 | 0x94<<8 | 18
	iocSearchV2      = (iocRead|iocWrite)<<30 | 112<<16 | 0x94<<8 | 17
	iocQuotaCtl      = (iocRead|iocWrite)<<30 | 16<<16 | 0x94<<8 | 40
	iocQgroupCreate  = iocWrite<<30 | 16<<16 | 0x94<<8 | 42
	iocQgroupLimit   = iocRead<<30 | 48<<16 | 0x94<<8 | 43
	iocQuotaRescan   = iocWrite<<30 | 64<<16 | 0x94<<8 | 44
	iocSync          = 0x94<<8 | 8
	iocTrim          = (iocRead|iocWrite)<<30 | 24<<16 | 'X'<<8 | 121
	iocForgetDevice  = iocWrite<<30 | 4096<<16 | 0x94<<8 | 5
	volNameMax       = 4039
	volNameAt        = 56 // of struct btrfs_ioctl_vol_args_v2
	volFlagsAt       = 16
	destroyByID      = 1 << 4
	firstFree        = 256 // the object id of every subvolume's root directory, and the least id of a subvolume
	quotaEnable      = 1
	quotaDisable     = 2
	quotaEnableSimpl = 4
	limitReferenced  = 1 // BTRFS_QGROUP_LIMIT_MAX_RFER
)

// ioctl passes arg, which holds no pointers, to the kernel.
func ioctl(fd int, request uintptr, arg []byte) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
		runtime.KeepAlive(arg)
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

func words(v ...uint64) []byte {
	b := make([]byte, 0, 8*len(v))
	for _, w := range v {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return b
}

// volArgs makes a struct btrfs_ioctl_vol_args_v2.
func volArgs(name string) ([]byte, error) {
	if name == "" || len(name) > volNameMax {
		return nil, unix.EINVAL
	}
	b := make([]byte, 4096)
	copy(b[volNameAt:], name)
	return b, nil
}

// createSubvolume makes the empty subvolume name in the directory dir. EEXIST: the name is taken.
func createSubvolume(dir int, name string) error {
	arg, err := volArgs(name)
	if err != nil {
		return err
	}
	return ioctl(dir, iocSubvolCreate, arg)
}

// destroySubvolume unlinks the subvolume name in dir. ENOTEMPTY: it holds subvolumes itself.
func destroySubvolume(dir int, name string) error {
	if name == "" || len(name) > volNameMax {
		return unix.EINVAL
	}
	arg := make([]byte, 4096) // struct btrfs_ioctl_vol_args
	copy(arg[8:], name)
	return ioctl(dir, iocDestroy, arg)
}

// destroySubvolumeByID unlinks a subvolume wherever it is in the file system of fd.
func destroySubvolumeByID(fd int, id uint64) error {
	arg := make([]byte, 4096)
	copy(arg[volFlagsAt:], words(destroyByID))
	copy(arg[volNameAt:], words(id))
	return ioctl(fd, iocDestroyV2, arg)
}

// subvolumeOf gives the id of the subvolume that holds fd.
func subvolumeOf(fd int) (uint64, error) {
	arg := make([]byte, 4096)
	copy(arg[8:], words(firstFree))
	if err := ioctl(fd, iocInoLookup, arg); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(arg), nil
}

func quotaControl(fd int, cmd uint64) error { return ioctl(fd, iocQuotaCtl, words(cmd, 0)) }

// limitSubvolume limits what the subvolume that holds fd may refer to.
func limitSubvolume(fd int, bytes uint64) error {
	return ioctl(fd, iocQgroupLimit, words(0, limitReferenced, bytes, 0, 0, 0))
}

// removeQgroup forgets the accounting of a subvolume that is gone.
func removeQgroup(fd int, id uint64) error { return ioctl(fd, iocQgroupCreate, words(0, id)) }

// startSync begins a commit and does not wait for it.
func startSync(fd int) error { return ioctl(fd, iocStartSync, make([]byte, 8)) }

// trim commits and then gives every free block of the file system back to its device.
func trim(fd int) error {
	if err := ioctl(fd, iocSync, make([]byte, 8)); err != nil {
		return err
	}
	return ioctl(fd, iocTrim, words(0, math.MaxUint64, 0)) // struct fstrim_range
}

// startRescan makes classic quotas count again. EINPROGRESS is success: they do already.
func startRescan(fd int) error {
	err := ioctl(fd, iocQuotaRescan, make([]byte, 64))
	if errors.Is(err, unix.EINPROGRESS) {
		return nil
	}
	return err
}

// forgetDevice drops what the kernel remembers of an unmounted device.
func forgetDevice(device string) error {
	const control = "/dev/btrfs-control"
	fd, err := unix.Open(control, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	arg := make([]byte, 4096)
	copy(arg[8:4095], device)
	return ioctl(fd, iocForgetDevice, arg)
}
