//go:build failpoints

package failpoint

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// EnvFile names the file that arms points; without it, insideFile does.
//
// Each line is NAME=ACTION[,HIT]: ACTION is kill (SIGKILL to this process), stop (SIGSTOP to it) or sleep:DURATION; HIT is which
// passage of this process through the point it is for, from 1, and 0 means each. The file is read at every point, so that a
// test may arm one at any time. A line acts once on the whole host, unless HIT is 0: whoever obeys it makes the file
// FILE.NAME.fired first, which also tells the test.
const EnvFile = "DAYFLY_FAILPOINTS_FILE"

// insideFile is where an agent, which has no environment of the host, finds its file: beside its grant.
const insideFile = "/run/dayfly/failpoints"

const fileMax = 64 << 10

var passages struct {
	sync.Mutex
	of map[string]int // by the armed line
}

// Hit obeys what is armed for the point.
func Hit(name string) {
	path := os.Getenv(EnvFile)
	if path == "" {
		path = insideFile
	}
	b, err := os.ReadFile(path)
	if err != nil || len(b) > fileMax {
		return
	}
	for line := range strings.Lines(string(b)) {
		point, what, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || point != name {
			continue
		}
		action, hit, _ := strings.Cut(what, ",")
		nth, err := strconv.Atoi(hit)
		if hit == "" {
			nth, err = 1, nil
		}
		if err == nil && (nth == 0 || pass(line) == nth && claim(path, name)) {
			act(action)
		}
	}
}

// Env gives what a child process needs in its environment to obey the same file.
func Env() []string {
	if path := os.Getenv(EnvFile); path != "" {
		return []string{EnvFile + "=" + path}
	}
	return nil
}

// pass counts a passage.
func pass(line string) int {
	passages.Lock()
	defer passages.Unlock()
	if passages.of == nil {
		passages.of = map[string]int{}
	}
	passages.of[line]++
	return passages.of[line]
}

// claim tells whether nobody obeyed the line before. Inside a sandbox the file is read-only, and the agent the only one.
func claim(path, name string) bool {
	f, err := os.OpenFile(path+"."+name+".fired", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = f.WriteString(strconv.Itoa(os.Getpid()))
		_ = f.Close()
	}
	return err == nil || filepath.Clean(path) == insideFile
}

func act(action string) {
	switch how, arg, _ := strings.Cut(action, ":"); how {
	case "kill":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		os.Exit(137) // PID 1 of a sandbox is deaf to its own signals
	case "stop":
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	case "sleep":
		if d, err := time.ParseDuration(arg); err == nil {
			time.Sleep(d)
		}
	}
}
