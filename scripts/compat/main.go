// Command compat runs real programs inside sandboxes of each isolation and writes docs/COMPATIBILITY.md. It starts a server of
// its own, and beside it a package index, registries and a git server on this machine, behind a network namespace: no packet
// leaves it. fetch.sh gets the packages first. It needs root. `make compat` does it all.
//
// To try one more program, add it to programs.go; a package for it goes into fetch.sh. It is no test of Dayfly's guarantees:
// what fails here is told to users as a limit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
	"dayfly.dev/dayfly/test/host"
	"dayfly.dev/dayfly/test/outside"
)

// isolations are the columns of the table.
var isolations = []string{"linux", "gvisor"}

const (
	imageName   = "compat"
	boxLease    = 30 * time.Minute
	programMax  = 15 * time.Minute
	cleanupMax  = time.Minute
	failureTail = 200 // bytes of a failure's last line that the table shows
)

func main() {
	packages := flag.String("packages", "bin/compat", "what fetch.sh fetched")
	wheels := flag.String("wheels", "bin/wheels", "Python packages for the index")
	only := flag.String("only", "", "try only programs whose name matches this regular expression, and write no table")
	out := flag.String("o", "docs/COMPATIBILITY.md", "where the table is written")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pattern, err := regexp.Compile(*only)
	if err == nil {
		err = run(ctx, *packages, *wheels, pattern, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(1)
	}
}

// trial is what the programs are tried with.
type trial struct {
	packages string
	api      *sdk.Client
	world    *outside.World
	lacking  map[string]string // isolations that this host cannot give, with the reason
}

func run(ctx context.Context, packages, wheels string, only *regexp.Regexp, out string) (err error) {
	registry, err := newRegistry(filepath.Join(packages, "npm"))
	if err != nil {
		return fmt.Errorf("read the npm packages: %w", err)
	}
	t := &trial{packages: packages, lacking: map[string]string{}}
	t.world, err = outside.Start(ctx, outside.Options{Wheels: wheels, Further: map[string]http.Handler{
		"/debs/": http.StripPrefix("/debs/", http.FileServer(http.Dir(filepath.Join(packages, "debs")))),
		"/npm/":  registry,
	}})
	if err != nil {
		return fmt.Errorf("start the outside: %w", err)
	}
	defer func() { err = errors.Join(err, t.world.Close()) }()
	srv, err := host.Start(ctx, host.Options{})
	if err != nil {
		return fmt.Errorf("start a server: %w", err)
	}
	defer func() { err = errors.Join(err, srv.Close()) }()
	if t.api, err = srv.Client(); err != nil {
		return err
	}
	if err := t.importImage(ctx); err != nil {
		return fmt.Errorf("import the image: %w", err)
	}
	t.lookForIsolations(ctx)
	rows, err := t.tryAll(ctx, only)
	if err != nil || only.String() != "" {
		return err
	}
	return os.WriteFile(out, []byte(page(ctx, t, rows)), 0o644)
}

func (t *trial) importImage(ctx context.Context) error {
	f, err := os.Open(filepath.Join(t.packages, "image.tar.zst"))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = t.api.ImportImage(ctx, imageName, f, sdk.ImportOptions{})
	return err
}

func (t *trial) lookForIsolations(ctx context.Context) {
	for _, isolation := range isolations {
		_, err := t.try(ctx, isolation, program{script: "echo here", want: "here"})
		if err != nil {
			t.lacking[isolation] = err.Error()
			fmt.Fprintf(os.Stderr, "%s cannot be tried here: %v\n", isolation, err)
		}
	}
}

// row is one program with what became of it.
type row struct {
	program
	results map[string]result
}

type result struct {
	works bool
	said  string // the last line of a failure, or why it was not tried
	tried bool
}

func (t *trial) tryAll(ctx context.Context, only *regexp.Regexp) ([]row, error) {
	var rows []row
	for _, p := range programs {
		if !only.MatchString(p.name) {
			continue
		}
		r := row{program: p, results: map[string]result{}}
		found := make([]result, len(isolations))
		var all sync.WaitGroup
		for i, isolation := range isolations {
			all.Go(func() { found[i] = t.result(ctx, isolation, p) })
		}
		all.Wait()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for i, isolation := range isolations {
			r.results[isolation] = found[i]
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func (t *trial) result(ctx context.Context, isolation string, p program) result {
	if why := t.lacking[isolation]; why != "" {
		return result{said: why}
	}
	if p.needs != "" {
		if _, err := os.Stat(filepath.Join(t.packages, p.needs)); err != nil {
			return result{said: "the packages for it could not be fetched"}
		}
	}
	began := time.Now()
	said, err := t.try(ctx, isolation, p)
	r := result{works: err == nil, tried: true}
	if err != nil {
		r.said = lastLine(err.Error())
	}
	fmt.Fprintf(os.Stderr, "%-7s %-45s %-5v %6.1f s  %s\n", isolation, p.name, r.works, time.Since(began).Seconds(), lastLine(said))
	if err != nil {
		fmt.Fprintln(os.Stderr, indent(err.Error()))
	}
	return r
}

// try runs a program in a sandbox of its own and gives what it said.
func (t *trial) try(ctx context.Context, isolation string, p program) (said string, err error) {
	box, err := t.api.Create(ctx, sdk.CreateOptions{Isolation: isolation, Image: imageName, Size: "medium", Timeout: boxLease})
	if err != nil {
		return "", err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupMax)
		defer cancel()
		err = errors.Join(err, box.Delete(ctx))
	}()
	res, err := box.Exec(ctx, sdk.Argv("bash", "-euo", "pipefail", "-c", prelude+p.script), sdk.ExecOptions{
		User: p.user, Timeout: programMax, Env: map[string]string{"OUTSIDE": t.world.URL, "REPO": t.world.CloneURL(), "DEBIAN_FRONTEND": "noninteractive"},
	})
	if err != nil {
		return "", err
	}
	if res.ExitCode != 0 || !strings.Contains(res.Stdout, p.want) {
		return "", fmt.Errorf("exit code %d (time out: %v, out of memory: %v)\n%s\n%s", res.ExitCode, res.TimedOut, res.OOMKilled, tail(res.Stdout), tail(res.Stderr))
	}
	return res.Stdout, nil
}

const tailMax = 1500 // bytes of each output that a failure tells

func tail(s string) string { return s[max(0, len(s)-tailMax):] }

func indent(s string) string {
	return "        " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n        ")
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	return last[:min(len(last), failureTail)]
}
