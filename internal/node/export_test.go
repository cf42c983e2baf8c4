package node

// ParseState parses the content of a state file, for fuzzing.
func ParseState(b []byte) (id string, slot int, err error) {
	s, err := lastState(b)
	return s.Sandbox.ID, s.Slot, err
}

// ThreadsFor tells whether a kernel with so many of its threads in use has enough for more machines.
func ThreadsFor(machines, used, most int) error { return threadsFor(machines, used, most) }

// ThreadsIn reads the number of threads in the content of /proc/loadavg.
func ThreadsIn(loadavg string) (int, error) { return threadsIn(loadavg) }
