package cell

import (
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Where the machine finds what the node gives it.
const (
	guestDir    = "/run/dayfly"
	guestSock   = guestDir + "/" + sockName + "/" + sockName
	guestAgent  = guestDir + "/" + agentName
	guestGrant  = guestDir + "/grant"
	ociVersion  = "1.0.2"
	shmBytes    = "67108864"
	nofileFloor = 1024
)

// capabilities are those of root inside, the list that Docker gives its containers without what raw network access needs.
// They are the user-space kernel's: none of them means anything to the host's.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

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
	ociLinux struct {
		Namespaces []map[string]string `json:"namespaces"`
	}
)

// writeSpec writes the bundle's config.json. Namespaces are those that the cell is in already, save the ones that only mean
// something to the user-space kernel.
func writeSpec(cfg Config) error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("read limit of open files: %w", err)
	}
	open := max(nofileFloor, min(files.Max, cfg.OpenMax))
	procs := uint64(cfg.Limits.PIDs)
	spec := ociSpec{
		Version: ociVersion,
		Process: ociProcess{
			User: map[string]int{"uid": 0, "gid": 0},
			Args: []string{guestAgent, "guest"},
			// GOMAXPROCS keeps the agent's runtime small until it takes over.
			Env:          []string{"GOMAXPROCS=1"},
			Cwd:          "/",
			Capabilities: map[string][]string{"bounding": capabilities, "effective": capabilities, "permitted": capabilities, "inheritable": {}},
			Rlimits: []ociRlimit{
				{"RLIMIT_NOFILE", open, open}, {"RLIMIT_NPROC", procs, procs}, {"RLIMIT_CORE", 0, 0},
			},
		},
		Root:     ociRoot{Path: rootDir},
		Hostname: cfg.ID,
		Mounts: []ociMount{
			{"/proc", "proc", "proc", nil},
			{"/dev", "tmpfs", "tmpfs", nil},
			{"/dev/pts", "devpts", "devpts", nil},
			{"/dev/shm", "tmpfs", "shm", []string{"nosuid", "nodev", "mode=1777", "size=" + shmBytes}},
			{"/sys", "sysfs", "sysfs", []string{"nosuid", "noexec", "nodev", "ro"}},
			{guestDir, "bind", inDir, []string{"rbind", "ro"}},
			{guestDir + "/" + sockName, "bind", sockDir, []string{"bind", "rw"}},
		},
		Linux: ociLinux{Namespaces: []map[string]string{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}}},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode specification: %w", err)
	}
	return os.WriteFile(bundleDir+"/config.json", b, filePerm)
}
