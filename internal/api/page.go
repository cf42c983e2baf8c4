package api

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"dayfly.dev/dayfly"
)

// paging selects a page of a list.
type paging struct {
	limit  int
	cursor string // as the client sent it, or empty
}

func parsePaging(q *query) paging {
	p := paging{limit: int(q.integer("limit", 1, limitMax, limitDefault))}
	p.cursor, _ = q.text("cursor")
	return p
}

// pageJSON is one page of a list.
type pageJSON[T any] struct {
	Data       []T     `json:"data"`
	NextCursor *string `json:"next_cursor"`
}

// answerPage answers with one page of a list that the backend gives whole. key orders the items and is unique; deleting items
// while iterating skips none.
func answerPage[T, J any](c *call, p paging, items []T, key func(T) string, show func(T) J) error {
	after, err := decodeCursor(p.cursor)
	if err != nil {
		return err
	}
	items = slices.Clone(items)
	slices.SortFunc(items, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	if p.cursor != "" {
		items = slices.DeleteFunc(items, func(item T) bool { return key(item) <= after })
	}
	page := pageJSON[J]{Data: []J{}}
	if len(items) > p.limit {
		items = items[:p.limit]
		page.NextCursor = encodeCursor(key(items[p.limit-1]))
	}
	for _, item := range items {
		page.Data = append(page.Data, show(item))
	}
	return c.answer(http.StatusOK, page)
}

// encodeCursor makes a cursor of any bytes, or nil of none.
func encodeCursor(after string) *string {
	if after == "" {
		return nil
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(after))
	return &text
}

func decodeCursor(cursor string) (string, error) {
	after, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return "", dayfly.Errorf(dayfly.CodeInvalid, "cursor: is not one that a page before gave").
			WithDetail("fields", []problem{{"cursor", "is not one that a page before gave"}})
	}
	return string(after), nil
}
