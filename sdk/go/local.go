package dayfly

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// DefaultDataDir is the data directory of a server that was not told another.
const DefaultDataDir = "/var/lib/dayfly"

// Files of a server's data directory that a client on the same machine reads.
const (
	keyFile    = "admin.key"   // the first key, alone on one line
	serverFile = "server.json" // written by the running server: {"url", "pid"}
)

// localFileMax bounds how much of such a file is read, in bytes.
const localFileMax = 64 << 10

// localServer is what a data directory tells about the server of this machine.
type localServer struct{ dir string }

// url gives the address that a running server wrote down, or "" where there is none.
func (l localServer) url() string {
	b, err := readBounded(filepath.Join(l.dir, serverFile))
	if err != nil {
		return ""
	}
	var s struct {
		URL string `json:"url"`
	}
	if json.Unmarshal(b, &s) != nil {
		return ""
	}
	return s.URL
}

// key gives the admin key of the server of this machine, or why there is none for base.
func (l localServer) key(base *url.URL) (key, reason string) {
	path := filepath.Join(l.dir, keyFile)
	if !l.owns(base) {
		return "", fmt.Sprintf("%s belongs to the server of this machine and is not shown to %s", path, base.Host)
	}
	b, err := readBounded(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", path + " does not exist"
	case errors.Is(err, fs.ErrPermission):
		return "", path + " may not be read by this user (use sudo, or set " + EnvAPIKey + ")"
	case err != nil:
		return "", path + " cannot be read"
	}
	if key = strings.TrimSpace(string(b)); key == "" {
		return "", path + " is empty"
	}
	return key, ""
}

// owns tells whether base is on this machine: loopback, or the address that the running server wrote down.
func (l localServer) owns(base *url.URL) bool {
	if own, err := parseURL(l.url()); err == nil && own.Host == base.Host {
		return true
	}
	host := base.Hostname()
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, localFileMax))
}
