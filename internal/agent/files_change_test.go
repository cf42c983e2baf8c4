package agent_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

func modeOf(m fs.FileMode) *fs.FileMode { return &m }

func TestMkdir(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell("mkdir dir && ln -s dir link && ln -s nowhere dangling && echo x > file"))
		for _, tt := range []struct {
			name    string
			path    string
			mode    *fs.FileMode
			parents bool
			want    dayfly.Code
			perm    fs.FileMode
		}{
			{"new", "new", nil, false, "", 0o755},
			{"slash at the end", "new2/", nil, false, "", 0o755},
			{"with mode", "moded", modeOf(0o700 | fs.ModeSticky), false, "", 0o700 | fs.ModeSticky},
			{"mode beyond the mask", "wide", modeOf(0o777), false, "", 0o777},
			{"no rights at all", "none", modeOf(0), false, "", 0},
			{"there already", "dir", nil, false, dayfly.CodeFileConflict, 0},
			{"there already with parents", "dir", nil, true, "", 0o755},
			{"link to a directory with parents", "link", nil, true, "", 0o755},
			{"through a link", "link/sub", nil, false, "", 0o755},
			{"dangling link", "dangling", nil, true, dayfly.CodeFileConflict, 0},
			{"file with parents", "file", nil, true, dayfly.CodeFileConflict, 0},
			{"below a file", "file/x", nil, true, dayfly.CodeFileConflict, 0},
			{"nothing above", "a/b/c", nil, false, dayfly.CodeFileConflict, 0},
			{"with parents", "a/b/c", modeOf(0o750), true, "", 0o750},
			{"the root", "/", nil, true, "", 0},
			{"the root anew", "/", nil, false, dayfly.CodeFileConflict, 0},
			{"dots", "a/b/..", nil, true, "", 0o755},
			{"bug 81: odd name", "a b+c%20#?\n\xff", nil, false, "", 0o755},
			{"name too long", strings.Repeat("x", 256), nil, false, dayfly.CodeInvalid, 0},
		} {
			t.Run(tt.name, func(t *testing.T) {
				info, err := m.Mkdir(t.Context(), tt.path, tt.mode, tt.parents)
				wantCode(t, err, tt.want)
				if err == nil && (info.Type != dayfly.FileDirectory || tt.path != "/" && info.Mode != tt.perm) {
					t.Errorf("%+v", info)
				}
			})
		}
		if got := out(m.run(t, shell("stat -c %a a a/b")).Stdout); got != "755\n755\n" {
			t.Errorf("parents have modes %q", got)
		}
	})
	t.Run("where the user may not", func(t *testing.T) {
		m := startAgent(t, options{root: true})
		_, err := m.Mkdir(t.Context(), "/etc/dayfly-test", nil, true)
		wantCode(t, err, dayfly.CodeFilePermission)
	})
}

func TestChmod(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell("mkdir -p t/a/b && touch t/f t/a/g t/a/b/h out && chmod 600 out t/f && ln -s ../out t/link && ln -s t tlink && mkfifo t/p && ln -s none dangling"))
		for _, tt := range []struct {
			name      string
			path      string
			mode      fs.FileMode
			recursive bool
			look      string
			want      string
		}{
			{"a file", "t/f", 0o751, false, "t/f", "751"},
			{"special bits", "t/f", 0o700 | fs.ModeSetuid, false, "t/f", "4700"},
			{"through a link", "t/link", 0o640, false, "out", "640"},
			{"a directory alone", "t", 0o750, false, "t t/a", "750 755"},
			{"a tree", "t", 0o711, true, "t t/a t/a/b t/a/b/h t/f t/p out", "711 711 711 711 711 711 640"},
			{"a tree behind a link", "tlink", 0o700, true, "t t/a/g", "700 700"},
			{"a tree that closes behind it", "t", 0o600, true, "t", "600"},
			{"a closed tree opens", "t", 0o755, true, "t t/a t/a/b t/a/b/h out", "755 755 755 755 640"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				info, err := m.Chmod(t.Context(), tt.path, tt.mode, tt.recursive)
				if err != nil {
					t.Fatal(err)
				}
				if info.Mode != tt.mode {
					t.Errorf("answered %v", info.Mode)
				}
				got := strings.Fields(out(m.run(t, shell("stat -c %a "+tt.look)).Stdout))
				if strings.Join(got, " ") != tt.want {
					t.Errorf("modes of %s are %v", tt.look, got)
				}
			})
		}
		_, err := m.Chmod(t.Context(), "none", 0o644, true)
		wantCode(t, err, dayfly.CodeFileNotFound)
		_, err = m.Chmod(t.Context(), "dangling", 0o644, false)
		wantCode(t, err, dayfly.CodeFileNotFound)
	})
	t.Run("one that is another's does not keep the rest", func(t *testing.T) {
		m := startAgent(t, options{root: true})
		m.run(t, shell("mkdir t && touch t/a t/b t/c && ln -s /etc/shadow t/link"))
		foreign := filepath.Join(m.home, "t/b")
		if err := os.Chown(foreign, 0, 0); err != nil {
			t.Fatal(err)
		}
		_, err := m.Chmod(t.Context(), "t", 0o700, true)
		wantCode(t, err, dayfly.CodeFilePermission)
		if !strings.Contains(fmt.Sprint(err), foreign) {
			t.Errorf("%v does not name %s", err, foreign)
		}
		if got := out(m.run(t, shell("stat -c %a t t/a t/b t/c")).Stdout); got != "700\n700\n644\n700\n" {
			t.Errorf("modes %q", got)
		}
	})
}

// otherFS is a directory on another file system than the tests' own, or skips.
func otherFS(t *testing.T, m *machine) string {
	var here, there unix.Stat_t
	if unix.Stat(m.home, &here) != nil || unix.Stat("/dev/shm", &there) != nil || here.Dev == there.Dev {
		t.Skip("there is no second file system at /dev/shm")
	}
	dir, err := os.MkdirTemp("/dev/shm", "dayfly-agent-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, m.owner(), m.owner()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestMove(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		for _, far := range []bool{false, true} {
			name := "one file system"
			if far {
				name = "two file systems"
			}
			t.Run(name, func(t *testing.T) {
				to := filepath.Join(m.home, "to")
				if far {
					to = otherFS(t, m)
				}
				testMove(t, m, to)
			})
		}
	})
}

func testMove(t *testing.T, m *machine, to string) {
	m.run(t, shell("mkdir -p "+to+"/full/x "+to+"/empty && echo old > "+to+"/file && ln -s file "+to+"/link"))
	for _, tt := range []struct {
		name      string
		make      string // a command that makes "from"
		to        string
		overwrite bool
		want      dayfly.Code
	}{
		{"file to a new name", "echo new > from", "new", false, ""},
		{"bug 81: odd names", "echo new > from", "a b+c%20#?&é\n\xff", false, ""},
		{"file of no bytes", ": > from", "zero", false, ""},
		{"file over a file", "echo new > from", "file", true, ""},
		{"file over a file unasked", "echo new > from", "file", false, dayfly.CodeFileConflict},
		{"file over a link", "echo new > from", "link", true, ""},
		{"file over a directory", "echo new > from", "empty", true, dayfly.CodeFileConflict},
		{"file into a directory that is not there", "echo new > from", "none/from", false, dayfly.CodeFileNotFound},
		{"file as a directory", "echo new > from", "dir/", false, dayfly.CodeFileConflict},
		{"directory to a new name", "mkdir from && echo new > from/f", "newdir/", false, ""},
		{"directory over an empty one", "mkdir from && echo new > from/f", "empty", true, ""},
		{"directory over an empty one unasked", "mkdir from && echo new > from/f", "empty", false, dayfly.CodeFileConflict},
		{"directory over a full one", "mkdir from && echo new > from/f", "full", true, dayfly.CodeFileConflict},
		{"directory over a file", "mkdir from && echo new > from/f", "file", true, dayfly.CodeFileConflict},
		{"dangling link", "ln -s nowhere from", "dangling", false, ""},
		{"FIFO", "mkfifo from", "fifo", false, ""},
		{"missing", "true", "whatever", false, dayfly.CodeFileNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m.run(t, shell(tt.make))
			const list = `find from \( -type d -printf '%P %y %m %T@\n' -o -printf '%P %y %m %l %s %T@\n' \) 2>/dev/null; find from -type f -exec cat {} + 2>/dev/null`
			before := out(m.run(t, shell(list)).Stdout)
			target := to + "/" + tt.to
			standing := "find '" + to + "' -mindepth 1 -printf '%p %y %m %s %T@\n' | sort"
			there := out(m.run(t, shell(standing)).Stdout)
			info, err := m.Move(t.Context(), "from", target, tt.overwrite)
			wantCode(t, err, tt.want)
			if err != nil {
				if got := out(m.run(t, shell(list)).Stdout); got != before {
					t.Errorf("the source is now\n%s\nand was\n%s", got, before)
				}
				if got := out(m.run(t, shell(standing)).Stdout); got != there {
					t.Errorf("the target is now\n%s\nand was\n%s", got, there)
				}
			} else if got := out(m.run(t, argv("sh", "-c", strings.ReplaceAll(list, "from", `"$0"`), strings.TrimSuffix(target, "/"))).Stdout); got != before {
				t.Errorf("the target is\n%s\nand the source was\n%s", got, before)
			} else if info.Path != filepath.Clean(target) {
				t.Errorf("answered %+v", info)
			}
			left := out(m.run(t, shell("ls -A; rm -rf from; ls -A "+to)).Stdout)
			if strings.Contains(left, ".dayfly-") || err == nil && strings.Contains(left, "from") {
				t.Errorf("left are %q", left)
			}
		})
	}
}

func TestMoveKeepsEverything(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		to := otherFS(t, m)
		m.run(t, shell(`mkdir -p from/sub/deep from/closed && cd from && echo x > f && chmod 4751 f && ln f sub/hard && ln -s f link && ln -s /nope sub/dangling &&
			touch -d @1000000000.123456789 sub/old && touch -h -d @900000000 link && truncate -s 64M hole && echo end >> hole && mkfifo p && chmod 500 closed &&
			(setfattr -n user.note -v kept f || true) && touch -d @800000000 sub/deep sub`))
		const list = `cd %s && find . -printf '%%p %%y %%m %%l %%n %%s %%T@ %%U\n' | sed 's/^\(.* d .*\) [0-9]* \([0-9.]* [0-9]*\)$/\1 \2/' | sort && sha256sum hole && stat -c %%h f && [ $(stat -c %%b hole) -lt 1000 ] && echo sparse; getfattr -d f 2>/dev/null`
		before := out(m.run(t, shell(fmt.Sprintf(list, "from"))).Stdout)
		if _, err := m.Move(t.Context(), "from", to+"/there", false); err != nil {
			t.Fatal(err)
		}
		after := out(m.run(t, shell(fmt.Sprintf(list, to+"/there"))).Stdout)
		if before != after || !strings.Contains(after, "sparse") {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
		if left := out(m.run(t, shell("ls -A")).Stdout); left != "" {
			t.Errorf("left are %q", left)
		}
	})
}

func TestMoveSpecially(t *testing.T) {
	inEachMode(t, func(t *testing.T, m *machine) {
		m.run(t, shell("mkdir -p d/sub && echo x > a && ln a b && ln -s d dl"))
		for _, tt := range []struct {
			name, from, to string
			overwrite      bool
			want           dayfly.Code
		}{
			{"into itself", "d", "d/sub/d", false, dayfly.CodeInvalid},
			{"into itself with overwrite", "d", "d/new", true, dayfly.CodeInvalid},
			{"into itself through a link", "d", "dl/new", false, dayfly.CodeInvalid},
			{"the root", "/", "x", false, dayfly.CodeFileConflict},
			{"onto itself", "a", "a", true, ""},
			{"onto itself unasked", "a", "a", false, dayfly.CodeFileConflict},
			{"over another name of itself", "b", "a", true, ""},
			{"to an empty path", "a", "", false, dayfly.CodeInvalid},
		} {
			t.Run(tt.name, func(t *testing.T) {
				_, err := m.Move(t.Context(), tt.from, tt.to, tt.overwrite)
				wantCode(t, err, tt.want)
			})
		}
		if got := out(m.run(t, shell("ls; cat a")).Stdout); got != "a\nd\ndl\nx\n" {
			t.Errorf("now there are %q", got)
		}
	})
}

// TestMoveUndone: a move between file systems that cannot end leaves everything as it was.
func TestMoveUndone(t *testing.T) {
	m := startAgent(t, options{root: true})
	to := otherFS(t, m)
	m.run(t, shell("mkdir -p from/a from/z && echo x > from/a/f && echo y > from/z/g"))
	list := "find . " + to + " | sort"
	before := out(m.run(t, shell(list)).Stdout)
	check := func(t *testing.T, err error, want dayfly.Code) {
		t.Helper()
		if want != "" {
			wantCode(t, err, want)
		} else if err == nil {
			t.Error("it succeeded")
		}
		if got := out(m.run(t, shell(list)).Stdout); got != before {
			t.Errorf("now\n%s\nbefore\n%s", got, before)
		}
	}
	t.Run("a file that cannot be read", func(t *testing.T) {
		secret := filepath.Join(m.home, "from/z/g")
		if err := os.Chown(secret, 0, 0); err != nil {
			t.Fatal(err)
		}
		_ = os.Chmod(secret, 0o600)
		_, err := m.Move(t.Context(), "from", to+"/there", false)
		check(t, err, dayfly.CodeFilePermission)
		_ = os.Chown(secret, 1000, 1000)
	})
	t.Run("a source that may not be removed", func(t *testing.T) {
		if err := os.Chown(m.home, 0, 0); err != nil {
			t.Fatal(err)
		}
		_, err := m.Move(t.Context(), "from", to+"/there", false)
		check(t, err, dayfly.CodeFilePermission)
		_ = os.Chown(m.home, 1000, 1000)
	})
	t.Run("the caller leaves", func(t *testing.T) {
		m.run(t, shell("head -c 300M /dev/zero > from/big"))
		before = out(m.run(t, shell(list)).Stdout)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := m.Move(ctx, "from", to+"/there", false)
			done <- err
		}()
		copies := func() bool {
			left, _ := filepath.Glob(to + "/.dayfly-*")
			return len(left) > 0
		}
		eventually(t, "the copy begins, or is over", func() bool { return copies() || len(done) > 0 })
		cancel()
		err := <-done
		eventually(t, "the copy is undone", func() bool { return !copies() })
		if err != nil { // it may have been quicker
			check(t, err, "")
		}
	})
}
