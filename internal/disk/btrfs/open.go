package btrfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/disk"
)

// Quota is how disk limits are enforced.
type Quota string

// The ways. QuotaAuto takes what the file system has on, else simple, else classic.
const (
	QuotaAuto    Quota = "auto"
	QuotaSimple  Quota = "simple"
	QuotaClassic Quota = "classic"
	QuotaOff     Quota = "off" // no limits
)

// Options say where the pool is and how it is made.
type Options struct {
	DataDir string // absolute; the pool is DataDir/pool, its file DataDir/pool.img. Must exist.
	Quota   Quota  // empty means QuotaAuto
	// SizeBytes of the pool's file, which takes room only as it fills; 0 means sizeShare of what is free. An existing pool
	// keeps its size.
	SizeBytes int64
	Discard   bool         // give room of removed disks back to the host
	Log       *slog.Logger // or nil
}

const (
	poolName   = "pool"
	fileName   = "pool.img"
	newName    = "pool.img.new" // being made
	disksName  = "disks"
	trashName  = "trash"
	dyingName  = "dying"
	markerName = "quota-enabled" // in a pool on somebody else's btrfs: we switched quotas on, so we switch them off

	sizeMin     = 1 << 30 // bytes
	sizeShare   = 80      // percent
	hostFreeMin = 512 << 20
)

// Open takes the pool of the data directory, making it at first. It finds a pool that an earlier process left mounted. It
// blocks while a pool is made (below a second) or mounted. CodeUnavailable: this host cannot have one; the hint says what
// to install. CodeDiskFull: there is no room for one.
func Open(ctx context.Context, o Options) (*Pool, error) {
	switch o.Quota {
	case "":
		o.Quota = QuotaAuto
	case QuotaAuto, QuotaSimple, QuotaClassic, QuotaOff:
	default:
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "there is no disk quota %q", o.Quota).WithHint("use auto, simple, classic or off")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.EvalSymlinks(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	if o.DataDir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	hosted, err := onHost(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	if !hosted {
		if err := mountFile(ctx, o); err != nil {
			return nil, disk.Error("open pool", err)
		}
	}
	p, err := open(o, hosted)
	if err != nil {
		return nil, disk.Error("open pool", err)
	}
	return p, nil
}

// onHost tells whether the pool is a directory on the data directory's own btrfs.
func onHost(dataDir string) (bool, error) {
	for _, name := range []string{fileName, newName} {
		if _, err := os.Lstat(filepath.Join(dataDir, name)); err == nil {
			return false, nil
		}
	}
	return isBtrfs(dataDir)
}

// mountFile makes sure that DataDir/pool shows the file system in DataDir/pool.img.
func mountFile(ctx context.Context, o Options) error {
	if err := makeFile(ctx, o); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(o.DataDir, fileName), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	dir := filepath.Join(o.DataDir, poolName)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if done, err := showsFile(dir, file); done || err != nil {
		return err
	}
	dev, err := attachLoop(file)
	if err != nil {
		return dayfly.Errorf(dayfly.CodeUnavailable, "the disk pool's file cannot be attached as a loop device").
			WithHint("the kernel needs loop devices (module loop), see dayfly doctor").WithCause(err)
	}
	defer dev.Close()
	if err := mountDevice(dev.Name(), dir, o.Discard); err != nil {
		return dayfly.Errorf(dayfly.CodeUnavailable, "the disk pool %s cannot be mounted", file.Name()).
			WithHint("see the kernel's log; if the file is damaged, move it away: the disks in it are lost").WithCause(err)
	}
	return nil
}

// showsFile tells whether dir already is the mount of the file. Another mount there is an error.
func showsFile(dir string, file *os.File) (bool, error) {
	m, ok, err := mountAt(dir)
	if err != nil || !ok {
		return false, err
	}
	var want unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &want); err != nil {
		return false, err
	}
	if dev, err := os.Open(m.source); err == nil && m.kind == "btrfs" {
		defer dev.Close()
		if loopHas(dev, &want) {
			return true, nil
		}
	}
	return false, dayfly.Errorf(dayfly.CodeConflict, "%s is a mount of %s, not of the disk pool", dir, m.source).
		WithHint("unmount it first")
}

// makeFile makes the pool's file unless it is there.
func makeFile(ctx context.Context, o Options) error {
	file := filepath.Join(o.DataDir, fileName)
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if reasons, install := checkKernel(); len(reasons) > 0 {
		return dayfly.Errorf(dayfly.CodeUnavailable, "%s", reasons[0]).WithHint("%s", install[0])
	}
	mkfs, err := findMkfs()
	if err != nil {
		return err
	}
	size, err := sizeOf(o)
	if err != nil {
		return err
	}
	tmp := filepath.Join(o.DataDir, newName)
	undo := cleanup.Make(func() { _ = os.Remove(tmp) })
	defer undo.Clean()
	if err := writeSparse(tmp, size); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, mkfs, "--quiet", "--force", "--nodiscard", "--label", "dayfly", "--data", "single", "--metadata", "single", tmp)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the pool's file system: %w: %.500s", err, out)
	}
	if err := os.Rename(tmp, file); err != nil {
		return err
	}
	undo.Release()
	return nil
}

func writeSparse(name string, size int64) error {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// sizeOf decides how large a new pool is.
func sizeOf(o Options) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(o.DataDir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: o.DataDir, Err: err}
	}
	free := int64(st.Bavail) * st.Bsize
	if free < hostFreeMin {
		return 0, dayfly.Errorf(dayfly.CodeDiskFull, "%s has %d MiB free, a disk pool needs %d", o.DataDir, free>>20, hostFreeMin>>20).
			WithHint("free space there or use another data directory")
	}
	size := o.SizeBytes
	if size == 0 {
		size = free / 100 * sizeShare
	}
	const mib = 1 << 20
	return max(size, sizeMin) / mib * mib, nil
}

// open takes hold of a pool whose directory is there.
func open(o Options, hosted bool) (*Pool, error) {
	p := &Pool{dir: filepath.Join(o.DataDir, poolName), log: o.Log, hosted: hosted, discard: o.Discard, kick: make(chan struct{}, 1)}
	if !hosted {
		p.hostDir = o.DataDir
	}
	undo := cleanup.Make(p.closeFiles)
	defer undo.Clean()
	if err := ensureDir(p.dir); err != nil {
		return nil, err
	}
	var err error
	for _, d := range p.parts() {
		dir := filepath.Join(p.dir, d.name)
		if err = ensureDir(dir); err != nil {
			return nil, err
		}
		if *d.file, err = os.Open(dir); err != nil {
			return nil, err
		}
	}
	if ok, err := isBtrfs(p.dir); err != nil || !ok {
		return nil, errors.Join(err, dayfly.Errorf(dayfly.CodeUnavailable, "the disk pool %s is not on btrfs", p.dir))
	}
	if p.quota, err = p.setQuota(o.Quota); err != nil {
		return nil, err
	}
	if err := p.findStale(); err != nil {
		return nil, err
	}
	undo.Release()
	p.start()
	p.wake() // an earlier process may have left work
	return p, nil
}

// part is a directory of the pool and the field that holds it open.
type part struct {
	name string
	file **os.File
}

func (p *Pool) parts() []part {
	return []part{{disksName, &p.disks}, {trashName, &p.trash}, {dyingName, &p.dying}}
}

func ensureDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(dir, 0o700)
}
