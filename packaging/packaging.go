// Package packaging holds what Dayfly is installed with, as files that can be used by hand too, and fills in the paths of one
// installation. It touches no host: `dayfly install` does. For one more service manager, put its file beside
// dayfly.service and a type like Unit beside that.
package packaging

import (
	_ "embed"
	"fmt"
	"strings"
	"unicode"
)

// UnitName is the name of the systemd unit.
const UnitName = "dayfly.service"

//go:embed dayfly.service
var unitText string

// Unit are the paths in a systemd unit of Dayfly.
type Unit struct {
	Binary string
	Args   []string // after Binary, on the command line
	Data   string
	Prefix string // where the binary was copied to
}

const (
	execLine   = "ExecStart="
	dataLine   = "Data="
	prefixLine = "Prefix="
	ownSection = "[X-Dayfly]"
)

// Text is the unit file. It fails if a path or argument holds what no line of such a file can: control characters.
func (u Unit) Text() (string, error) {
	words := append([]string{u.Binary}, u.Args...)
	for _, w := range append([]string{u.Data, u.Prefix}, words...) {
		if w == "" || strings.ContainsFunc(w, unicode.IsControl) {
			return "", fmt.Errorf("%q cannot be written into a systemd unit", w)
		}
	}
	for i, w := range words {
		words[i] = quote(w)
	}
	var out strings.Builder
	for line := range strings.Lines(unitText) {
		switch {
		case strings.HasPrefix(line, execLine):
			line = execLine + strings.Join(words, " ") + "\n"
		case strings.HasPrefix(line, dataLine):
			line = dataLine + u.Data + "\n"
		case strings.HasPrefix(line, prefixLine):
			line = prefixLine + u.Prefix + "\n"
		}
		out.WriteString(line)
	}
	return out.String(), nil
}

// ParseUnit reads the data directory and the prefix back from a unit file. ok is false for a file that is not Dayfly's.
func ParseUnit(text string) (u Unit, ok bool) {
	_, own, ok := strings.Cut(text, "\n"+ownSection+"\n")
	if !ok {
		return u, false
	}
	for line := range strings.Lines(own) {
		line = strings.TrimSuffix(line, "\n")
		if v, ok := strings.CutPrefix(line, dataLine); ok {
			u.Data = v
		}
		if v, ok := strings.CutPrefix(line, prefixLine); ok {
			u.Prefix = v
		}
	}
	return u, u.Data != "" && u.Prefix != ""
}

// quote writes a word as systemd reads it: in quotes if it has blanks, its specifiers and variables made plain.
func quote(word string) string {
	word = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(word)
	if strings.ContainsAny(word, " '\"\\;") {
		return `"` + word + `"`
	}
	return word
}
