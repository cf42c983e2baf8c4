package agent_test

import (
	"io"
	"os/exec"
	"strconv"
	"testing"

	"dayfly.dev/dayfly"
)

// BenchmarkBareSpawn is the floor of BenchmarkRun: the same program started here.
func BenchmarkBareSpawn(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRun(b *testing.B) {
	for _, mode := range modes {
		b.Run(mode.name, func(b *testing.B) {
			m := startAgent(b, mode.options)
			for b.Loop() {
				m.run(b, dayfly.ProcessSpec{ID: dayfly.NewID(dayfly.PrefixProcess), Argv: []string{"/bin/true"}})
			}
		})
	}
}

func BenchmarkPing(b *testing.B) {
	m := startAgent(b, options{})
	for b.Loop() {
		if err := m.Ping(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

const benchBytes = 256 << 20

func BenchmarkCapturedOutput(b *testing.B) {
	m := startAgent(b, options{})
	b.SetBytes(benchBytes)
	for b.Loop() {
		m.run(b, shell("head -c "+strconv.Itoa(benchBytes)+" /dev/zero"))
	}
}

func BenchmarkFollowedOutput(b *testing.B) {
	m := startAgent(b, options{})
	b.SetBytes(benchBytes)
	for b.Loop() {
		spec := shell("head -c " + strconv.Itoa(benchBytes) + " /dev/zero")
		spec.Follow = true
		s, _, err := m.Start(b.Context(), spec, nil)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = s.Next()
		}
		if err != io.EOF {
			b.Fatal(err)
		}
		_ = s.Close()
	}
}

func BenchmarkReadFile(b *testing.B) {
	m := startAgent(b, options{})
	m.run(b, shell("head -c "+strconv.Itoa(benchBytes)+" /dev/zero > f"))
	b.SetBytes(benchBytes)
	for b.Loop() {
		_, r, err := m.Read(b.Context(), "f", dayfly.FileRange{Length: -1})
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, r); err != nil || n != benchBytes {
			b.Fatal(n, err)
		}
		_ = r.Close()
	}
}

func BenchmarkWriteFile(b *testing.B) {
	m := startAgent(b, options{})
	b.SetBytes(benchBytes)
	for b.Loop() {
		if _, err := m.Write(b.Context(), "f", nil, io.LimitReader(zeroes{}, benchBytes)); err != nil {
			b.Fatal(err)
		}
	}
}

// zeroes is an endless reader.
type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { return len(p), nil }
