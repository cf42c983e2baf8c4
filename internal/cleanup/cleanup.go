// Package cleanup is the undo stack of every multi-step start: each step registers its undo at once, success releases the
// stack, anything else runs it in reverse. It knows nothing of what it undoes. Undo functions must not depend on the
// caller's context: by the time they run it is often cancelled.
package cleanup

// Stack holds undo functions. The zero value is an empty stack. It is not safe for concurrent use.
type Stack struct {
	undos []func()
}

// Make returns a stack with one undo on it.
func Make(undo func()) Stack { return Stack{undos: []func(){undo}} }

// Add pushes an undo; the last one pushed runs first.
func (s *Stack) Add(undo func()) { s.undos = append(s.undos, undo) }

// Clean runs all undos, last first, and empties the stack. After Release it does nothing, so it is meant for defer.
func (s *Stack) Clean() {
	for len(s.undos) > 0 {
		last := s.undos[len(s.undos)-1]
		s.undos = s.undos[:len(s.undos)-1]
		last()
	}
}

// Release forgets all undos: the start succeeded.
func (s *Stack) Release() { s.undos = nil }
