package store_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/store"
)

// seeded makes a closed database with some records and gives its path.
func seeded(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dayfly.db")
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	for i := range 200 {
		create(t, db, newSandbox("ac1", time.Duration(i)))
	}
	if err := db.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	return path
}

func TestReopenKeepsEverything(t *testing.T) {
	path := filepath.Join(t.TempDir(), "odd name ?%#é.db")
	ctx := t.Context()
	var ended dayfly.Sandbox
	for round := range 3 {
		db, err := store.Open(ctx, path, store.Options{MustExist: round > 0})
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		sb, replayed, err := db.CreateSandbox(ctx, newSandbox("ac1", 0), request("POST /v1/sandboxes", "k", "h"), 1)
		if err != nil || replayed != (round > 0) {
			t.Fatalf("CreateSandbox = replayed %v, %v", replayed, err)
		}
		if round == 0 {
			sb.Status, sb.End, sb.Times.EndedAt = dayfly.StatusDeleted, dayfly.EndRequested, epoch
			if ended, err = db.MoveSandbox(ctx, sb); err != nil {
				t.Fatalf("MoveSandbox: %v", err)
			}
		} else if sb.ID != ended.ID || sb.Status != dayfly.StatusDeleted || sb.Rev != ended.Rev {
			t.Errorf("after reopening = %+v, want %+v", sb, ended)
		}
		if n, err := db.PurgeRequests(ctx, epoch, 10); n != 0 || err != nil { // when the claim is 24 hours old
			t.Errorf("PurgeRequests = %d, %v", n, err)
		}
		if err := db.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the folder holds %v, %v; want the database alone", entries, err)
	}
}

// TestCrashKeepsCommits copies the files of a live database, as a killed process would leave them.
func TestCrashKeepsCommits(t *testing.T) {
	dir, db, path := t.TempDir(), (*store.DB)(nil), ""
	path = filepath.Join(t.TempDir(), "dayfly.db")
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer func() { _ = db.Close() }()
	sb := create(t, db, newSandbox("ac1", 0))
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "dayfly.db"+suffix), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	after, err := store.Open(t.Context(), filepath.Join(dir, "dayfly.db"), store.Options{})
	if err != nil {
		t.Fatalf("Open after the crash: %v", err)
	}
	defer func() { _ = after.Close() }()
	if _, err := after.Sandbox(t.Context(), "ac1", sb.ID); err != nil {
		t.Errorf("Sandbox after the crash: %v", err)
	}
}

// TestJournalStaysBounded writes without a pause, which keeps checkpoints from reaching the end of the journal.
func TestJournalStaysBounded(t *testing.T) {
	const burst, creates, journalMax = 1000, 10_000, 17 << 20 // the burst alone is more than twice that
	path := filepath.Join(t.TempDir(), "dayfly.db")
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer func() { _ = db.Close() }()
	for i := range creates {
		create(t, db, newSandbox("ac1", time.Duration(i)))
		if i < burst {
			continue
		}
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() <= journalMax {
			t.Logf("the journal has %d bytes after %d creates", info.Size(), i)
			return
		}
	}
	t.Errorf("the journal does not shrink in %d creates", creates)
}

func TestFilesArePrivate(t *testing.T) {
	path := seeded(t)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer func() { _ = db.Close() }()
	create(t, db, newSandbox("ac1", time.Hour))
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("dayfly.db%s has mode %v, %v; want 0600", suffix, info.Mode().Perm(), err)
		}
	}
}

func TestEnvValuesAreNowhere(t *testing.T) {
	const canary, name = "canary-5f1e9c", "NAME_OF_CANARY"
	path := filepath.Join(t.TempDir(), "dayfly.db")
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	sb := newSandbox("ac1", 0)
	sb.Spec.Env, sb.EnvNames = map[string]string{name: canary}, []string{name}
	sb, _, err = db.CreateSandbox(t.Context(), sb, request("POST /v1/sandboxes", "k", "h"), 0)
	if err != nil {
		t.Fatalf("CreateSandbox: %v", err)
	}
	sb.Status, sb.Spec.Env = dayfly.StatusRunning, map[string]string{name: canary}
	if sb, err = db.MoveSandbox(t.Context(), sb); err != nil {
		t.Fatalf("MoveSandbox: %v", err)
	}
	adopted := newSandbox("ac1", 1)
	adopted.Spec.Env = map[string]string{name: canary}
	if _, err := db.AdoptSandbox(t.Context(), adopted); err != nil {
		t.Fatalf("AdoptSandbox: %v", err)
	}
	wantNowhere := func(when string, found bool) {
		for _, suffix := range []string{"", "-wal"} {
			b, err := os.ReadFile(path + suffix)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			if bytes.Contains(b, []byte(canary)) {
				t.Errorf("%s: a value of env is in dayfly.db%s", when, suffix)
			}
			found = found || bytes.Contains(b, []byte(name))
		}
		if !found {
			t.Errorf("%s: the name of env is nowhere either, so the search proves nothing", when)
		}
	}
	wantNowhere("open", false)
	if err := db.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	wantNowhere("closed", false)
}

func TestOpenRefuses(t *testing.T) {
	overwrite := func(t *testing.T, path string, at int64, b []byte) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	query := func(t *testing.T, path, text string) {
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		if _, err := db.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, path string)
		text  string // in the message
	}{
		{"empty", func(t *testing.T, p string) { _ = os.Truncate(p, 0) }, "damaged"},
		{"cut to a byte", func(t *testing.T, p string) { _ = os.Truncate(p, 1) }, "damaged"},
		{"cut to a page", func(t *testing.T, p string) { _ = os.Truncate(p, 4096) }, "damaged"},
		{"cut by a page", func(t *testing.T, p string) {
			info, _ := os.Stat(p)
			_ = os.Truncate(p, info.Size()-4096)
		}, "damaged"},
		{"a page of zeros", func(t *testing.T, p string) { overwrite(t, p, 5*4096, make([]byte, 4096)) }, "damaged"},
		{"noise", func(t *testing.T, p string) { overwrite(t, p, 2*4096, bytes.Repeat([]byte{0xa5}, 8*4096)) }, "damaged"},
		{"noise in the schema", func(t *testing.T, p string) { overwrite(t, p, 100, bytes.Repeat([]byte{0xa5}, 3000)) }, "damaged"},
		{"text", func(t *testing.T, p string) { _ = os.WriteFile(p, []byte(strings.Repeat("hello\n", 100)), 0o600) }, "not a Dayfly database"},
		{"zeros", func(t *testing.T, p string) { _ = os.WriteFile(p, make([]byte, 8192), 0o600) }, "not a Dayfly database"},
		{"another program's database", func(t *testing.T, p string) { query(t, p, "PRAGMA application_id = 7") }, "not a Dayfly database"},
		{"no table of versions", func(t *testing.T, p string) { query(t, p, "DROP TABLE goose_db_version") }, "damaged"},
		{"a newer schema", func(t *testing.T, p string) {
			query(t, p, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)")
		}, "newer Dayfly"},
		{"a folder", func(t *testing.T, p string) { _ = os.Remove(p); _ = os.Mkdir(p, 0o700) }, "not a Dayfly database"},
		{"a dangling link", func(t *testing.T, p string) { _ = os.Remove(p); _ = os.Symlink("/nonexistent/x", p) }, "not a Dayfly database"},
		{"missing beside its journal", func(t *testing.T, p string) {
			_ = os.Rename(p, p+".old")
			_ = os.WriteFile(p+"-wal", []byte("x"), 0o600)
		}, "missing"},
	} {
		for _, o := range []store.Options{{}, {ReadOnly: true}} {
			t.Run(fmt.Sprintf("%s/read only %v", tt.name, o.ReadOnly), func(t *testing.T) {
				path := seeded(t)
				tt.spoil(t, path)
				before := fingerprint(t, path)
				db, err := store.Open(t.Context(), path, o)
				if err == nil {
					_ = db.Close()
					t.Fatal("Open succeeded")
				}
				wantUnavailable(t, err, path)
				if !strings.Contains(err.Error(), tt.text) && !(o.ReadOnly && strings.Contains(err.Error(), "there is no database")) {
					t.Errorf("error = %v, want one with %q", err, tt.text)
				}
				if after := fingerprint(t, path); after != before {
					t.Errorf("the file was changed from %.60q to %.60q", before, after)
				}
			})
		}
	}
}

// wantUnavailable checks that an error names the file and says what to do.
func wantUnavailable(t *testing.T, err error, path string) {
	t.Helper()
	e := dayfly.AsError(err)
	if e == nil || e.Code != dayfly.CodeUnavailable {
		t.Fatalf("error = %v, want %s", err, dayfly.CodeUnavailable)
	}
	if !strings.Contains(e.Message, path) || e.Hint == "" {
		t.Errorf("message %q, hint %q: want the file and what to do", e.Message, e.Hint)
	}
}

// fingerprint is what is at a path, byte by byte.
func fingerprint(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "nothing"
	}
	if err != nil {
		t.Fatal(err)
	}
	if !info.Mode().IsRegular() {
		return info.Mode().String()
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestOpenMissing(t *testing.T) {
	for _, o := range []store.Options{{MustExist: true}, {ReadOnly: true}} {
		path := filepath.Join(t.TempDir(), "dayfly.db")
		_, err := store.Open(t.Context(), path, o)
		wantUnavailable(t, err, path)
		if got := fingerprint(t, path); got != "nothing" {
			t.Errorf("Open with %+v made %q", o, got)
		}
	}
	if _, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "no", "dayfly.db"), store.Options{}); err == nil {
		t.Error("Open in a missing folder succeeded")
	}
}

func TestReadOnlyBesideTheWriter(t *testing.T) {
	path := seeded(t)
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer func() { _ = db.Close() }()
	view, err := store.Open(t.Context(), path, store.Options{ReadOnly: true})
	if err != nil {
		t.Fatalf("Open for reading: %v", err)
	}
	sb := create(t, db, newSandbox("ac1", time.Hour))
	if _, err := view.Sandbox(t.Context(), "ac1", sb.ID); err != nil {
		t.Errorf("Sandbox: %v", err)
	}
	if _, _, err := view.CreateSandbox(t.Context(), newSandbox("ac1", 0), nil, 0); dayfly.ErrorCode(err) != dayfly.CodeUnavailable {
		t.Errorf("CreateSandbox = %v", err)
	}
	if err := view.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	create(t, db, newSandbox("ac1", 2*time.Hour))
}

// mountTmpfs mounts a file system of a size for one test.
func mountTmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("dayfly-store-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size="+size); err != nil {
		t.Skipf("mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

func TestReadOnlyFileSystem(t *testing.T) {
	dir := mountTmpfs(t, "8m")
	path := filepath.Join(dir, "dayfly.db")
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatalf("remount: %v", err)
	}
	_, err = store.Open(t.Context(), path, store.Options{})
	wantUnavailable(t, err, path)
	_, err = store.Open(t.Context(), filepath.Join(dir, "new.db"), store.Options{})
	wantUnavailable(t, err, filepath.Join(dir, "new.db"))
}

func TestFullDisk(t *testing.T) {
	dir := mountTmpfs(t, "2m")
	path := filepath.Join(dir, "dayfly.db")
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer func() { _ = db.Close() }()
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	const creates = 5000
	var stored []string
	for i := range creates {
		sb, _, createErr := db.CreateSandbox(t.Context(), newSandbox("ac1", time.Duration(i)), nil, 0)
		if err = createErr; err != nil {
			break
		}
		stored = append(stored, sb.ID)
	}
	if got := dayfly.ErrorCode(err); got != dayfly.CodeDiskFull {
		t.Fatalf("after %d creates: %v, want %s", len(stored), err, dayfly.CodeDiskFull)
	}
	if live, err := db.LiveSandboxes(t.Context()); err != nil || len(live) != len(stored) {
		t.Errorf("LiveSandboxes on the full disk = %d, %v; want %d", len(live), err, len(stored))
	}
	if _, err := store.Open(t.Context(), filepath.Join(dir, "second.db"), store.Options{}); dayfly.ErrorCode(err) != dayfly.CodeDiskFull {
		t.Errorf("Open on the full disk = %v, want %s", err, dayfly.CodeDiskFull)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	create(t, db, newSandbox("ac1", time.Hour)) // goes on by itself
}

func TestLockedByAnother(t *testing.T) {
	t.Parallel() // it waits for the lock
	path := seeded(t)
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer func() { _ = db.Close() }()
	if _, err := other.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.LiveSandboxes(t.Context()); err != nil {
		t.Errorf("reading beside a foreign writer: %v", err)
	}
	_, _, err = db.CreateSandbox(t.Context(), newSandbox("ac1", 0), nil, 0)
	if e := dayfly.AsError(err); e == nil || e.Code != dayfly.CodeUnavailable || e.RetryAfter == 0 {
		t.Errorf("CreateSandbox = %v, want %s with advice to retry", err, dayfly.CodeUnavailable)
	}
}
