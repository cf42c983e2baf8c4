package node

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"dayfly.dev/dayfly"
)

// Admission: memory and disk of a sandbox are limits, not reservations, so what must be there is room to start and idle.
const (
	admitReserveBytes = 1 << 30   // of MemAvailable that stays untouched
	admitDiskFree     = 256 << 20 // of the pool
	admitIdleFactor   = 2         // times the driver's measured idle cost
	admitThreadsFree  = 512       // of the kernel's that stay untouched: a server or warden that gets no thread dies
	admitThreadsEach  = 32        // of an idle machine: 19 under linux, about 30 under gvisor
	admitRetry        = 5 * time.Second
)

// Admit implements control.Node.
func (m *Manager) Admit(ctx context.Context, limits dayfly.Limits, driver dayfly.Isolation) error {
	if err := m.opt.Leases.Alive(); err != nil {
		return err
	}
	if m.stopped() != "" { // what cannot be reached may hold any address and any user ids
		return dayfly.Errorf(dayfly.CodeUnavailable, "most machines on this host cannot be reached, so none is made").
			WithHint("an operator must look: /readyz and `dayfly audit` say more")
	}
	total, available, err := memory()
	if err != nil {
		return err
	}
	poolTotal, poolFree, err := m.opt.Pool.Usage(ctx)
	if err != nil {
		return fmt.Errorf("read pool usage: %w", err)
	}
	if err := fitsEver(limits, total, poolTotal); err != nil {
		return err
	}
	if m.waiting.Load() >= waitingMax() {
		return tooManyStarts()
	}
	need := admitIdleFactor * m.probes[driver]().IdleBytes * int64(m.starting()+1)
	if available-admitReserveBytes < need {
		return noCapacity("memory", need+admitReserveBytes, available)
	}
	if poolFree < admitDiskFree {
		return noCapacity("disk", admitDiskFree, poolFree)
	}
	used, most, err := threads()
	if err != nil {
		return err
	}
	return threadsFor(m.starting()+1, used, most)
}

// threadsFor tells whether the kernel has threads for so many more machines. It is the limit that density meets first where
// kernel.pid_max is the kernel's own default.
func threadsFor(machines, used, most int) error {
	need := admitThreadsFree + admitThreadsEach*machines
	if most-used >= need {
		return nil
	}
	return dayfly.Errorf(dayfly.CodeNoCapacity, "there are not enough threads for another sandbox: %d are needed, %d of the kernel's %d are free",
		need, max(0, most-used), most).
		WithHint("delete sandboxes, or wait until leases end; the operator can raise kernel.pid_max and kernel.threads-max").
		WithRetryAfter(admitRetry).WithDetail("missing", "threads")
}

// fitsEver tells whether this host could hold a machine of these limits if it were empty.
func fitsEver(l dayfly.Limits, memoryBytes, poolBytes int64) error {
	for _, want := range []struct {
		what        string
		asked, have int64
	}{
		{"vcpu", int64(l.VCPU), int64(runtime.NumCPU())},
		{"memory_mb", l.MemoryBytes >> 20, memoryBytes >> 20},
		{"disk_mb", l.DiskBytes >> 20, poolBytes >> 20},
	} {
		if want.asked > want.have {
			return dayfly.Errorf(dayfly.CodeSizeUnavailable, "no node can ever hold a sandbox with %s %d; the largest has %d",
				want.what, want.asked, want.have).
				WithHint("ask for less").WithDetail(want.what, map[string]int64{"asked": want.asked, "max": want.have})
		}
	}
	return nil
}

func noCapacity(what string, need, have int64) error {
	return dayfly.Errorf(dayfly.CodeNoCapacity, "there is not enough %s for another sandbox: %d MiB are needed, %d MiB are free",
		what, need>>20, have>>20).
		WithHint("delete sandboxes, or wait until leases end").WithRetryAfter(admitRetry).
		WithDetail("missing", what)
}

// waitingMax bounds the creates that wait for their turn to start.
func waitingMax() int64 { return waitingPerCPU * int64(runtime.NumCPU()) }

func tooManyStarts() *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeNoCapacity, "too many machines are starting on this host: %d wait for their turn", waitingMax()).
		WithHint("try again in a moment, with fewer at once").WithRetryAfter(admitRetry).WithDetail("missing", "starts")
}

// starting counts creates under way: their memory does not show in MemAvailable yet.
func (m *Manager) starting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for id := range m.busy {
		if m.boxes[id] == nil {
			n++
		}
	}
	return n
}

// threads reads how many threads the host has, and how many its kernel allows.
func threads() (used, most int, err error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, 0, fmt.Errorf("count threads: %w", err)
	}
	if used, err = threadsIn(string(load)); err != nil {
		return 0, 0, err
	}
	for _, name := range []string{"pid_max", "threads-max"} {
		b, err := os.ReadFile("/proc/sys/kernel/" + name)
		if err != nil {
			return 0, 0, fmt.Errorf("read the kernel's limit of threads: %w", err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return 0, 0, fmt.Errorf("read the kernel's limit of threads: %w", err)
		}
		if most == 0 || n < most {
			most = n
		}
	}
	return used, most, nil
}

// threadsIn finds the number of threads in a line like "0.20 0.18 0.12 1/821 4711".
func threadsIn(loadavg string) (int, error) {
	if f := strings.Fields(loadavg); len(f) >= 4 {
		_, all, _ := strings.Cut(f[3], "/")
		if n, err := strconv.Atoi(all); err == nil && n > 0 {
			return n, nil
		}
	}
	return 0, fmt.Errorf("count threads: /proc/loadavg tells no number: %.60q", loadavg)
}

// memory reads MemTotal and MemAvailable in bytes.
func memory() (total, available int64, err error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0, fmt.Errorf("read memory: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan() && (total == 0 || available == 0); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		switch name {
		case "MemTotal":
			total = kib << 10
		case "MemAvailable":
			available = kib << 10
		}
	}
	if total == 0 || available == 0 {
		return 0, 0, fmt.Errorf("read memory: /proc/meminfo tells neither total nor available")
	}
	return total, available, nil
}
