package cell

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Where the machine finds what the node gives it.
const (
	guestShown  = "/run/dayfly"
	ociVersion  = "1.0.2"
	shmShare    = 2 // one part in so many of the memory may be files in /dev/shm
	nofileFloor = 1024
	coreMax     = 1 // bytes; not 0, as under the linux driver
)

// guestSockDir is where the agent makes its socket. The directory's name keeps runsc from mounting memory over /tmp, and both
// the mount and the directory are gone before anything else runs inside.
func guestSockDir(id string) string { return "/tmp/.dayfly-" + id }

// capabilities are those of root inside, the list that Docker gives its containers. They are the user-space kernel's: none of
// them means anything to the host's.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// bornCapabilities are those of the agent until it has unmounted its socket's directory (guest.go).
var bornCapabilities = append([]string{"CAP_SYS_ADMIN"}, capabilities...)

// The part of the OCI runtime specification that is used here.
type (
	ociSpec struct {
		Version  string     `json:"ociVersion"`
		Process  ociProcess `json:"process"`
		Root     ociRoot    `json:"root"`
		Hostname string     `json:"hostname"`
		Mounts   []ociMount `json:"mounts"`
		Linux    ociLinux   `json:"linux"`
	}
	ociProcess struct {
		User            map[string]int      `json:"user"`
		Args            []string            `json:"args"`
		Env             []string            `json:"env"`
		Cwd             string              `json:"cwd"`
		Capabilities    map[string][]string `json:"capabilities"`
		Rlimits         []ociRlimit         `json:"rlimits"`
		NoNewPrivileges bool                `json:"noNewPrivileges"`
	}
	ociRlimit struct {
		Type string `json:"type"`
		Hard uint64 `json:"hard"`
		Soft uint64 `json:"soft"`
	}
	ociRoot struct {
		Path string `json:"path"`
	}
	ociMount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options,omitempty"`
	}
	ociNamespace struct {
		Type string `json:"type"`
		Path string `json:"path,omitempty"`
	}
	ociLinux struct {
		Namespaces []ociNamespace `json:"namespaces"`
	}
)

// writeSpec writes the bundle's config.json. The network namespace is the cell's; the others only mean something to the
// user-space kernel.
func writeSpec(cfg Config) error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("read limit of open files: %w", err)
	}
	open := max(nofileFloor, min(files.Max, cfg.OpenMax))
	procs := uint64(cfg.Limits.PIDs)
	shm := []string{"nosuid", "nodev", "noexec", "mode=1777"}
	if cfg.Limits.MemoryBytes > 0 {
		shm = append(shm, "size="+strconv.FormatInt(cfg.Limits.MemoryBytes/shmShare, 10))
	}
	spec := ociSpec{
		Version: ociVersion,
		Process: ociProcess{
			User: map[string]int{"uid": 0, "gid": 0},
			Args: []string{"dayfly-agent", "guest"},
			// GOMAXPROCS keeps the agent's runtime small until it takes over.
			Env: []string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0,updatemaxprocs=0"},
			Cwd: "/",
			Capabilities: map[string][]string{
				"bounding": bornCapabilities, "effective": bornCapabilities, "permitted": bornCapabilities, "inheritable": {},
			},
			Rlimits: []ociRlimit{
				{"RLIMIT_NOFILE", open, open}, {"RLIMIT_NPROC", procs, procs}, {"RLIMIT_CORE", coreMax, coreMax},
			},
		},
		Root:     ociRoot{Path: rootDir},
		Hostname: cfg.ID,
		Mounts: []ociMount{
			{"/proc", "proc", "proc", nil},
			{"/dev", "tmpfs", "tmpfs", nil},
			{"/dev/pts", "devpts", "devpts", nil},
			{"/dev/shm", "tmpfs", "shm", shm},
			{"/sys", "sysfs", "sysfs", []string{"nosuid", "noexec", "nodev", "ro"}},
			{guestShown, "bind", shownDir, []string{"bind", "ro", "nosuid", "nodev", "noexec"}},
			{guestSockDir(cfg.ID), "bind", sockDir, []string{"bind", "rw", "nosuid", "nodev", "noexec"}},
		},
		Linux: ociLinux{Namespaces: []ociNamespace{
			{Type: "pid"}, {Type: "ipc"}, {Type: "uts"}, {Type: "mount"}, {Type: "network", Path: "/proc/self/ns/net"},
		}},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode specification: %w", err)
	}
	return os.WriteFile(bundleDir+"/config.json", b, filePerm)
}
