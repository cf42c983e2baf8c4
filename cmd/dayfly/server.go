package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/api"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/cli"
	"dayfly.dev/dayfly/internal/control"
	"dayfly.dev/dayfly/internal/hostnet"
	"dayfly.dev/dayfly/internal/metrics"
)

// serverUmask keeps the modes that this program asks for: the agents read files that the server makes for them.
const serverUmask = 0o022

// serverGCPercent lets the heap grow to four times what is in use before it is collected, unless GOGC says otherwise: the
// server's heap is small and a burst of creates makes much garbage.
const serverGCPercent = 300

// Bounds of the connections that are open at a time.
const (
	connectionsLeast = 256
	connectionsMost  = 10_000
)

// drainTimeout is how long a stopping server lets requests finish.
const drainTimeout = 10 * time.Second

// settingsLong describes the config file.
const settingsLong = `A setting is taken from its flag, else from its environment variable, else from the config file, which is YAML. With
every setting at its default, it says:

  data: /var/lib/dayfly
  listen: 127.0.0.1:2424
  base_image: ""                # beside this program
  lease: {max: 24h}
  network: {range: ` + hostnet.RangeDefault + `, allow_private: []}
  disk: {pool: auto, quota: auto, size_gb: 0, discard: false}    # size_gb 0: from the free space
  sandbox:
    pids: 2048                  # processes and threads at once
    max_live: 100               # quota of accounts made from now on
    sizes:
      small: {vcpu: 1, memory_mb: 1024, disk_mb: 8192}
      medium: {vcpu: 2, memory_mb: 4096, disk_mb: 16384}
      large: {vcpu: 4, memory_mb: 8192, disk_mb: 32768}
  log: {level: info}`

func serverCommand() *cobra.Command {
	var newKey bool
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run the server in the foreground",
		Long: "Run the server, which is also this machine's node, in the foreground. A first start with an empty data directory\n" +
			"creates everything: database, first key (file admin.key), disk pool, base image. It needs root. `dayfly up` does\n" +
			"the same in the background. Stopping it stops no sandbox.\n\n" + settingsLong,
		Example: "  sudo dayfly server --data /srv/dayfly --listen 127.0.0.1:2525\n  sudo dayfly server --config /etc/dayfly.yaml",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			cfg.newAdminKey = newKey
			return serve(cmd.Context(), cfg)
		},
	}
	addSettings(cmd)
	cmd.Flags().BoolVar(&newKey, "new-admin-key", false, "make a new admin key and write it to admin.key, for when the last one was lost")
	return cmd
}

// serve runs the server until ctx ends.
func serve(ctx context.Context, cfg config) error {
	if err := needRoot("the server"); err != nil {
		return err
	}
	unix.Umask(serverUmask)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(serverGCPercent)
	}
	keepReadyFD()
	log := newLogger(cfg.Log.Level)
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return dayfly.Errorf(dayfly.CodeUnavailable, "cannot listen on %s", cfg.Listen).WithCause(err).WithHint("choose another address with --listen")
	}
	var undo cleanup.Stack
	defer undo.Clean()
	undo.Add(func() { _ = listener.Close() })
	h, err := openHost(ctx, cfg, log)
	if err != nil {
		return err
	}
	undo.Add(h.close)
	figures := metrics.New(version, log)
	decisions := cfg.control()
	decisions.Meter, decisions.Wake = figures, h.wake
	plane := control.New(h.store, h.node, h.images, decisions, log)
	undo.Add(plane.Close)
	figures.Watch(metrics.Sources{Sandboxes: plane.Count, Pool: h.pool, Warden: h.guard.Alive})

	edge := api.New(plane, api.Options{Log: log, Version: version, Metrics: figures.Handler()})
	srv := api.NewServer(edge, log)
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(api.Limit(listener, connectionsMax())) }()
	undo.Add(func() { _ = srv.Close() })

	if err := firstStart(ctx, cfg, h, plane, log); err != nil {
		return err
	}
	plane.Accept()
	info := serverInfo{URL: publicURL(listener.Addr()), PID: os.Getpid(), Version: version}
	if err := writeServerInfo(cfg.Data, info); err != nil {
		return err
	}
	undo.Add(func() { _ = os.Remove(filepath.Join(cfg.Data, serverInfoFile)) })
	log.Info("ready", "url", info.URL, "key", filepath.Join(cfg.Data, adminKeyFile), "version", version)
	sayReady(h.notes)
	notify(notifyReady)
	select {
	case <-ctx.Done():
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	}
	return drain(plane, edge, srv, log)
}

// connectionsMax leaves half of this process's descriptors to the machines.
func connectionsMax() int {
	var open syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &open); err != nil {
		return connectionsLeast
	}
	return int(max(connectionsLeast, min(connectionsMost, open.Cur/2)))
}

// firstStart recovers, then makes whatever a first start must make, before requests are taken.
func firstStart(ctx context.Context, cfg config, h *host, plane *control.Plane, log *slog.Logger) error {
	if err := plane.Start(ctx); err != nil {
		return err
	}
	if err := h.guard.EndRecovery(); err != nil {
		return fmt.Errorf("end the recovery: %w", err)
	}
	if err := ensureKey(ctx, cfg, h.store, plane); err != nil {
		return err
	}
	return ensureBase(ctx, cfg, h, plane, log)
}

// drain refuses new work and lets short requests finish. Long ones are cut: their processes go on and can be resumed.
func drain(plane *control.Plane, edge *api.Handler, srv *http.Server, log *slog.Logger) error {
	log.Info("stopping; sandboxes go on")
	notify(notifyStopping)
	plane.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	var attached sync.WaitGroup
	attached.Go(func() {
		if err := edge.Drain(ctx); err != nil {
			log.Warn("clients are still attached; they are cut", "error", err)
		}
	})
	defer attached.Wait()
	if err := srv.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}

// keepReadyFD keeps the descriptor that says "ready" from the processes that this one starts.
func keepReadyFD() {
	if fd, err := strconv.Atoi(os.Getenv(readyEnv)); err == nil && fd == readyFD {
		unix.CloseOnExec(fd)
	}
}

// sayReady tells `dayfly up`, if that started us, that requests are taken, and what a person should know.
func sayReady(notes []string) {
	fd, err := strconv.Atoi(os.Getenv(readyEnv))
	if err != nil || fd != readyFD {
		return
	}
	f := os.NewFile(uintptr(fd), "ready")
	_, _ = f.WriteString(strings.Join(append([]string{readyWord}, notes...), "\n") + "\n")
	_ = f.Close()
}

// publicURL is the address that clients on this machine use.
func publicURL(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return "http://" + addr.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

func newLogger(level string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // checked with the settings
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
}
