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
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly/internal/api"
	"dayfly.dev/dayfly/internal/cleanup"
	"dayfly.dev/dayfly/internal/control"
)

// drainTimeout is how long a stopping server lets requests finish.
const drainTimeout = 10 * time.Second

func serverCommand() *cobra.Command {
	var newKey bool
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run the server in the foreground",
		Long: "Run the server, which is also this machine's node, in the foreground. A first start with an empty data directory\n" +
			"creates everything: database, first key (file admin.key), disk pool, base image. It needs root. `dayfly up` does\n" +
			"the same in the background. Stopping it stops no sandbox.",
		Example: "  sudo dayfly server --data /srv/dayfly --listen 127.0.0.1:2525",
		Args:    cobra.NoArgs,
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
	if os.Geteuid() != 0 {
		return fmt.Errorf("the server needs root\nhint: run it with sudo")
	}
	log := newLogger(cfg.Log.Level)
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w\nhint: choose another address with --listen", err)
	}
	var undo cleanup.Stack
	defer undo.Clean()
	undo.Add(func() { _ = listener.Close() })
	h, err := openHost(ctx, cfg, log)
	if err != nil {
		return err
	}
	undo.Add(h.close)
	plane := control.New(h.store, h.node, h.images, cfg.control(), log)
	undo.Add(plane.Close)

	srv := api.NewServer(api.New(plane, api.Options{Log: log, Version: version}), log)
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(listener) }()
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
	sayReady()
	select {
	case <-ctx.Done():
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	}
	return drain(plane, srv, log)
}

// firstStart recovers, then makes whatever a first start must make, before requests are taken.
func firstStart(ctx context.Context, cfg config, h *host, plane *control.Plane, log *slog.Logger) error {
	if err := plane.Start(ctx); err != nil {
		return err
	}
	if err := ensureKey(ctx, cfg, h.store, plane); err != nil {
		return err
	}
	return ensureBase(ctx, cfg, h, plane, log)
}

// drain refuses new work and lets short requests finish. Long ones are cut: their processes go on and can be resumed.
func drain(plane *control.Plane, srv *http.Server, log *slog.Logger) error {
	log.Info("stopping; sandboxes go on")
	plane.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}

// sayReady tells `dayfly up`, if that started us, that requests are taken.
func sayReady() {
	fd, err := strconv.Atoi(os.Getenv(readyEnv))
	if err != nil || fd < 3 {
		return
	}
	f := os.NewFile(uintptr(fd), "ready")
	_, _ = f.WriteString("ready\n")
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
