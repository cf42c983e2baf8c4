package cli

import (
	"slices"
	"strconv"
	"strings"
)

// screenModes remembers which private modes of a terminal a command has switched away from their rest, so that they can be
// switched back when it is left or dies. It reads only "CSI ? numbers h" and "CSI ? numbers l", and survives any bytes.
type screenModes struct {
	state modeState
	digit int   // the number being read
	args  []int // the numbers before it
	away  []int // modes that are not at rest, in the order in which they left it
}

type modeState int

const (
	modeText     modeState = iota
	modeEscape             // after ESC
	modeBracket            // after ESC [
	modeQuestion           // after ESC [ ?
)

// modesWatched are the modes that are switched back: true for those that rest switched on.
var modesWatched = map[int]bool{
	1:    false, // cursor keys of applications
	7:    true,  // lines wrap
	9:    false, // mouse, in its several ways
	25:   true,  // the cursor shows
	47:   false, // the alternate screen, in its three ways
	1000: false, 1001: false, 1002: false, 1003: false, 1004: false, 1005: false, 1006: false, 1015: false, 1016: false,
	1047: false,
	1049: false,
	2004: false, // pasted text is bracketed
	2026: false, // drawing is held back
}

// Limits of one sequence; a longer one is none of ours.
const (
	modeNumberMax = 65535
	modeArgsMax   = 16
)

// see reads a piece of output.
func (m *screenModes) see(p []byte) {
	for _, b := range p {
		m.byte(b)
	}
}

func (m *screenModes) byte(b byte) {
	switch {
	case b == 0x1b:
		m.state = modeEscape
		return
	case m.state == modeText:
		return
	case m.state == modeEscape && b == '[':
		m.state = modeBracket
		return
	case m.state == modeBracket && b == '?':
		m.state, m.digit, m.args = modeQuestion, 0, m.args[:0]
		return
	case m.state != modeQuestion:
	case b >= '0' && b <= '9' && m.digit < modeNumberMax:
		m.digit = m.digit*10 + int(b-'0')
		return
	case b == ';' && len(m.args) < modeArgsMax:
		m.args, m.digit = append(m.args, m.digit), 0
		return
	case b == 'h' || b == 'l':
		for _, mode := range append(m.args, m.digit) {
			m.set(mode, b == 'h')
		}
	}
	m.state = modeText
}

func (m *screenModes) set(mode int, on bool) {
	rest, watched := modesWatched[mode]
	if !watched {
		return
	}
	m.away = slices.DeleteFunc(m.away, func(n int) bool { return n == mode })
	if on != rest {
		m.away = append(m.away, mode)
	}
}

// undo is what brings all modes back to their rest, the last one first; colours too, where anything was changed.
func (m *screenModes) undo() string {
	if len(m.away) == 0 {
		return ""
	}
	var b strings.Builder
	for _, mode := range slices.Backward(m.away) {
		b.WriteString("\x1b[?" + strconv.Itoa(mode))
		if modesWatched[mode] {
			b.WriteString("h")
		} else {
			b.WriteString("l")
		}
	}
	m.away = nil
	return b.String() + "\x1b[0m"
}
