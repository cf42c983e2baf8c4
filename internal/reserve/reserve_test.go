package reserve_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/reserve"
)

func unused(string) (bool, error) { return true, nil }
func used(string) (bool, error)   { return false, nil }

var (
	dead  = reserve.Checks{Unused: unused}
	alive = reserve.Checks{Unused: used}
)

func TestTake(t *testing.T) {
	run, data := t.TempDir(), t.TempDir()
	inst := dayfly.NewInstallation()
	a, err := reserve.Take(run, inst, data, dead)
	if err != nil || a.Number != 0 || a.UIDBase() != 1<<28 {
		t.Fatalf("Take = %+v, %v", a, err)
	}
	again, err := reserve.Take(run, inst, data, dead)
	if err != nil || again != a {
		t.Errorf("second Take = %+v, %v; want %+v", again, err, a)
	}
	b, err := reserve.Take(run, dayfly.NewInstallation(), t.TempDir(), alive)
	if err != nil || b.Number != 1 || b.UIDBase() != 2<<28 {
		t.Errorf("Take of another = %+v, %v", b, err)
	}
	if err := reserve.Release(run, inst); err != nil {
		t.Fatal(err)
	}
	if err := reserve.Release(run, inst); err != nil {
		t.Errorf("second Release = %v", err)
	}
	if left, err := reserve.List(run); err != nil || len(left) != 1 || left[0] != b {
		t.Errorf("List = %+v, %v", left, err)
	}
	for _, data := range []string{"", "relative"} {
		if _, err := reserve.Take(run, inst, data, dead); dayfly.ErrorCode(err) != dayfly.CodeInvalid {
			t.Errorf("Take at %q = %v", data, err)
		}
	}
	last := reserve.Block{Number: reserve.Blocks - 1}
	if end := uint64(last.UIDBase()) + reserve.SlotsPerBlock*dayfly.IDCount; end > 1<<32-1 {
		t.Errorf("the last block ends at %d", end)
	}
}

func TestTakePassesOverWhatDoesNotFit(t *testing.T) {
	run, inst := t.TempDir(), dayfly.NewInstallation()
	odd := reserve.Checks{Unused: used, Fits: func(b reserve.Block) (bool, error) { return b.Number == 5, nil }}
	b, err := reserve.Take(run, inst, "/data", odd)
	if err != nil || b.Number != 5 {
		t.Errorf("Take = %+v, %v", b, err)
	}
	if found, ok, err := reserve.Find(run, inst); found != b || !ok || err != nil {
		t.Errorf("Find = %+v, %v, %v", found, ok, err)
	}
	if _, err := reserve.Take(run, dayfly.NewInstallation(), "/data", odd); dayfly.ErrorCode(err) != dayfly.CodeNoCapacity {
		t.Errorf("Take when nothing fits = %v", err)
	}
	boom := errors.New("cannot look")
	if _, err := reserve.Take(run, dayfly.NewInstallation(), "/data", reserve.Checks{Fits: func(reserve.Block) (bool, error) { return true, boom }}); !errors.Is(err, boom) {
		t.Errorf("Take when it cannot be told = %v", err)
	}
}

func TestTakeFromTheDeadOnly(t *testing.T) {
	boom := errors.New("cannot look")
	for _, tt := range []struct {
		name string
		hold string // lock that the old installation still holds
		live reserve.Checks
		file string // instead of the block's
		want dayfly.Code
	}{
		{name: "nothing of it lives", live: dead},
		{name: "its machines live", live: alive, want: dayfly.CodeNoCapacity},
		{name: "cannot tell", live: reserve.Checks{Unused: func(string) (bool, error) { return true, boom }}, want: dayfly.CodeNoCapacity},
		{name: "its server runs", hold: "server.lock", live: dead, want: dayfly.CodeNoCapacity},
		{name: "its warden runs", hold: "warden/lock", live: dead, want: dayfly.CodeNoCapacity},
		{name: "the block cannot be read", live: dead, file: "garbage", want: dayfly.CodeNoCapacity},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := t.TempDir()
			for n := range reserve.Blocks {
				data := t.TempDir()
				if _, err := reserve.Take(run, dayfly.NewInstallation(), data, alive); err != nil {
					t.Fatal(err)
				}
				if tt.hold != "" {
					if err := os.MkdirAll(filepath.Dir(filepath.Join(data, tt.hold)), 0o700); err != nil {
						t.Fatal(err)
					}
					f, err := reserve.Lock(filepath.Join(data, tt.hold))
					if err != nil {
						t.Fatal(err)
					}
					defer f.Close()
				}
				if tt.file != "" {
					if err := os.WriteFile(filepath.Join(run, "blocks", strconv.Itoa(n)), []byte(tt.file), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			_, err := reserve.Take(run, dayfly.NewInstallation(), t.TempDir(), tt.live)
			if got := dayfly.ErrorCode(err); got != tt.want {
				t.Errorf("Take = %v, want code %q", err, tt.want)
			}
		})
	}
}

func TestTakeAtOnce(t *testing.T) {
	run := t.TempDir()
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[int]bool{}
	for range reserve.Blocks {
		wg.Go(func() {
			b, err := reserve.Take(run, dayfly.NewInstallation(), "/data", alive)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[b.Number] {
				t.Errorf("Take = %+v, %v", b, err)
			}
			seen[b.Number] = true
		})
	}
	wg.Wait()
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if held, err := reserve.Held(path); held || err != nil {
		t.Errorf("Held of a missing file = %v, %v", held, err)
	}
	f, err := reserve.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if held, err := reserve.Held(path); !held || err != nil {
		t.Errorf("Held = %v, %v", held, err)
	}
	if _, err := reserve.Lock(path); !errors.Is(err, reserve.ErrHeld) {
		t.Errorf("second Lock = %v, want ErrHeld", err)
	}
	child := exec.Command("/bin/sleep", "600") // a child must not inherit it
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	_ = f.Close()
	if held, err := reserve.Held(path); held || err != nil {
		t.Errorf("Held after release = %v, %v", held, err)
	}
	if _, err := reserve.Held(filepath.Join(path, "below")); err == nil {
		t.Error("a lock that cannot be looked at counts as free")
	}
}

// Those who look at a free lock never keep anybody from taking it.
func TestHeldDisturbsNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = reserve.Held(path)
				}
			}
		})
	}
	for range 50 {
		f, err := reserve.Lock(path)
		if err != nil {
			t.Error(err)
			break
		}
		_ = f.Close()
	}
	close(stop)
	wg.Wait()
}

// TestSlots is bug 118: the last slot, and so the last address, is given and given back, and then there is no capacity.
func TestSlots(t *testing.T) {
	var s reserve.Slots
	if s.Mark(1) != nil || s.Mark(1) == nil || s.Mark(-1) == nil || s.Mark(reserve.SlotsPerBlock) == nil {
		t.Error("Mark")
	}
	for _, want := range []int{0, 2, 3} {
		if got, err := s.Take(); got != want || err != nil {
			t.Errorf("Take = %d, %v; want %d", got, err, want)
		}
	}
	s.Free(2)
	s.Free(2)
	s.Free(-1)
	s.Free(reserve.SlotsPerBlock)
	if got, _ := s.Take(); got != 4 {
		t.Errorf("Take after Free = %d, want 4: what was given back rests", got)
	}
	for range reserve.SlotsPerBlock - 4 {
		if _, err := s.Take(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Take(); dayfly.ErrorCode(err) != dayfly.CodeNoCapacity {
		t.Errorf("Take of a full set = %v", err)
	}
	s.Free(reserve.SlotsPerBlock - 1)
	if got, err := s.Take(); got != reserve.SlotsPerBlock-1 || err != nil {
		t.Errorf("Take of the last = %d, %v", got, err)
	}
}

func FuzzBlock(f *testing.F) {
	f.Add([]byte(`{"version":1,"installation":"abcdef","data_dir":"/d"}`))
	f.Fuzz(func(t *testing.T, b []byte) { _ = reserve.DecodeBlock(b) })
}
