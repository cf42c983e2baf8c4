package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
)

// TestHowTosWork runs the commands of how-to pages as they stand there: every indented block, one after the other, in a folder with a
// small source tree, with the sandbox's id in $id.
func TestHowTosWork(t *testing.T) {
	s, c := shared(t)
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"jq", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool, " is not installed")
		}
	}
	for _, page := range []string{"stream-output.md", "watch-and-search.md", "move-files.md", "pause.md"} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("..", "..", "docs", "howto", page))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			prepare := "mkdir -p src bin && echo text >src/file && echo 1,2 >input.csv && ln -s " + host.Bin() + "/dayfly bin/dayfly && PATH=$PWD/bin:$PATH\n" +
				"dayfly exec $id -- sh -c 'mkdir -p work && echo hi >work/report.html && echo hi >report.html'\n"
			b := box(t, c, sdk.CreateOptions{})
			script := exec.CommandContext(t.Context(), "bash", "-c", "set -eo pipefail -x\n"+prepare+blocks(string(text)))
			script.Dir = dir
			script.Env = append(s.Cmd(t.Context(), host.Command{}).Env, "id="+b.ID, "ID="+b.ID, "URL="+s.URL, "KEY="+key, "HOME="+dir)
			if out, err := script.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// blocks are the indented lines of a page.
func blocks(page string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			b.WriteString(code)
		}
	}
	return b.String()
}
