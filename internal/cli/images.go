package cli

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const imagesLong = `Images are the root file systems that sandboxes start from. They never change; a name can be given to a newer one.`

const imagesExample = `  dayfly images ls
  dayfly images import tools ./tools-rootfs.tar.zst --user dev
  dayfly run --image tools -- tool --version`

func (a *app) imagesCommand() *cobra.Command {
	return group("images", "Manage images", imagesLong, imagesExample, a.imagesLs(), a.imagesImport(), a.imagesRm())
}

func (a *app) imagesLs() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List images", Long: "Ls lists the images that sandboxes can start from.",
		Example: "  dayfly images ls\n  dayfly images ls -o json", Args: exactly(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.do(func(cmd *cobra.Command, _ []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			images, rows := []sdk.Image{}, [][]string{}
			for i, err := range client.Images(cmd.Context()) {
				if err != nil {
					return err
				}
				images = append(images, i)
				rows = append(rows, []string{i.Name, i.ID, size(i.SizeBytes), number(i.Files), i.User, i.Workdir, since(i.CreatedAt)})
			}
			if a.json() {
				return a.writeJSON(list[sdk.Image]{images})
			}
			return a.writeTable([]string{"NAME", "ID", "SIZE", "FILES", "USER", "WORKDIR", "AGE"}, rows)
		}),
	}
}

const importLong = `Import sends the root file system of a machine, a tar, tar.gz or tar.zst of any size, and gives it a name. FILE may be
"-" for standard input. Commands run as the user with uid 1000 if there is one, else as root, in that user's home.`

func (a *app) imagesImport() *cobra.Command {
	cmd := &cobra.Command{
		Use: "import NAME FILE", Short: "Import an image from a file", Long: importLong,
		Example: "  dayfly images import tools ./rootfs.tar.zst --user dev --workdir /srv --env LANG=C.UTF-8\n" +
			"  docker export box | dayfly images import box -",
		Args: exactly("the image's NAME", "the FILE"), ValidArgsFunction: completeSecondAsFile,
	}
	var o sdk.ImportOptions
	var env []string
	cmd.Flags().StringVar(&o.User, "user", "", "user that commands run as, a name or uid")
	cmd.Flags().StringVar(&o.Workdir, "workdir", "", "directory that commands run in")
	cmd.Flags().StringArrayVar(&env, "env", nil, "environment `NAME=value` of every command (repeatable)")
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		var err error
		if o.Env, err = a.parseEnv(env); err != nil {
			return err
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		archive, total, err := a.openArchive(args[1])
		if err != nil {
			return err
		}
		defer archive.Close()
		progress := startProgress(a.Stderr, total)
		o.Progress = progress.set
		image, err := client.ImportImage(cmd.Context(), args[0], archive.Reader, o)
		progress.stop()
		if err != nil {
			return err
		}
		if a.json() {
			return a.writeJSON(image)
		}
		_, err = fmt.Fprintf(a.Stdout, "%s %s: %s in %d files, commands run as %s in %s\n",
			cell(image.Name), image.ID, size(image.SizeBytes), image.Files, cell(image.User), cell(image.Workdir))
		return err
	})
	return cmd
}

// archive is a file to import; the SDK must see an *os.File as such to be able to send it again.
type archive struct {
	io.Reader
	close func() error
}

// Close closes what openArchive opened.
func (f archive) Close() { _ = f.close() }

// openArchive opens a file, or standard input for "-". total is its size, or 0 if unknown.
func (a *app) openArchive(name string) (f archive, total int64, err error) {
	if name == "-" {
		return archive{cmpReader(a.Stdin), func() error { return nil }}, 0, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return f, 0, failf("cannot read the image's file: %v", err).withHint("check the path")
	}
	info, err := file.Stat()
	if err != nil || info.IsDir() {
		_ = file.Close()
		return f, 0, failf("%s is not a file", name).withHint("pack a folder with `tar --numeric-owner -C DIR -cf rootfs.tar .`")
	}
	if info.Mode().IsRegular() {
		total = info.Size()
	}
	return archive{file, file.Close}, total, nil
}

func (a *app) imagesRm() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Aliases: []string{"delete"}, Short: "Remove images",
		Long:    "Rm removes images by name or id. An image that sandboxes run on stays: end them first. One that is gone already is a success.",
		Example: "  dayfly images rm tools", Args: atLeast("the image's NAME"), ValidArgsFunction: a.completeImages,
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			return a.removeEach(args, func(name string) error { return client.DeleteImage(cmd.Context(), name) })
		}),
	}
}

// progressEvery is how often progress is redrawn.
const progressEvery = 200 * time.Millisecond

// progress shows how much was sent, on a terminal only.
type progress struct {
	sent       atomic.Int64
	total      int64
	quit, done chan struct{}
}

func startProgress(w io.Writer, total int64) *progress {
	p := &progress{total: total, quit: make(chan struct{}), done: make(chan struct{})}
	if !isTerminal(w) {
		close(p.done)
		return p
	}
	go p.draw(w)
	return p
}

func (p *progress) draw(w io.Writer) {
	defer close(p.done)
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			fmt.Fprintf(w, "\r%-60s", p.line())
		case <-p.quit:
			fmt.Fprintf(w, "\r%60s\r", "")
			return
		}
	}
}

func (p *progress) line() string {
	n := p.sent.Load()
	switch {
	case p.total == 0:
		return "sent " + size(n)
	case n >= p.total:
		return "sent " + size(n) + ", the server unpacks it"
	}
	return fmt.Sprintf("sent %s of %s, %d %%", size(n), size(p.total), n*100/p.total)
}

func (p *progress) set(sent int64) { p.sent.Store(sent) }

func (p *progress) stop() {
	close(p.quit)
	<-p.done
}
