package gvisor

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

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
)

// errNoHelper says that this binary was built without the helper.
var errNoHelper = dayfly.Errorf(dayfly.CodeUnavailable, "this binary was built without gVisor").
	WithHint("build it with make, which builds and embeds the helper first, or name a runsc of your own with gvisor.runsc_path")

// extract puts the embedded helper into dir, unless it is there already, and gives its path.
func extract(dir string) (string, error) {
	packed, err := embedded.ReadFile(helperEmbedded)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errNoHelper
	}
	if err != nil {
		return "", err
	}
	path := contentPath(dir, helperName, packed)
	if whole(path) {
		return path, nil
	}
	r, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderMaxMemory(helperMax))
	if err != nil {
		return "", fmt.Errorf("unpack the gVisor helper: %w", err)
	}
	defer r.Close()
	return path, place(path, io.LimitReader(r, helperMax))
}

// keep puts a binary into dir, unless it is there already, and gives its path.
func keep(dir, name string, content []byte) (string, error) {
	path := contentPath(dir, name, content)
	if whole(path) {
		return path, nil
	}
	return path, place(path, bytes.NewReader(content))
}

// contentPath names a file by what is in it, so an upgrade never changes the file that a machine runs from.
func contentPath(dir, name string, content []byte) string {
	sum := sha256.Sum256(content)
	return filepath.Join(dir, name+"-"+hex.EncodeToString(sum[:])[:hashShown])
}

// whole tells whether a file was put there completely: it got its name last.
func whole(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm() == binaryPerm
}

// place writes a file beside its name and gives it its name when it is complete.
func place(path string, content io.Reader) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return unfit(path, err)
	}
	defer os.Remove(f.Name())
	_, err = io.Copy(f, content)
	err = errors.Join(err, f.Chmod(binaryPerm), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return unfit(path, err)
	}
	return nil
}

// unfit tells that a helper could not be put in place. The driver cannot be used then; the others can.
func unfit(path string, err error) error {
	return dayfly.Errorf(dayfly.CodeUnavailable, "gVisor could not be unpacked into %s", filepath.Dir(path)).WithCause(err).
		WithHint("the data directory needs about 100 MiB of room and must not be mounted noexec")
}
