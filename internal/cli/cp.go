package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const cpLong = `Cp copies a file or a folder into a sandbox or out of one. The side in the sandbox is written ID:PATH; a relative
PATH begins at the home directory. As with cp -r, a destination that is a folder, or ends in a slash, receives the
source under its own name; SOURCE/. copies what is in a folder. Links stay links, empty folders and permissions are kept.
"-" stands for standard input or output: for the bytes of a file, or for a tar stream where the other side is a folder.

Files are replaced as a whole: nobody sees half of one. A download that breaks is taken up where it broke. On a terminal a
line tells bytes, rate and the time that is left, unless --quiet is given.`

const cpExample = `  dayfly cp ./src sb2c9x0q8d7k4m1n5p3r6t:work
  dayfly cp sb2c9x0q8d7k4m1n5p3r6t:work/report.html .
  dayfly cp sb2c9x0q8d7k4m1n5p3r6t:/etc/os-release - | head -1
  pg_dump shop | dayfly cp - sb2c9x0q8d7k4m1n5p3r6t:shop.sql
  dayfly cp sb2c9x0q8d7k4m1n5p3r6t:work - | tar t`

func (a *app) cpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cp SOURCE DESTINATION", Short: "Copy files into a sandbox or out of one", Long: cpLong, Example: cpExample,
		Args: exactly("the source", "the destination"), ValidArgsFunction: a.completeCopy,
	}
	quiet := cmd.Flags().BoolP("quiet", "q", false, "do not show how far it is")
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		from, to := parsePlace(args[0]), parsePlace(args[1])
		ctx, finish := cmd.Context(), func() {}
		if !*quiet && !a.json() {
			ctx, finish = a.showProgress(ctx, from)
		}
		moved, err := a.copy(ctx, from, to)
		finish()
		if err != nil {
			return err
		}
		a.noteSkipped(moved)
		if a.json() && args[1] != "-" {
			return a.writeJSON(newJSONTransfer(moved))
		}
		return nil
	})
	return cmd
}

// place is one side of a copy: on this machine where id is empty.
type place struct{ id, path string }

var placePattern = regexp.MustCompile(`^(sb[a-z0-9]{20}):`)

func parsePlace(s string) place {
	if m := placePattern.FindStringSubmatch(s); m != nil {
		return place{id: m[1], path: s[len(m[0]):]}
	}
	return place{path: s}
}

func (a *app) copy(ctx context.Context, from, to place) (sdk.Transfer, error) {
	if (from.id == "") == (to.id == "") {
		return sdk.Transfer{}, usagef("one side must be in a sandbox and the other here").
			withHint("write the sandbox's side as ID:PATH, with the whole id as `dayfly ls` shows it")
	}
	client, err := a.client()
	if err != nil {
		return sdk.Transfer{}, err
	}
	switch {
	case from.path == "-" && from.id == "":
		return uploadStream(ctx, client.Sandbox(to.id), cmpReader(a.Stdin), to.path)
	case to.path == "-" && to.id == "":
		return downloadStream(ctx, client.Sandbox(from.id), from.path, a.Stdout)
	case to.id != "":
		return upload(ctx, client.Sandbox(to.id), from.path, to.path)
	}
	return download(ctx, client.Sandbox(from.id), from.path, to.path)
}

// uploadStream writes r to the file remote, or unpacks it into the folder remote.
func uploadStream(ctx context.Context, sandbox *sdk.Sandbox, r io.Reader, remote string) (sdk.Transfer, error) {
	folder := remote == "" || strings.HasSuffix(remote, "/")
	if !folder {
		var err error
		if folder, err = sandbox.IsDir(ctx, remote); err != nil {
			return sdk.Transfer{}, err
		}
	}
	if folder {
		counted := &countingReader{from: r}
		err := sandbox.UploadTar(ctx, counted, either(remote, "."))
		return sdk.Transfer{Bytes: counted.bytes}, err
	}
	info, err := sandbox.Upload(ctx, remote, r, 0)
	return sdk.Transfer{Files: 1, Bytes: info.SizeBytes}, err
}

// countingReader counts what is read of from.
type countingReader struct {
	from  io.Reader
	bytes int64
}

// Read implements io.Reader.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.bytes += int64(n)
	return n, err
}

// downloadStream writes the file remote to w, or the folder remote as a tar stream.
func downloadStream(ctx context.Context, sandbox *sdk.Sandbox, remote string, w io.Writer) (sdk.Transfer, error) {
	folder, err := sandbox.IsDir(ctx, either(remote, "."))
	if err != nil {
		return sdk.Transfer{}, err
	}
	if folder {
		n, err := sandbox.DownloadTar(ctx, either(remote, "."), w)
		return sdk.Transfer{Bytes: n}, err
	}
	n, err := sandbox.Download(ctx, remote, w)
	return sdk.Transfer{Files: 1, Bytes: n}, err
}

// upload copies a local file or folder, which is followed if it is a link, to remote.
func upload(ctx context.Context, sandbox *sdk.Sandbox, local, remote string) (sdk.Transfer, error) {
	info, err := os.Stat(local)
	if err != nil {
		return sdk.Transfer{}, missingLocal(err)
	}
	contents := strings.HasSuffix(local, "/.") || local == "."
	into, err := remoteTarget(ctx, sandbox, local, remote, contents && info.IsDir())
	if err != nil {
		return sdk.Transfer{}, err
	}
	if info.IsDir() {
		return sandbox.UploadDir(ctx, local, into)
	}
	f, err := os.Open(local)
	if err != nil {
		return sdk.Transfer{}, missingLocal(err)
	}
	defer f.Close()
	mode := info.Mode().Perm()
	if !info.Mode().IsRegular() {
		mode = 0 // of a pipe it says nothing
	}
	sent, err := sandbox.Upload(ctx, into, f, mode)
	return sdk.Transfer{Files: 1, Bytes: sent.SizeBytes}, err
}

// remoteTarget is where local goes: remote itself, or below it under local's name where remote is a folder.
func remoteTarget(ctx context.Context, sandbox *sdk.Sandbox, local, remote string, contents bool) (string, error) {
	if remote == "" {
		remote = "."
	}
	if contents {
		return remote, nil
	}
	folder := strings.HasSuffix(remote, "/")
	if !folder {
		var err error
		if folder, err = sandbox.IsDir(ctx, remote); err != nil {
			return "", err
		}
	}
	if !folder {
		return remote, nil
	}
	whole, err := filepath.Abs(local)
	if err != nil {
		return "", err
	}
	return path.Join(remote, filepath.Base(whole)), nil
}

// download copies a remote file or folder to local.
func download(ctx context.Context, sandbox *sdk.Sandbox, remote, local string) (sdk.Transfer, error) {
	if remote == "" {
		remote = "."
	}
	folder, err := sandbox.IsDir(ctx, remote)
	if err != nil {
		return sdk.Transfer{}, err
	}
	name := path.Base(path.Clean(remote))
	contents := folder && (strings.HasSuffix(remote, "/.") || remote == "." || name == "..")
	if !contents && (isLocalDir(local) || strings.HasSuffix(local, "/")) {
		local = filepath.Join(local, name)
	}
	if folder {
		return sandbox.DownloadDir(ctx, remote, local)
	}
	return downloadFile(ctx, sandbox, remote, local)
}

// downloadFile writes beside local and renames, so that nobody sees half a file. A device, pipe or link is written into.
func downloadFile(ctx context.Context, sandbox *sdk.Sandbox, remote, local string) (sdk.Transfer, error) {
	content, err := sandbox.Open(ctx, remote)
	if err != nil {
		return sdk.Transfer{}, err
	}
	defer content.Close()
	info, err := os.Lstat(local)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(local, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			return sdk.Transfer{}, failf("cannot write the copy: %v", err)
		}
		return fillFile(f, content)
	}
	f, err := os.CreateTemp(filepath.Dir(local), ".dayfly-cp-*")
	if err != nil {
		return sdk.Transfer{}, failf("cannot write the copy: %v", err).withHint("check that the folder %s exists and may be written", filepath.Dir(local))
	}
	defer os.Remove(f.Name()) // gone once it is renamed
	mode := fs.FileMode(0o644)
	switch {
	case !fresh && err == nil && info != nil:
		mode = info.Mode().Perm()
	case content.Mode != 0:
		mode = content.Mode
	}
	moved, err := fillFile(f, content)
	if err != nil {
		return moved, err
	}
	if err := errors.Join(os.Chmod(f.Name(), mode), os.Rename(f.Name(), local)); err != nil {
		return moved, failf("cannot write the copy: %v", err)
	}
	return moved, nil
}

// fillFile copies content into f and closes it.
func fillFile(f *os.File, content *sdk.Content) (sdk.Transfer, error) {
	n, err := io.Copy(f, content)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return sdk.Transfer{}, failf("the copy is not complete: %v", err).withHint("try again")
	}
	return sdk.Transfer{Files: 1, Bytes: n}, nil
}

func isLocalDir(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.IsDir()
}

func missingLocal(err error) error {
	return failf("cannot read the source: %v", err).withHint("check the path; a path in a sandbox is written ID:PATH")
}

func (a *app) noteSkipped(moved sdk.Transfer) {
	for _, name := range moved.Skipped {
		a.note("%s was left out: it is no file, folder or link", name)
	}
	if moved.SkippedMore > 0 {
		a.note("%d more were left out", moved.SkippedMore)
	}
}

// jsonTransfer is a copy with -o json.
type jsonTransfer struct {
	Files   int64    `json:"files"`
	Bytes   int64    `json:"bytes"`
	Skipped []string `json:"skipped"`
}

func newJSONTransfer(t sdk.Transfer) jsonTransfer {
	return jsonTransfer{Files: t.Files, Bytes: t.Bytes, Skipped: append([]string{}, t.Skipped...)}
}
