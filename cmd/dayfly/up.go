package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/cli"
	sdk "dayfly.dev/dayfly/sdk/go"
)

// Waits of up and down.
const (
	upTimeout   = 3 * time.Minute // a first start imports the base image
	downTimeout = time.Minute
	logTail     = 4 << 10 // bytes of the log that a failed start shows
)

// readyFD is the descriptor on which a server started by up says that it is ready.
const readyFD = 3

// readyWord is the first line there; notes for people follow.
const readyWord = "ready"

// readyEnv tells the server to use readyFD.
const readyEnv = "DAYFLY_READY_FD"

func upCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a server for this machine in the background",
		Long: "Start a server for this machine in the background and wait until it is ready. Where one runs already, it only\n" +
			"says so. It prints where the server listens and where its first key is.",
		Example: "  sudo dayfly up\n  sudo dayfly up --data /srv/dayfly --listen 127.0.0.1:2525",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := needRoot("up"); err != nil {
				return err
			}
			if _, running := settledServer(cfg.Data); running {
				fmt.Fprintln(cmd.ErrOrStderr(), "a server runs already; other settings need a `dayfly down` first")
			} else if err := startServer(cmd, cfg); err != nil {
				return err
			}
			return printServer(cmd, cfg)
		},
	}
	addSettings(cmd)
	return cmd
}

// startServer starts `dayfly server` in a session of its own and waits until it says that it is ready, or dies.
func startServer(cmd *cobra.Command, cfg config) error {
	logFile, err := openLog(cfg.Data)
	if err != nil {
		return err
	}
	defer logFile.Close()
	begin, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	ready, said, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer ready.Close()
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	server := exec.Command(exe, append([]string{"server"}, passOn(cmd, cfg)...)...)
	server.Stdout, server.Stderr = logFile, logFile
	server.ExtraFiles = []*os.File{said}
	server.Env = append(os.Environ(), fmt.Sprintf("%s=%d", readyEnv, readyFD))
	server.Dir = "/"
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	fmt.Fprintln(cmd.ErrOrStderr(), "starting the server …")
	err = server.Start()
	_ = said.Close()
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	if err := ready.SetReadDeadline(time.Now().Add(upTimeout)); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(ready, logTail))
	if notes, ok := strings.CutPrefix(string(b), readyWord+"\n"); ok {
		for line := range strings.Lines(notes) {
			fmt.Fprint(cmd.ErrOrStderr(), "note: ", line)
		}
		return server.Process.Release()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return dayfly.Errorf(dayfly.CodeUnavailable, "the server is not ready after %s; it goes on", upTimeout).WithHint("see %s", logFile.Name())
	}
	_ = server.Wait()
	return dayfly.Errorf(dayfly.CodeUnavailable, "the server did not start: %s", lastWords(tail(logFile.Name(), begin, logTail))).
		WithHint("the whole log is %s", logFile.Name())
}

// lastWords gives what a server said when it gave up, else all of the log's end.
func lastWords(log string) string {
	log = strings.TrimSpace(log)
	const own = "dayfly: " // how every command begins what failed
	if i := strings.LastIndex("\n"+log, "\n"+own); i >= 0 {
		return log[i+len(own):]
	}
	return "\n" + log
}

// openLog opens the log of background servers of a data directory for appending.
func openLog(dataDir string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Join(dataDir, logsDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dataDir, logsDir, serverLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	return f, nil
}

// passOn gives the settings' flags that were set, for the server's command line, and the paths among the settings wherever
// they came from: the server runs in another working directory.
func passOn(cmd *cobra.Command, cfg config) []string {
	args := []string{"--data=" + cfg.Data}
	if cfg.file != "" {
		args = append(args, "--config="+absolute(cfg.file))
	}
	if cfg.BaseImage != "" {
		args = append(args, "--base-image="+absolute(cfg.BaseImage))
	}
	for _, s := range settings {
		if s.flag == "data" || s.flag == "base-image" {
			continue
		}
		if f := cmd.Flags().Lookup(s.flag); f != nil && f.Changed {
			args = append(args, "--"+s.flag+"="+f.Value.String())
		}
	}
	return args
}

// absolute makes a path independent of the working directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func printServer(cmd *cobra.Command, cfg config) error {
	info, running := runningServer(cfg.Data)
	keyPath := filepath.Join(cfg.Data, adminKeyFile)
	ready := readinessOf(cmd.Context(), info)
	if asJSON(cmd) {
		return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{
			"running": running, "url": info.URL, "pid": info.PID, "version": info.Version, "data": cfg.Data, "key_file": keyPath,
			"problems": ready.Problems, "degraded": ready.Degraded,
		})
	}
	out := cmd.OutOrStdout()
	if !running {
		fmt.Fprintf(out, "no server runs on %s\nhint: start one with `sudo dayfly up`\n", cfg.Data)
		return nil
	}
	if info.PID == 0 {
		fmt.Fprintf(out, "a server uses %s, but does not say where it listens\nhint: run this with sudo; a server that starts says so in a moment\n", cfg.Data)
		return nil
	}
	fmt.Fprintf(out, "URL   %s\nKey   %s\nData  %s\nPID   %d\n", info.URL, keyPath, cfg.Data, info.PID)
	for _, p := range ready.Problems {
		fmt.Fprintf(out, "problem: %s: %s\n", p.Component, p.Message)
	}
	for _, s := range ready.Degraded {
		fmt.Fprintf(out, "stuck: sandbox %s: %s fails since %s and is tried again (%d times so far)\n", s.Sandbox, s.Step,
			s.Since.Local().Format(time.DateTime), s.Tries)
	}
	return nil
}

// readinessMax is how long a server may take to say how it is.
const readinessMax = 3 * time.Second

// readinessOf asks a server how it is. One that cannot be asked says nothing.
func readinessOf(ctx context.Context, info serverInfo) sdk.Readiness {
	var ready sdk.Readiness
	if info.URL != "" {
		ctx, cancel := context.WithTimeout(ctx, readinessMax)
		defer cancel()
		if client, err := sdk.New(sdk.Options{URL: info.URL}); err == nil {
			ready, _ = client.Ready(ctx)
		}
	}
	if ready.Problems == nil {
		ready.Problems = []sdk.Problem{}
	}
	if ready.Degraded == nil {
		ready.Degraded = []sdk.Stuck{}
	}
	return ready
}

// downResult is the end of a server with -o json.
type downResult struct {
	Data      string `json:"data"`
	Stopped   bool   `json:"stopped"` // a server ran
	Destroyed bool   `json:"destroyed"`
	Ended     int    `json:"ended"` // sandboxes, by --destroy
	Purged    bool   `json:"purged"`
}

func downCommand() *cobra.Command {
	var all, purge bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the server of this machine; sandboxes go on until their leases end",
		Long: "Stop the server of this machine. Sandboxes go on, and the warden ends each at its deadline.\n" +
			"With --destroy every sandbox ends at once and everything Dayfly has in the kernel goes: cgroups, mounts, loop\n" +
			"devices, network, processes; this works with no server running, too. Database, keys and images stay in the data\n" +
			"directory for the next start, unless --purge removes them as well.",
		Example: "  sudo dayfly down\n  sudo dayfly down --destroy --data /srv/dayfly",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := needRoot("down"); err != nil {
				return err
			}
			done := downResult{Data: cfg.Data, Destroyed: all || purge, Purged: purge}
			if done.Stopped, err = stopServer(cmd, cfg); err != nil {
				return err
			}
			if done.Destroyed {
				if done.Ended, err = destroyAll(cmd.Context(), cfg, purge, cmd.ErrOrStderr()); err != nil {
					return err
				}
			}
			if asJSON(cmd) {
				return cli.WriteJSON(cmd.OutOrStdout(), done)
			}
			return nil
		},
	}
	addSettings(cmd, "data")
	cmd.Flags().BoolVar(&all, "destroy", false, "end every sandbox and take everything out of the kernel")
	cmd.Flags().BoolVar(&purge, "purge", false, "with --destroy: remove the data directory's content, keys and images too")
	return cmd
}

// stopServer asks the running server to stop and waits for its end, without polling. It tells whether one ran.
func stopServer(cmd *cobra.Command, cfg config) (bool, error) {
	info, running := runningServer(cfg.Data)
	if !running {
		fmt.Fprintf(cmd.ErrOrStderr(), "no server runs on %s\n", cfg.Data)
		return false, nil
	}
	if info.PID <= 1 {
		return false, fmt.Errorf("a server holds %s but has not said its process id; try again in a moment", cfg.Data)
	}
	fd, err := unix.PidfdOpen(info.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("watch the server: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("stop the server: %w", err)
	}
	deadline := time.Now().Add(downTimeout)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n == 0 {
			return false, fmt.Errorf("the server (process %d) is still stopping after %s", info.PID, downTimeout)
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "the server has stopped")
		return true, err
	}
}

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Tell whether a server runs on this machine, and where",
		Example: "  dayfly status\n  dayfly status -o json",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := printServer(cmd, cfg); err != nil {
				return err
			}
			if !serverLocked(cfg.Data) {
				return cli.ErrSaid
			}
			return nil
		},
	}
	addSettings(cmd, "data")
	return cmd
}
