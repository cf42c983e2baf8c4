package main

import (
	"net"
	"os"
	"strings"
)

// notifyEnv names the socket on which a service manager waits for news.
const notifyEnv = "NOTIFY_SOCKET"

// What a service manager is told.
const (
	notifyReady    = "READY=1"
	notifyStopping = "STOPPING=1"
)

// notify tells the service manager that started this process, if one did, what has become of it. Nothing depends on its
// being heard.
func notify(state string) {
	path := os.Getenv(notifyEnv)
	if path == "" {
		return
	}
	if strings.HasPrefix(path, "@") { // an abstract socket
		path = "\x00" + path[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte(state))
	_ = conn.Close()
}
