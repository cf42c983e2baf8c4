package api

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// imageJSON is an image as clients see it.
type imageJSON struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"`
	Digest    string   `json:"digest"`
	SizeBytes int64    `json:"size_bytes"`
	Files     int64    `json:"files"`
	User      string   `json:"user"` // name, or uid where it has none
	Workdir   string   `json:"workdir"`
	EnvNames  []string `json:"env_names"`
	CreatedAt string   `json:"created_at"`
}

func showImageRecord(im dayfly.Image) imageJSON {
	names := slices.Sorted(maps.Keys(im.Env))
	if names == nil {
		names = []string{}
	}
	return imageJSON{
		ID: im.ID, Name: im.Name, Digest: im.Digest, SizeBytes: im.SizeBytes, Files: im.Files,
		User:    cmp.Or(im.User.Name, strconv.FormatUint(uint64(im.User.UID), 10)),
		Workdir: cmp.Or(im.Workdir, im.User.Home, "/"), EnvNames: names, CreatedAt: stamp(im.CreatedAt),
	}
}

func parseImport(q *query) control.ImportImage {
	var r control.ImportImage
	if name, given := q.text("name"); !given {
		if !q.in.Has("name") {
			q.bad.add("name", "is missing")
		}
	} else if problem := imageNameProblem(name); problem != "" {
		q.bad.add("name", "%s", problem)
	} else {
		r.Name = name
	}
	r.User = q.filled("user")
	if r.Workdir = q.filled("workdir"); r.Workdir != "" && !strings.HasPrefix(r.Workdir, "/") {
		q.bad.add("workdir", "must begin with /")
	}
	for _, pair := range q.texts("env") {
		key, value, ok := strings.Cut(pair, "=")
		if problem := envProblem(key, value); !ok || problem != "" {
			q.bad.add("env", "%s", cmp.Or(problem, "must have the form NAME=VALUE"))
			continue
		}
		if r.Env == nil {
			r.Env = map[string]string{}
		}
		r.Env[key] = value
	}
	return r
}

func importImage(c *call, r control.ImportImage) error {
	if strings.HasPrefix(c.r.Header.Get("Content-Type"), "application/json") {
		return dayfly.Errorf(dayfly.CodeUnsupportedMedia, "the body must be a tar, tar.gz or tar.zst of a root file system").
			WithHint("name, user, workdir and env are parameters of the query")
	}
	r.Body = c.r.Body
	c.afterBody(http.StatusCreated)
	return c.once(func(ctx context.Context) (control.Answer, error) {
		im, err := c.backend.ImportImage(ctx, c.who, r)
		if err != nil {
			return control.Answer{}, c.bodyError(err)
		}
		return kept(http.StatusCreated, showImageRecord(im))
	}, nil)
}

func listImages(c *call, p paging) error {
	images, err := c.backend.Images(c.ctx(), c.who)
	if err != nil {
		return err
	}
	return answerPage(c, p, images, func(im dayfly.Image) string { return im.Name + "\x00" + im.ID }, showImageRecord)
}

func showImage(c *call, _ struct{}) error {
	im, err := c.image()
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, showImageRecord(im))
}

func removeImage(c *call, _ struct{}) error {
	im, err := c.image()
	if err != nil {
		return err
	}
	c.mayTakeLong(http.StatusOK)
	if err := c.backend.RemoveImage(c.ctx(), c.who, im.ID); err != nil {
		return err
	}
	return c.answer(http.StatusOK, removedJSON{ID: im.ID, Removed: true})
}

// image is the image that the path names.
func (c *call) image() (dayfly.Image, error) {
	ref := c.r.PathValue("ref")
	if imageNameProblem(ref) != "" {
		return dayfly.Image{}, dayfly.Errorf(dayfly.CodeNotFound, "there is no such image").WithHint("GET /v1/images lists them")
	}
	return c.backend.Image(c.ctx(), c.who, ref)
}
