package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// openPipe is an input from which nothing comes until the test ends.
func openPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.Close()
		_ = w.Close()
	})
	return r
}

// TestBug96ToolsAskNobody is bug 97 too: what a tool of the base image does when it wants an answer, and what it prints.
func TestBug96ToolsAskNobody(t *testing.T) {
	_, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	for _, tt := range []struct{ name, command, want string }{
		{"a terminal", `read x </dev/tty || echo none`, "none"},
		{"an editor", `git init -q r && cd r && touch f && git add f && git -c user.name=a -c user.email=b commit || echo refused`, "refused"},
		{"a password", `git -c protocol.file.allow=always credential fill <<<'protocol=https
host=private.test' || echo refused`, "refused"},
		{"python", `python3 -c "print('█'); open('ü', 'w').close()"; ls | cat`, "█\nr\nü"},
		{"locale", `locale charmap`, "UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			res, err := b.Exec(ctx, sdk.Command(tt.command), sdk.ExecOptions{Timeout: 20 * time.Second})
			if err != nil || res.TimedOut || !strings.HasSuffix(strings.TrimSpace(res.Stdout), tt.want) {
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
}

// serverBytes is the most memory that a server had so far.
func serverBytes(t *testing.T, s *host.Server) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatal("no VmHWM")
	}
	kb, _ := strconv.ParseInt(string(m[1]), 10, 64)
	return kb << 10
}

// zeros is so many bytes of nothing.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	clear(p[:n])
	z.left -= n
	return int(n), nil
}

func TestBug76LargeFilesFlowThroughTheServer(t *testing.T) {
	s, c := own(t)
	const size, grownMax = 1 << 30, 64 << 20
	b := box(t, c, sdk.CreateOptions{})
	sh(t, b, "true")
	before := serverBytes(t, s)
	info, err := b.Upload(t.Context(), "big", &zeros{size}, 0)
	if sdk.ErrorCode(err) == sdk.CodeDiskFull {
		t.Skip("the host's disk has no room for it")
	}
	if err != nil || info.SizeBytes != size {
		t.Fatalf("%+v, %v", info, err)
	}
	if n, err := b.Download(t.Context(), "big", io.Discard); err != nil || n != size {
		t.Errorf("%d bytes came back, %v", n, err)
	}
	if grown := serverBytes(t, s) - before; grown > grownMax {
		t.Errorf("the server grew by %d MiB", grown>>20)
	}
	// A length that is a lie: the connection ends before so much has come.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "PUT", s.URL+"/v1/sandboxes/"+b.ID+"/files/content?path=lie", io.NopCloser(&zeros{1 << 20}))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminKey(t, s))
	req.ContentLength = 2 << 20
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("half an upload answered %d", resp.StatusCode)
		}
	}
	within(t, 10*time.Second, "nothing of it is left", func() (bool, string) {
		got := sh(t, b, "ls -A | grep -v '^\\.[a-z]' || true")
		return got == "big", got
	})
}

// A file of the image that is first linked moves to the sandbox's own disk. Nobody inside sees that: git, for one, refuses to
// clone a repository whose files do.
func TestAFileOfTheImageStaysTheSame(t *testing.T) {
	_, c := shared(t)
	b := box(t, c, sdk.CreateOptions{})
	out := sh(t, b, "stat -c %d:%i /etc/debian_version; sudo ln /etc/debian_version /etc/other; stat -c %d:%i /etc/other")
	if before, after, _ := strings.Cut(out, "\n"); before != after || before == "" {
		t.Errorf("it was %s and its other name is %s", before, after)
	}
}
