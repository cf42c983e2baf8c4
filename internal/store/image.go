package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"dayfly.dev/dayfly"
)

const (
	imageColumns   = "id, coalesce(name, ''), created_at, body"
	sqlImage       = "SELECT " + imageColumns + " FROM images WHERE id = $1"
	sqlImageNamed  = "SELECT " + imageColumns + " FROM images WHERE name = $1"
	sqlImages      = "SELECT " + imageColumns + " FROM images ORDER BY coalesce(name, ''), created_at, id"
	sqlUnnameImage = "UPDATE images SET name = NULL WHERE id = $1"
	sqlPutImage    = "INSERT INTO images (id, name, created_at, body) VALUES ($1, $2, $3, $4) " +
		"ON CONFLICT (id) DO UPDATE SET name = excluded.name, created_at = excluded.created_at, body = excluded.body"
	sqlRemoveImage = "DELETE FROM images WHERE id = $1"
	sqlImageUsers  = "SELECT count(*) FROM sandboxes WHERE status IN " + liveStatuses +
		" AND (image_id = $1 OR image_id = '' AND image = $2)"
)

// imageRecord is what is stored of an image beside its id, name and time.
type imageRecord struct {
	Digest    string            `json:"digest"`
	SizeBytes int64             `json:"size_bytes"`
	Files     int64             `json:"files"`
	UserName  string            `json:"user"`
	UID       uint32            `json:"uid"`
	GID       uint32            `json:"gid"`
	Home      string            `json:"home"`
	Workdir   string            `json:"workdir"`
	Env       map[string]string `json:"env"`
}

// PutImage implements dayfly.Store. The image that lost its name stays, nameless, until RemoveImage: sandboxes may still run
// from it.
func (db *DB) PutImage(ctx context.Context, im dayfly.Image) (*dayfly.Image, error) {
	if im.ID == "" || im.Name == "" || !storable(im.Name) {
		return nil, dayfly.Errorf(dayfly.CodeInvalid, "an image needs an id and a name")
	}
	var replaced *dayfly.Image
	err := db.writeDurable(ctx, func(t tx) error {
		before, err := t.image(sqlImageNamed, im.Name)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("find the image of that name: %w", err)
		}
		if err == nil && before.ID != im.ID {
			if _, err := t.exec(sqlUnnameImage, before.ID); err != nil {
				return fmt.Errorf("take the name from image %s: %w", before.ID, err)
			}
			replaced = &before
		}
		return t.putImage(im)
	})
	if err != nil {
		return nil, err
	}
	return replaced, nil
}

// Image implements dayfly.Store. An id is looked for before a name.
func (db *DB) Image(ctx context.Context, ref string) (im dayfly.Image, err error) {
	err = db.read(ctx, func(t tx) (err error) {
		im, err = t.image(sqlImage, ref)
		if errors.Is(err, sql.ErrNoRows) {
			im, err = t.image(sqlImageNamed, ref)
		}
		if errors.Is(err, sql.ErrNoRows) {
			return noImage(ref)
		}
		return err
	})
	return im, err
}

// Images implements dayfly.Store. Nameless ones come first.
func (db *DB) Images(ctx context.Context) (images []dayfly.Image, err error) {
	err = db.read(ctx, func(t tx) (err error) {
		images, err = all(t, scanImage, sqlImages)
		return err
	})
	return images, err
}

// RemoveImage implements dayfly.Store. A sandbox runs from the image that its name meant when it was created; one whose
// image was not known then counts for the image that has the name now.
func (db *DB) RemoveImage(ctx context.Context, id string) error {
	return db.writeDurable(ctx, func(t tx) error {
		im, err := t.image(sqlImage+t.d.lockRow, id)
		if errors.Is(err, sql.ErrNoRows) {
			return noImage(id)
		}
		if err != nil {
			return fmt.Errorf("find the image: %w", err)
		}
		var users int
		if err := t.one(sqlImageUsers, []any{id, im.Name}, &users); err != nil {
			return fmt.Errorf("count the image's sandboxes: %w", err)
		}
		if users > 0 {
			return dayfly.Errorf(dayfly.CodeConflict, "%d live sandboxes run from the image", users).WithDetail("sandboxes", users).
				WithHint("delete them first, or wait until their leases end")
		}
		_, err = t.exec(sqlRemoveImage, id)
		return err
	})
}

func noImage(ref string) error {
	return dayfly.Errorf(dayfly.CodeNotFound, "there is no image %q", ref).WithHint("list images to see their names")
}

func (t tx) putImage(im dayfly.Image) error {
	body, err := json.Marshal(imageRecord{
		Digest: im.Digest, SizeBytes: im.SizeBytes, Files: im.Files, Workdir: im.Workdir, Env: im.Env,
		UserName: im.User.Name, UID: im.User.UID, GID: im.User.GID, Home: im.User.Home,
	})
	if err != nil {
		return fmt.Errorf("encode the image: %w", err)
	}
	if _, err := t.exec(sqlPutImage, im.ID, im.Name, micros(im.CreatedAt), string(body)); err != nil {
		return fmt.Errorf("store the image: %w", err)
	}
	return nil
}

func (t tx) image(query, ref string) (dayfly.Image, error) {
	st, err := t.s.stmt(t.ctx, query)
	if err != nil {
		return dayfly.Image{}, err
	}
	return scanImage(st.QueryRowContext(t.ctx, ref))
}

func scanImage(row scanner) (dayfly.Image, error) {
	var (
		im      dayfly.Image
		created int64
		body    []byte
		r       imageRecord
	)
	if err := row.Scan(&im.ID, &im.Name, &created, &body); err != nil {
		return dayfly.Image{}, err
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return dayfly.Image{}, fmt.Errorf("decode image %s: %w", im.ID, err)
	}
	im.CreatedAt = wall(created)
	im.Digest, im.SizeBytes, im.Files, im.Workdir, im.Env = r.Digest, r.SizeBytes, r.Files, r.Workdir, r.Env
	im.User = dayfly.User{Name: r.UserName, UID: r.UID, GID: r.GID, Home: r.Home}
	return im, nil
}
