package cell

import (
	"strings"
	"testing"
)

func TestPlain(t *testing.T) {
	for _, tt := range []struct{ name, said, want string }{
		{"nothing", "", ""},
		{"a line of a log", "W1129 21:43:50.429226       6 membarrier.go:48] membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) failed: invalid argument\n", ""},
		{"an error with its way", "running container: starting container: starting root container: starting sandbox: failed to setupFS: no room\n", "failed to setupFS: no room"},
		{"both", "W1129 21:43:50.429226 6 x.go:1] y\ncreating container: cannot create gofer process: z\n", "cannot create gofer process: z"},
		{"the agent's, twice", "dayfly-agent: open socket: no\ndayfly-agent: open socket: no\n", "open socket: no"},
		{"two", "a\n\nb\n", "a; b"},
		{"endless", strings.Repeat("x", saidMax), strings.Repeat("x", tellMax)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := plain(tt.said); got != tt.want {
				t.Errorf("plain = %q, want %q", got, tt.want)
			}
		})
	}
}

func FuzzPlain(f *testing.F) {
	f.Add("W1129 21:43:50.429226 6 x.go:1] y\nrunning container: z\n")
	f.Add("dayfly-agent: \xff\n")
	f.Fuzz(func(t *testing.T, said string) {
		if got := plain(said); len(got) > tellMax || strings.ContainsAny(got, "\n") {
			t.Errorf("plain(%q) = %q", said, got)
		}
	})
}

func TestAwaitReady(t *testing.T) {
	for _, tt := range []struct{ name, said, text string }{
		{"ready", readyText, ""},
		{"ready behind warnings", "W1129 21:43:50.429226 6 x.go:1] y\n" + readyText + "more", ""},
		{"failed", "dayfly-agent: no\n", "no"},
		{"endless", strings.Repeat("x", 2*saidMax), strings.Repeat("x", tellMax)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, err := awaitReady(strings.NewReader(tt.said))
			if text != tt.text || (err == nil) != (tt.text == "") {
				t.Errorf("text %q, %v; want %q", text, err, tt.text)
			}
		})
	}
}
