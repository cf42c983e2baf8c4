package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/tree"
)

const (
	recordName  = "image.json"
	rootName    = "rootfs"
	tmpPrefix   = ".tmp-"   // half-imported
	trashPrefix = ".trash-" // being removed
	recordMax   = 1 << 20   // bytes of a record
	imagesMax   = 10_000    // images in a store
)

// Store is a directory of images, DIR/<image id>/rootfs each. It may be used by several goroutines, and by one process.
type Store struct {
	dir string
}

// Open takes the directory dir, making it if need be, and removes what imports and removals that were cut short left in it.
// The directory becomes mode 0700: the images hold setuid programs that must not be reachable from the host.
func Open(ctx context.Context, dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	s := &Store{dir: dir}
	if err := s.sweep(ctx); err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	return s, nil
}

func (s *Store) sweep(ctx context.Context) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tmpPrefix) || strings.HasPrefix(e.Name(), trashPrefix) {
			errs = append(errs, tree.RemoveAll(ctx, filepath.Join(s.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Path is the directory to use as the lower layer of a machine of image id. It says nothing about whether it exists.
func (s *Store) Path(id string) string { return filepath.Join(s.dir, id, rootName) }

// Load reads the records of all images, oldest first. An image whose record cannot be read is left out and named in the
// error, which comes beside the images that could be read.
func (s *Store) Load(ctx context.Context) ([]dayfly.Image, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("load images: %w", err)
	}
	var images []dayfly.Image
	var errs []error
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("load images: %w", err)
		}
		if !dayfly.ValidID(dayfly.PrefixImage, e.Name()) {
			continue
		}
		if len(images) == imagesMax {
			errs = append(errs, fmt.Errorf("load images: there are more than %d", imagesMax))
			break
		}
		img, err := s.read(e.Name())
		if err != nil {
			errs = append(errs, fmt.Errorf("load image %s: %w", e.Name(), err))
			continue
		}
		images = append(images, img)
	}
	sort.Slice(images, func(i, j int) bool {
		if !images[i].CreatedAt.Equal(images[j].CreatedAt) {
			return images[i].CreatedAt.Before(images[j].CreatedAt)
		}
		return images[i].ID < images[j].ID
	})
	return images, errors.Join(errs...)
}

// Remove deletes the image's files. It is gone from Load and Path at once, however long the rest takes. The caller makes
// sure that no machine uses it. Removing what is not there succeeds.
func (s *Store) Remove(ctx context.Context, id string) error {
	if !dayfly.ValidID(dayfly.PrefixImage, id) {
		return dayfly.Errorf(dayfly.CodeInvalid, "%q is not an image id", id)
	}
	trash := filepath.Join(s.dir, trashPrefix+dayfly.NewID(dayfly.PrefixImage))
	if err := os.Rename(filepath.Join(s.dir, id), trash); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("remove image %s: %w", id, err)
	}
	if err := tree.RemoveAll(ctx, trash); err != nil {
		return fmt.Errorf("remove image %s: %w", id, err)
	}
	return nil
}

// record is an image as it stands in its file.
type record struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Digest    string            `json:"digest"`
	SizeBytes int64             `json:"size_bytes"`
	Files     int64             `json:"files"`
	User      recordUser        `json:"user"`
	Workdir   string            `json:"workdir"`
	Env       map[string]string `json:"env,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
}

type recordUser struct {
	Name string `json:"name"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Home string `json:"home"`
}

func (s *Store) read(id string) (dayfly.Image, error) {
	b, err := readLimited(filepath.Join(s.dir, id, recordName), recordMax)
	if err != nil {
		return dayfly.Image{}, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return dayfly.Image{}, fmt.Errorf("read %s: %w", recordName, err)
	}
	if r.ID != id {
		return dayfly.Image{}, fmt.Errorf("read %s: it is the record of %q", recordName, r.ID)
	}
	return dayfly.Image{
		ID: r.ID, Name: r.Name, Digest: r.Digest, SizeBytes: r.SizeBytes, Files: r.Files,
		User:    dayfly.User{Name: r.User.Name, UID: r.User.UID, GID: r.User.GID, Home: r.User.Home},
		Workdir: r.Workdir, Env: r.Env, CreatedAt: r.CreatedAt,
	}, nil
}

func writeRecord(dir string, img dayfly.Image) error {
	b, err := json.MarshalIndent(record{
		ID: img.ID, Name: img.Name, Digest: img.Digest, SizeBytes: img.SizeBytes, Files: img.Files,
		User:    recordUser{Name: img.User.Name, UID: img.User.UID, GID: img.User.GID, Home: img.User.Home},
		Workdir: img.Workdir, Env: img.Env, CreatedAt: img.CreatedAt,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", recordName, err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", recordName, err)
	}
	return nil
}
