package machine

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// CPUs deals the host's CPUs out to machines that have fewer than the host, so that a program inside that asks how many
// there are (nproc) gets its limit. It is a view, not a reservation: the time limit is the cgroup's.
type CPUs struct {
	allowed []int // those this process may run on

	mu   sync.Mutex
	load map[int]int // CPU → machines on it
}

// NewCPUs deals out those that this process may run on.
func NewCPUs() (*CPUs, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read own CPUs: %w", err)
	}
	c := &CPUs{load: map[int]int{}}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			c.allowed = append(c.allowed, cpu)
		}
	}
	return c, nil
}

// Take picks the n CPUs with the fewest machines. It gives none when the machine may use all.
func (c *CPUs) Take(n int) []int {
	if n <= 0 || n >= len(c.allowed) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	order := slices.Clone(c.allowed)
	slices.SortStableFunc(order, func(a, b int) int { return c.load[a] - c.load[b] })
	picked := order[:n]
	for _, cpu := range picked {
		c.load[cpu]++
	}
	return picked
}

// Hold counts CPUs that a recovered machine has already.
func (c *CPUs) Hold(picked []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cpu := range picked {
		c.load[cpu]++
	}
}

// Give counts them back.
func (c *CPUs) Give(picked []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cpu := range picked {
		c.load[cpu]--
	}
}
