package node

// ParseState parses the content of a state file, for fuzzing.
func ParseState(b []byte) (id string, slot int, err error) {
	s, err := lastState(b)
	return s.Sandbox.ID, s.Slot, err
}
