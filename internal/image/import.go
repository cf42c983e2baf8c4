package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
	"dayfly.dev/dayfly/internal/tree"
)

// Limits bound what an archive may hold. Zero fields mean those of DefaultLimits.
type Limits struct {
	Files      int64 // entries
	TotalBytes int64 // of all files, unpacked
	FileBytes  int64 // of one file
	NameBytes  int   // of one component of a path
	PathBytes  int   // of a whole path, link targets too
	Depth      int   // components of a path
	// Ratio is how many times larger the unpacked archive may be than the compressed one, beyond RatioFreeBytes.
	Ratio          int64
	RatioFreeBytes int64
}

// DefaultLimits admit any sensible root file system and stop bombs before they hurt.
func DefaultLimits() Limits {
	return Limits{
		Files:          4_000_000,
		TotalBytes:     128 << 30,
		FileBytes:      32 << 30,
		NameBytes:      255,
		PathBytes:      4095,
		Depth:          128,
		Ratio:          200,
		RatioFreeBytes: 256 << 20,
	}
}

// Progress is how far an import has come.
type Progress struct {
	ReadBytes     int64 // of the input
	UnpackedBytes int64
	Files         int64
}

// ImportOptions say what the archive itself does not. What they leave empty comes from the file /etc/dayfly/image.json of
// the image if it has one (fields user, workdir, env), else from its /etc/passwd.
type ImportOptions struct {
	User      string // name or numeric id, or empty: uid 1000 of the image, else root
	Workdir   string // absolute, must exist in the image; or empty: the user's home
	Env       map[string]string
	Limits    Limits
	CreatedAt time.Time      // zero means now
	Progress  func(Progress) // or nil; called from the importing goroutine, at most every progressBytes of input
}

const progressBytes = 4 << 20

// Import unpacks the tar file r, plain or compressed by gzip or zstd, as a new image. It reads r to its end and takes as
// long as that takes. CodeInvalid: r is no such archive, or holds what a root file system may not; the message names the
// entry. CodeTooLarge: it exceeds a limit. CodeDiskFull: no room. On any error nothing of it is left.
func (s *Store) Import(ctx context.Context, name string, r io.Reader, o ImportOptions) (dayfly.Image, error) {
	if !ValidName(name) {
		return dayfly.Image{}, dayfly.Errorf(dayfly.CodeInvalid, "%q is not an image name", name).
			WithHint("use 1 to %d lower-case letters, digits, '.', '_' and '-', the first a letter or digit", nameMax)
	}
	id := dayfly.NewID(dayfly.PrefixImage)
	tmp := filepath.Join(s.dir, tmpPrefix+id)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return dayfly.Image{}, diskError(fmt.Errorf("import image: %w", err))
	}
	img, err := s.unpack(ctx, tmp, r, o)
	if err == nil {
		img.ID, img.Name = id, name
		failpoint.Hit("image.import.unpacked")
		err = s.publish(tmp, img)
	}
	if err != nil {
		err = errors.Join(err, tree.RemoveAll(context.WithoutCancel(ctx), tmp))
		return dayfly.Image{}, diskError(fmt.Errorf("import image %s: %w", name, err))
	}
	return img, nil
}

// unpack fills tmp/rootfs from r and finds out everything about the image but its id and name.
func (s *Store) unpack(ctx context.Context, tmp string, r io.Reader, o ImportOptions) (dayfly.Image, error) {
	in := &input{ctx: ctx, r: r, sum: sha256.New()}
	root := filepath.Join(tmp, rootName)
	if err := os.Mkdir(root, 0o755); err != nil {
		return dayfly.Image{}, err
	}
	u, err := newUnpacker(root, in, o)
	if err != nil {
		return dayfly.Image{}, err
	}
	defer u.close()
	if err := u.run(); err != nil {
		if in.err != nil { // the input broke; what the archive reader made of it does not matter
			return dayfly.Image{}, in.err
		}
		return dayfly.Image{}, err
	}
	img := dayfly.Image{
		Digest:    "sha256:" + hex.EncodeToString(in.sum.Sum(nil)),
		SizeBytes: u.bytes, Files: u.files, CreatedAt: o.CreatedAt.UTC(),
	}
	if o.CreatedAt.IsZero() {
		img.CreatedAt = time.Now().UTC()
	}
	return img, describe(u.root, &img, o)
}

// publish makes the unpacked image durable and visible, in this order.
func (s *Store) publish(tmp string, img dayfly.Image) error {
	if err := writeRecord(tmp, img); err != nil {
		return err
	}
	d, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	failpoint.Hit("image.import.record")
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	failpoint.Hit("image.import.synced")
	if err := os.Rename(tmp, filepath.Join(s.dir, img.ID)); err != nil {
		return err
	}
	failpoint.Hit("image.import.renamed")
	return d.Sync()
}

// describe fills in user, workdir and environment.
func describe(root *os.File, img *dayfly.Image, o ImportOptions) error {
	c, err := readConfig(root)
	if err != nil {
		return err
	}
	if o.User != "" {
		c.User, c.Workdir = o.User, "" // the workdir went with the user
	}
	if o.Workdir != "" {
		c.Workdir = o.Workdir
	}
	env := maps.Clone(c.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, o.Env)
	if err := checkEnv(env); err != nil {
		return err
	}
	img.Env = env
	if img.User, err = findUser(root, c.User); err != nil {
		return err
	}
	if c.Workdir == "" {
		c.Workdir = img.User.Home
	}
	if img.Workdir, err = cleanWorkdir(root, c.Workdir); err != nil {
		return err
	}
	return nil
}

// input counts and hashes what is read, obeys ctx, and remembers why reading failed.
type input struct {
	ctx  context.Context
	r    io.Reader
	sum  hash.Hash
	read atomic.Int64 // a decompressor reads ahead in goroutines of its own, which end before err and sum are looked at
	err  error        // of r or ctx, or nil; io.EOF is none
}

func (in *input) Read(p []byte) (int, error) {
	if in.err != nil {
		return 0, in.err
	}
	if err := in.ctx.Err(); err != nil {
		in.err = err
		return 0, err
	}
	n, err := in.r.Read(p)
	in.sum.Write(p[:n])
	in.read.Add(int64(n))
	if err != nil && err != io.EOF {
		in.err = fmt.Errorf("read the archive: %w", err)
		err = in.err
	}
	return n, err
}

// diskError turns the kernel's "no room" into the user's.
func diskError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return dayfly.Errorf(dayfly.CodeDiskFull, "there is no room on the host for the image").
			WithHint("free space in the data directory or remove images that are not used").WithCause(err)
	}
	return err
}
