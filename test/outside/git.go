package outside

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// RepositoryName is the repository that the git server holds.
const RepositoryName = "shop.git"

//go:embed all:shop
var shop embed.FS

// CloneURL is where the repository can be cloned from.
func (w *World) CloneURL() string { return w.URL + "/git/" + RepositoryName }

// gitHandler serves repositories below dir/git over the smart HTTP protocol, by git's own server program.
func gitHandler(dir string) http.Handler {
	return &cgi.Handler{
		Path: gitBackend(), Root: "/git",
		Env:        []string{"GIT_PROJECT_ROOT=" + filepath.Join(dir, "git"), "GIT_HTTP_EXPORT_ALL=1"},
		InheritEnv: []string{"PATH"},
	}
}

func gitBackend() string {
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return "/usr/lib/git-core/git-http-backend"
	}
	return filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
}

func (w *World) makeRepository(ctx context.Context) error {
	return git(ctx, "", "init", "--quiet", "--bare", "--initial-branch=main", w.repository())
}

// fillRepository commits the project in shop/ with this world's address in its requirements file.
func (w *World) fillRepository(ctx context.Context) error {
	work := filepath.Join(w.dir, "work")
	if err := git(ctx, "", "clone", "--quiet", w.repository(), work); err != nil {
		return err
	}
	err := fs.WalkDir(shop, "shop", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(work, strings.TrimPrefix(path, "shop"))
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		b, err := shop.ReadFile(path)
		if err != nil {
			return err
		}
		host := strings.TrimSuffix(strings.TrimPrefix(w.URL, "http://"), ":80")
		text := strings.NewReplacer("@INDEX@", "http://"+host+"/simple/", "@HOST@", host).Replace(string(b))
		return os.WriteFile(target, []byte(text), 0o644)
	})
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"add", "--all"},
		{"-c", "user.name=Shop", "-c", "user.email=shop@example.invalid", "commit", "--quiet", "-m", "The shop"},
		{"push", "--quiet", "origin", "HEAD:main"},
	} {
		if err := git(ctx, work, args...); err != nil {
			return err
		}
	}
	return nil
}

func git(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("git %s: %w", strings.Join(args, " "), err), errors.New(string(out)))
	}
	return nil
}
