package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/failpoint"
	"dayfly.dev/dayfly/internal/image"
)

// ensureKey makes the first admin key, or another one when asked to, and writes it to admin.key. Its new file is there before
// the key: a start that finds it knows that an earlier one was cut off, maybe with a key on record whose secret nobody has.
func ensureKey(ctx context.Context, cfg config, store dayfly.Store, plane *control.Plane) error {
	keys, err := store.Keys(ctx, "")
	if err != nil {
		return err
	}
	path := filepath.Join(cfg.Data, adminKeyFile)
	_, err = os.Lstat(path + ".new")
	if cutOff := err == nil; len(keys) > 0 && !cfg.newAdminKey && !cutOff {
		return nil
	}
	if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
		return fmt.Errorf("write the admin key: %w", err)
	}
	issued, err := plane.IssueAdminKey(ctx)
	if err != nil {
		return fmt.Errorf("make the admin key: %w", err)
	}
	failpoint.Hit("first.key.issued")
	if err := os.WriteFile(path+".new", []byte(issued.Secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the admin key: %w", err)
	}
	return os.Rename(path+".new", path)
}

// shareName is where a prefix that holds bin/dayfly holds its files.
const shareName = "share/dayfly"

// baseNames are the files that a first start looks for beside the binary and in the share directory beside its own.
var baseNames = []string{"base.tar.zst", "base.tar.gz", "base.tar"}

// ensureBase imports the base image when there is none.
func ensureBase(ctx context.Context, cfg config, h *host, plane *control.Plane, log *slog.Logger) error {
	if err := reconcileImages(ctx, h, log); err != nil {
		return err
	}
	_, err := h.store.Image(ctx, dayfly.ImageBase)
	if dayfly.ErrorCode(err) != dayfly.CodeNotFound {
		return err
	}
	path, err := findBase(cfg)
	if err != nil {
		return err
	}
	if path == "" {
		const note = "no base image was found, and sandboxes need one: import one with `dayfly images import base FILE`"
		log.Warn(note)
		h.notes = append(h.notes, note)
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the base image: %w", err)
	}
	defer f.Close()
	began := time.Now()
	im, err := plane.ImportBase(ctx, control.ImportImage{Name: dayfly.ImageBase, Body: f})
	if err != nil {
		return fmt.Errorf("import the base image %s: %w", path, err)
	}
	log.Info("imported the base image", "file", path, "image", im.ID, "files", im.Files, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// findBase gives the base image's file, or nothing when there is none beside the binary.
func findBase(cfg config) (string, error) {
	if cfg.BaseImage != "" {
		if _, err := os.Stat(cfg.BaseImage); err != nil {
			return "", fmt.Errorf("base image: %w", err)
		}
		return cfg.BaseImage, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return "", nil
	}
	beside := filepath.Dir(exe)
	for _, dir := range []string{beside, filepath.Join(filepath.Dir(beside), shareName)} {
		for _, name := range baseNames {
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); err == nil {
				return path, nil
			} else if !errors.Is(err, fs.ErrNotExist) {
				return "", fmt.Errorf("base image: %w", err)
			}
		}
	}
	return "", nil
}

// reconcileImages makes records and unpacked images agree: an image without a record gets one back unless its name is
// taken, a record without files is dropped, and files that no name means are removed.
func reconcileImages(ctx context.Context, h *host, log *slog.Logger) error {
	unpacked, err := h.unpacked.Load(ctx)
	if err != nil { // unreadable is not absent: leave everything as it is
		log.Error("some unpacked images cannot be read", "error", err)
		return nil
	}
	records, err := h.store.Images(ctx)
	if err != nil {
		return err
	}
	for _, rec := range records {
		if !slices.ContainsFunc(unpacked, func(im dayfly.Image) bool { return im.ID == rec.ID }) {
			log.Error("an image has lost its files", "image", rec.Name)
			if err := h.store.RemoveImage(ctx, rec.ID); err != nil && dayfly.ErrorCode(err) != dayfly.CodeConflict {
				return err
			}
		}
	}
	live, err := h.store.LiveSandboxes(ctx)
	if err != nil {
		return err
	}
	for _, im := range unpacked {
		if slices.ContainsFunc(records, func(rec dayfly.Image) bool { return im.ID == rec.ID }) {
			continue
		}
		named := slices.ContainsFunc(records, func(rec dayfly.Image) bool { return im.Name == rec.Name })
		if !named {
			if _, err := h.store.PutImage(ctx, im); err != nil {
				return err
			}
			log.Warn("an image was found without a record", "image", im.Name)
			records = append(records, im)
			continue
		}
		// An import that a crash cut off before its record, unless an older database forgot one that is in use.
		used := slices.ContainsFunc(live, func(sb dayfly.Sandbox) bool { return sb.Spec.ImageID == im.ID })
		if !used {
			if err := h.unpacked.Remove(ctx, im.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// images adapts the store of unpacked images to what the control plane asks for.
type images struct{ *host }

// Import implements control.ImageImporter.
func (i images) Import(ctx context.Context, r control.ImportImage) (dayfly.Image, error) {
	return i.unpacked.Import(ctx, r.Name, r.Body, importOptions(r))
}

// Remove implements control.Images.
func (i images) Remove(ctx context.Context, id string) error { return i.unpacked.Remove(ctx, id) }

func importOptions(r control.ImportImage) image.ImportOptions {
	return image.ImportOptions{User: r.User, Workdir: r.Workdir, Env: r.Env}
}
