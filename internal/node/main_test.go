package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"dayfly.dev/dayfly/internal/driver/drivertest"
)

// leakWait is how long goroutines of the tests may take to end: machines die in the background.
const leakWait = 30 * time.Second

// TestMain fails when a goroutine of ours outlives the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(agentDir)
	if left := leaked(); left != "" && code == 0 {
		fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// agentDir holds the agent that the tests run, built once.
var (
	agentDir  string
	agentOnce sync.Once
)

func agent(t *testing.T) string {
	t.Helper()
	agentOnce.Do(func() {
		built := drivertest.Build(t, drivertest.AgentPackage)
		dir, err := os.MkdirTemp("", "dayfly-node-test-")
		if err == nil {
			agentDir = dir
			err = os.Rename(built, filepath.Join(dir, "dayfly-agent"))
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	return filepath.Join(agentDir, "dayfly-agent")
}

// leaked gives the stacks of our goroutines that do not end.
func leaked() string {
	var left []string
	for end := time.Now().Add(leakWait); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // no event tells
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true /* all */)]
		left = nil
		for _, stack := range strings.Split(string(buf), "\n\n") {
			if strings.Contains(stack, "dayfly.dev/dayfly/internal/") && !strings.Contains(stack, "node_test.TestMain") {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}
