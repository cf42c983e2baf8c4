package gvisor

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

//go:embed embedded
var embedded embed.FS

const (
	helperEmbedded = "embedded/dayfly-gvisor.zst"
	helperName     = "dayfly-gvisor"
	helperMax      = 256 << 20 // bytes unpacked
	hashShown      = 16        // characters of a content's hash in its file name
	binaryPerm     = 0o755

	// The packed helper begins with a frame that decoders skip: the hash of what follows, unpacked.
	skipMagic = 0x184D2A50
	skipHead  = 8 // bytes: magic number and size, little endian
)

// errNoHelper says that this binary was built without the helper.
var errNoHelper = dayfly.Errorf(dayfly.CodeUnavailable, "this binary was built without gVisor").
	WithHint("build it with make, which builds and embeds the helper first, or name a runsc of your own with gvisor.runsc_path")

// extract puts the embedded helper into dir, unless it is there already and whole, and gives its path.
func extract(dir string) (string, error) {
	packed, err := embedded.ReadFile(helperEmbedded)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errNoHelper
	}
	if err != nil {
		return "", err
	}
	sum, err := contentSum(packed)
	if err != nil {
		return "", fmt.Errorf("read the embedded gVisor helper: %w", err)
	}
	if err := executable(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, helperName+"-"+hex.EncodeToString(sum)[:hashShown])
	if whole(path, sum) {
		return path, nil
	}
	r, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderMaxMemory(helperMax))
	if err != nil {
		return "", fmt.Errorf("unpack the gVisor helper: %w", err)
	}
	defer r.Close()
	return path, place(path, sum, io.LimitReader(r, helperMax))
}

// contentSum reads the hash that the packed helper begins with.
func contentSum(packed []byte) ([]byte, error) {
	const end = skipHead + sha256.Size
	if len(packed) < end || binary.LittleEndian.Uint32(packed) != skipMagic || binary.LittleEndian.Uint32(packed[4:]) != sha256.Size {
		return nil, errors.New("it has no hash; build it anew")
	}
	return packed[skipHead:end], nil
}

// whole tells whether a file is there with that content: the name is given last, but a disk may lose what it was given. The
// file is read once for each start of the node.
func whole(path string, sum []byte) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != binaryPerm {
		return false
	}
	h := sha256.New()
	_, err = io.Copy(h, io.LimitReader(f, helperMax))
	return err == nil && bytes.Equal(h.Sum(nil), sum)
}

// place writes a file beside its name and gives it its name when it is complete and has the hash. A machine that runs from an
// older file of the name keeps that.
func place(path string, sum []byte, content io.Reader) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return unfit(path, err)
	}
	defer os.Remove(f.Name())
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, h), content)
	if err == nil && !bytes.Equal(h.Sum(nil), sum) {
		err = errors.New("the embedded content is damaged")
	}
	err = errors.Join(err, f.Chmod(binaryPerm), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return unfit(path, err)
	}
	return nil
}

// executable refuses a directory from which nothing can be executed.
func executable(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return unfit(dir+"/", err)
	}
	if st.Flags&unix.ST_NOEXEC != 0 {
		return dayfly.Errorf(dayfly.CodeUnavailable, "gVisor cannot run from %s: its file system is mounted noexec", dir).
			WithHint("put the data directory on a file system that is mounted without noexec, or name a runsc of your own with gvisor.runsc_path")
	}
	return nil
}

// unfit tells that a helper could not be put in place. The driver cannot be used then; the others can.
func unfit(path string, err error) error {
	e := dayfly.Errorf(dayfly.CodeUnavailable, "gVisor could not be unpacked into %s: %s", filepath.Dir(path), reason(err)).WithCause(err)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return e.WithHint("the data directory needs about 100 MiB of room")
	}
	return e.WithHint("the data directory must exist and belong to the server")
}

// reason is an error without the names of temporary files.
func reason(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}
