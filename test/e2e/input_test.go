package e2e_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// killer is an input that has the server end at certain places, with more input on its way, and come back while the client tries on.
type killer struct {
	from   io.Reader
	read   int
	places []int
	kill   func()
}

func (k *killer) Read(p []byte) (int, error) {
	n, err := k.from.Read(p)
	k.read += n
	for len(k.places) > 0 && k.read >= k.places[0] {
		k.places = k.places[1:]
		k.kill()
	}
	return n, err
}

// TestInputSurvivesRestarts: what is piped into a command arrives once, whole and in order, while the server is killed under it.
func TestInputSurvivesRestarts(t *testing.T) {
	t.Parallel()
	s, c := own(t, fixedPort(t))
	b := box(t, c, sdk.CreateOptions{Timeout: 10 * time.Minute})
	data := make([]byte, 100<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data)
	sum := sha256.Sum256(data)
	kills := 0
	var killing sync.WaitGroup
	defer killing.Wait()
	in := &killer{from: bytes.NewReader(data), places: []int{20 << 20, 70<<20 + 12345}, kill: func() {
		killing.Wait()
		kills++
		killing.Go(func() {
			if err := errors.Join(s.Kill(), s.Up(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}}
	out := s.Run(t.Context(), host.Command{Args: []string{"exec", b.ID, "--", "sh", "-c", "sha256sum; exit 5"}, Stdin: in})
	if want := hex.EncodeToString(sum[:]) + "  -\n"; out.Code != 5 || out.Stdout != want || kills != 2 {
		t.Errorf("exit %d after %d kills: %q, want %q: %s", out.Code, kills, out.Stdout, want, out.Stderr)
	}
}
