package api

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"dayfly.dev/dayfly"
)

const (
	problemsMax  = 50 // named in one answer
	nameShownMax = 80 // bytes of a name that a client chose
)

// problem is one wrong field or parameter.
type problem struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// problems collects what is wrong with a request, so that one answer names it all.
type problems struct {
	list []problem
	more int // beyond problemsMax
}

func (p *problems) add(field, format string, args ...any) {
	if len(p.list) == problemsMax {
		p.more++
		return
	}
	p.list = append(p.list, problem{Field: shorten(field), Message: fmt.Sprintf(format, args...)})
}

// error is one error for all problems, or nil.
func (p *problems) error() error {
	if len(p.list) == 0 {
		return nil
	}
	texts := make([]string, len(p.list))
	for i, one := range p.list {
		texts[i] = one.Field + ": " + one.Message
	}
	text := strings.Join(texts, "; ")
	if p.more > 0 {
		text += fmt.Sprintf("; and %d more", p.more)
	}
	return dayfly.Errorf(dayfly.CodeInvalid, "%s", text).WithDetail("fields", p.list)
}

// shorten cuts a name that a client chose.
func shorten(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	if len(name) <= nameShownMax {
		return name
	}
	cut := nameShownMax
	for !utf8.RuneStart(name[cut]) {
		cut--
	}
	return name[:cut] + "…"
}
