package linux

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

//go:embed embedded
var embedded embed.FS

const (
	agentEmbedded = "embedded/dayfly-agent"
	agentName     = "dayfly-agent"
	agentMaxBytes = 64 << 20
	agentSeals    = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
)

// errNoAgent says that this binary was built without the agent.
var errNoAgent = dayfly.Errorf(dayfly.CodeUnavailable, "this binary was built without the agent").
	WithHint("build it with make, which builds and embeds the agent first")

// agentBinary reads the agent from path, or the embedded one when path is empty.
func agentBinary(path string) ([]byte, error) {
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

// sealAgent puts the agent into sealed memory: one copy that all machines execute and share, that has no path inside or
// outside and that nobody can change, not even by way of /proc/1/exe.
func sealAgent(binary []byte) (fd int, err error) {
	fd, err = unix.MemfdCreate(agentName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before kernel 6.3
		fd, err = unix.MemfdCreate(agentName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, fmt.Errorf("make memory for the agent: %w", err)
	}
	defer unix.Close(fd)
	for rest := binary; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			return -1, fmt.Errorf("copy the agent: %w", err)
		}
		rest = rest[n:]
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, agentSeals); err != nil {
		return -1, fmt.Errorf("seal the agent: %w", err)
	}
	// Opened again for reading only: a file that is open for writing cannot be executed.
	reader, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the sealed agent: %w", err)
	}
	high, err := moveHigh(reader)
	if err != nil {
		return -1, fmt.Errorf("open the sealed agent: %w", err)
	}
	return high, nil
}
