package storetest

import (
	"fmt"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func imageCases() []Case {
	return []Case{
		{"an image is found by name and by id", imageFound},
		{"a name moves to a newer image", imageMoved},
		{"putting an image again replaces nothing", imageAgain},
		{"images are listed by name", imageList},
		{"a missing image is not found", imageMissing},
		{"an image in use stays", imageInUse},
		{"an image that lost its name is in use by its own sandboxes", imageLostName},
		{"incomplete images are refused", imageIncomplete},
	}
}

func image(n int, name string) dayfly.Image {
	return dayfly.Image{
		ID: fmt.Sprint("im", n), Name: name, Digest: fmt.Sprint("sha256:", n), SizeBytes: 1 << 40, Files: 12345,
		User: dayfly.User{Name: "user", UID: 1000, GID: 1001, Home: "/home/user"}, Workdir: "/srv",
		Env: map[string]string{"LANG": "C.UTF-8"}, CreatedAt: epoch.Add(time.Duration(n) * time.Second),
	}
}

func put(t *testing.T, s dayfly.Store, im dayfly.Image) *dayfly.Image {
	t.Helper()
	replaced, err := s.PutImage(t.Context(), im)
	if err != nil {
		t.Fatalf("PutImage: %v", err)
	}
	return replaced
}

func wantImage(t *testing.T, s dayfly.Store, ref string, want dayfly.Image) {
	t.Helper()
	got, err := s.Image(t.Context(), ref)
	wantCode(t, err, "")
	wantEqual(t, "image "+ref, got, want)
}

func imageFound(t *testing.T, s dayfly.Store) {
	im := image(1, dayfly.ImageBase)
	if r := put(t, s, im); r != nil {
		t.Errorf("replaced = %+v", r)
	}
	wantImage(t, s, "im1", im)
	wantImage(t, s, dayfly.ImageBase, im)
}

func imageMoved(t *testing.T, s dayfly.Store) {
	old, newer := image(1, "py"), image(2, "py")
	put(t, s, old)
	replaced := put(t, s, newer)
	if replaced == nil {
		t.Fatal("nothing was replaced")
	}
	wantEqual(t, "replaced", *replaced, old)
	wantImage(t, s, "py", newer)
	old.Name = ""
	wantImage(t, s, "im1", old) // until it is removed
	_, err := s.Image(t.Context(), "")
	wantCode(t, err, dayfly.CodeNotFound)
}

func imageAgain(t *testing.T, s dayfly.Store) {
	im := image(1, "py")
	put(t, s, im)
	im.Files = 7
	if r := put(t, s, im); r != nil {
		t.Errorf("replaced = %+v", r)
	}
	im.Name = "python"
	if r := put(t, s, im); r != nil {
		t.Errorf("replaced = %+v", r)
	}
	wantImage(t, s, "python", im)
	_, err := s.Image(t.Context(), "py")
	wantCode(t, err, dayfly.CodeNotFound)
}

func imageList(t *testing.T, s dayfly.Store) {
	b, a := image(1, "b"), image(2, "a")
	put(t, s, b)
	put(t, s, a)
	got, err := s.Images(t.Context())
	wantCode(t, err, "")
	wantEqual(t, "images", got, []dayfly.Image{a, b})
}

func imageMissing(t *testing.T, s dayfly.Store) {
	put(t, s, image(1, "py"))
	_, err := s.Image(t.Context(), "p")
	wantCode(t, err, dayfly.CodeNotFound)
	wantCode(t, s.RemoveImage(t.Context(), "py"), dayfly.CodeNotFound) // a name is no id
	wantCode(t, s.RemoveImage(t.Context(), "im1"), "")
	wantCode(t, s.RemoveImage(t.Context(), "im1"), dayfly.CodeNotFound)
}

func imageInUse(t *testing.T, s dayfly.Store) {
	early := create(t, s, sandbox(theirs, 0)) // the image is not known yet
	put(t, s, image(1, dayfly.ImageBase))
	put(t, s, image(2, "py"))
	sb := create(t, s, sandbox(mine, 0))
	err := s.RemoveImage(t.Context(), "im1")
	wantCode(t, err, dayfly.CodeConflict)
	wantDetail(t, err, "sandboxes", 2)
	wantCode(t, s.RemoveImage(t.Context(), "im2"), "")
	end(t, s, early)
	end(t, s, sb)
	wantCode(t, s.RemoveImage(t.Context(), "im1"), "")
}

func imageLostName(t *testing.T, s dayfly.Store) {
	put(t, s, image(1, dayfly.ImageBase))
	old := create(t, s, sandbox(mine, 0))
	put(t, s, image(2, dayfly.ImageBase))
	wantCode(t, s.RemoveImage(t.Context(), "im1"), dayfly.CodeConflict)
	end(t, s, old)
	create(t, s, sandbox(mine, 0))
	wantCode(t, s.RemoveImage(t.Context(), "im1"), "")
	wantCode(t, s.RemoveImage(t.Context(), "im2"), dayfly.CodeConflict)
}

func imageIncomplete(t *testing.T, s dayfly.Store) {
	for _, im := range []dayfly.Image{{ID: "im1"}, {Name: "py"}, {ID: "im1", Name: "\xff"}} {
		_, err := s.PutImage(t.Context(), im)
		wantCode(t, err, dayfly.CodeInvalid)
	}
}
