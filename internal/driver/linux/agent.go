package linux

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"dayfly.dev/dayfly"
)

//go:embed embedded
var embedded embed.FS

const (
	agentEmbedded = "embedded/dayfly-agent"
	agentMaxBytes = 64 << 20
)

// errNoAgent says that this binary was built without the agent.
var errNoAgent = dayfly.Errorf(dayfly.CodeUnavailable, "this binary was built without the agent").
	WithHint("build it with make, which builds and embeds the agent first")

// AgentBinary reads the agent from path, or the embedded one when path is empty. CodeUnavailable: this
// program was built without it.
func AgentBinary(path string) ([]byte, error) {
	if path == "" {
		b, err := embedded.ReadFile(agentEmbedded)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errNoAgent
		}
		return b, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("find the agent: %w", err)
	}
	if info.Size() > agentMaxBytes {
		return nil, fmt.Errorf("the agent %s is larger than %d bytes", path, agentMaxBytes)
	}
	return os.ReadFile(path)
}
