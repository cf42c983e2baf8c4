package e2e_test

import (
	"context"
	"slices"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// settleMax is how long creates whose clients have left may take to end: many under gVisor on a busy machine.
const settleMax = time.Minute

// sameLists fails the test unless the API's list of live sandboxes comes to equal the kernel's.
func sameLists(t *testing.T, s *host.Server, c *sdk.Client) {
	t.Helper()
	within(t, settleMax, "bug 8: the API's list equals the host's", func() (bool, string) {
		var recorded []string
		for b, err := range c.List(t.Context(), sdk.ListOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			recorded = append(recorded, b.ID)
		}
		slices.Sort(recorded)
		real, err := s.Machines()
		if err != nil {
			t.Fatal(err)
		}
		return slices.Equal(recorded, real), "recorded:\n" + lines(recorded) + "on the host:\n" + lines(real)
	})
}

func lines(list []string) string {
	out := ""
	for _, s := range list {
		out += "  " + s + "\n"
	}
	return out
}

// removeAll ends every sandbox of the client's account.
func removeAll(t *testing.T, c *sdk.Client) {
	t.Helper()
	for b, err := range c.List(context.WithoutCancel(t.Context()), sdk.ListOptions{}) {
		if err == nil {
			err = b.Delete(context.WithoutCancel(t.Context()))
		}
		if err != nil {
			t.Errorf("remove: %v", err)
			return
		}
	}
}
