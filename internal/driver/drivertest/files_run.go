package drivertest

import (
	"bytes"
	"io"
	"testing"

	"dayfly.dev/dayfly"
)

// RunFiles runs the cases about files, with the same harness, names and rules as RunExec.
func RunFiles(t *testing.T, h Harness) {
	s := &suite{Harness: h, driver: h.Open(t)}
	s.cases(t, []suiteCase{
		{"bug 72: an archive is the tree", archiveIsTheTree},
		{"bug 72: a hostile archive writes nothing outside", hostileArchive},
		{"bug 74: content is bytes", contentIsBytes},
		{"bug 75: every size, as a whole", everySize},
		{"bug 76: large files flow", largeFilesFlow},
		{"bug 76: a cut upload leaves nothing", cutUpload},
		{"bug 78: empty files", emptyFiles},
		{"bug 80: a listing survives its entries", listingSurvives},
		{"bug 81: every name", everyName},
		{"bug 121: a full disk is one clear error", fullDisk},
		{"bug 127: a watch sees what comes later", watchSeesAll},
	})
}

// put writes a file.
func (g *guest) put(t *testing.T, path string, content []byte) dayfly.FileInfo {
	t.Helper()
	info, err := g.Write(ctx(t), path, nil, bytes.NewReader(content))
	if err != nil {
		t.Fatalf("write %.100q: %v", path, err)
	}
	return info
}

// content reads a file.
func (g *guest) content(t *testing.T, path string) string {
	t.Helper()
	_, r, err := g.Read(ctx(t), path, dayfly.FileRange{Length: -1})
	if err != nil {
		t.Fatalf("read %.100q: %v", path, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %.100q: %v", path, err)
	}
	return string(b)
}

// list gives a whole directory, page by page.
func (g *guest) list(t *testing.T, path string, recursive bool, limit int) []dayfly.FileInfo {
	t.Helper()
	var all []dayfly.FileInfo
	for q := (dayfly.ListQuery{Path: path, Recursive: recursive, Limit: limit}); ; {
		page, next, err := g.List(ctx(t), q)
		if err != nil {
			t.Fatalf("list %.100q: %v", path, err)
		}
		if all = append(all, page...); next == "" {
			return all
		}
		q.Cursor = next
	}
}
