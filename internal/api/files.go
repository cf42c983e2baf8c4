package api

import (
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"dayfly.dev/dayfly"
)

// showBytes gives bytes as text; exact is set where they are not UTF-8, which the text then shows as U+FFFD.
func showBytes(s string) (text string, exact *string) {
	if utf8.ValidString(s) {
		return s, nil
	}
	b64 := base64.StdEncoding.EncodeToString([]byte(s))
	return string([]rune(s)), &b64
}

// filesQuery asks for a file as JSON, or for a page of a directory.
type filesQuery struct {
	list   bool
	search dayfly.ListQuery
}

func parseFiles(q *query) filesQuery {
	f := filesQuery{search: dayfly.ListQuery{Path: q.path("path")}, list: q.flag("list")}
	f.search.Recursive = q.flag("recursive")
	f.search.Limit = int(q.integer("limit", 1, entriesMax, entriesMax))
	cursor, _ := q.text("cursor")
	after, err := decodeCursor(cursor)
	if err != nil {
		q.bad.add("cursor", "is not one that a page before gave")
	}
	f.search.Cursor = after
	if !f.list {
		for _, name := range []string{"recursive", "limit", "cursor"} {
			if q.in.Has(name) {
				q.bad.add(name, "needs list=true")
			}
		}
	}
	return f
}

func getFiles(c *call, f filesQuery) error {
	if f.list {
		return listFiles(c, f.search)
	}
	return readFile(c, f.search.Path)
}

// entriesJSON is one page of a directory.
type entriesJSON struct {
	Entries    []entryJSON `json:"entries"`
	NextCursor *string     `json:"next_cursor"`
}

func listFiles(c *call, search dayfly.ListQuery) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	c.mayTakeLong(http.StatusOK)
	found, next, err := m.List(c.ctx(), search)
	if err != nil {
		return err
	}
	page := entriesJSON{Entries: []entryJSON{}, NextCursor: encodeCursor(next)}
	for _, f := range found {
		page.Entries = append(page.Entries, showEntry(f))
	}
	return c.answer(http.StatusOK, page)
}

// contentJSON is a small file within JSON: text where it is UTF-8, else exact bytes.
type contentJSON struct {
	entryJSON
	Content    *string `json:"content,omitempty"`
	ContentB64 *string `json:"content_b64,omitempty"`
}

func readFile(c *call, name string) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	info, body, err := m.Read(c.ctx(), name, dayfly.FileRange{Length: -1})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(body, BodyMaxBytes+1))
	if err != nil {
		return err
	}
	if len(data) > BodyMaxBytes {
		return dayfly.Errorf(dayfly.CodeTooLarge, "the file is larger than the %d bytes that fit into JSON", BodyMaxBytes).
			WithDetail("max_bytes", BodyMaxBytes).WithHint("read it from …/files/content, which has no limit")
	}
	info.SizeBytes = int64(len(data))
	out := contentJSON{entryJSON: showEntry(info)}
	if text := string(data); utf8.ValidString(text) {
		out.Content = &text
	} else {
		exact := base64.StdEncoding.EncodeToString(data)
		out.ContentB64 = &exact
	}
	return c.answer(http.StatusOK, out)
}

// newFile is a file to write.
type newFile struct {
	path    string
	content string
}

func parsePutFile(f *fields) newFile {
	var n newFile
	name, given := f.text("path")
	if _, tried := f.in["path"]; !tried {
		f.wrong("path", "is missing")
	} else if problem := pathProblem(name); given && problem != "" {
		f.wrong("path", "%s", problem)
	}
	n.path = name
	text, isText := f.content("content")
	encoded, isB64 := f.text("content_b64")
	_, hasText := f.in["content"]
	_, hasB64 := f.in["content_b64"]
	switch {
	case hasText && hasB64:
		f.wrong("content_b64", "must not be given together with content")
	case !hasText && !hasB64:
		f.wrong("content", "is missing; give content (text) or content_b64 (bytes)")
	case isText:
		n.content = text
	case isB64:
		data, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			f.wrong("content_b64", "must be standard base64 with padding")
		}
		n.content = string(data)
	}
	return n
}

func putFile(c *call, f newFile) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	c.mayTakeLong(http.StatusOK)
	info, err := m.Write(c.ctx(), f.path, nil /* keep the mode */, strings.NewReader(f.content))
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, showEntry(info))
}

// removal says what to remove.
type removal struct {
	path      string
	recursive bool
}

func parseRemoveFile(q *query) removal {
	return removal{path: q.path("path"), recursive: q.flag("recursive")}
}

// removedFileJSON answers the removal of a file.
type removedFileJSON struct {
	Path    string  `json:"path"`
	PathB64 *string `json:"path_b64,omitempty"`
	Removed bool    `json:"removed"`
}

func removeFile(c *call, r removal) error {
	m, err := c.machine()
	if err != nil {
		return err
	}
	c.mayTakeLong(http.StatusOK)
	if err := m.Remove(c.ctx(), r.path, r.recursive); err != nil {
		return err
	}
	out := removedFileJSON{Removed: true}
	out.Path, out.PathB64 = showBytes(r.path)
	return c.answer(http.StatusOK, out)
}
