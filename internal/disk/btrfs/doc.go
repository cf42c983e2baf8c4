// Package btrfs is the disk pool on btrfs: each disk is a subvolume with a hard limit, made and removed in constant time
// whatever it holds. If the data directory is not on btrfs itself, the pool is one sparse file in it, attached as a loop
// device and mounted. The package speaks to the kernel by ioctl and needs the command mkfs.btrfs once, at first start. It
// makes no snapshots, and it does not protect the data directory from a second process: that is the caller's lock.
//
// Limits are simple quotas (kernel 6.7 and later) or classic quota groups. The second count data that is shared between
// subvolumes against each of them, which does not matter here because every disk is born empty.
//
// To add an operation, put its ioctl into ioctl.go and its meaning into a file of its own.
package btrfs
