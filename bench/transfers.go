package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// Sizes of the figures about files.
const (
	fileBytes    = 1 << 30 // uploaded and downloaded
	dirEntries   = 100_000 // in the directory that is listed
	pageEntries  = 1000    // of its first page
	pageRounds   = 20
	treeFiles    = 10_000
	treeFanOut   = 100     // files in each directory of the tree
	treeBytesMax = 8 << 10 // of one file: a source tree's are mostly smaller
	treeRounds   = 5
)

// measureFiles moves big files, lists a big directory and unpacks a tree of small files.
func measureFiles(ctx context.Context, s *server, _ int) ([]figure, error) {
	id, err := s.create(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.remove(context.WithoutCancel(ctx), id) }()
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	box := client.Sandbox(id)
	var out []figure
	for _, measure := range []func(context.Context, *server, *sdk.Sandbox) ([]figure, error){measureTransfer, measureListing, measureTree} {
		found, err := measure(ctx, s, box)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// measureTransfer moves one big file both ways, beside a copy of it through a pipe on the bare host.
func measureTransfer(ctx context.Context, s *server, box *sdk.Sandbox) ([]figure, error) {
	pid, err := serverPID(s.data)
	if err != nil {
		return nil, err
	}
	before, err := resetPeak(pid)
	if err != nil {
		return nil, err
	}
	const floor = "bare 1 GiB through a pipe to a file"
	var bare, up, down []float64
	for range transfers {
		rate, err := perSecond(fileBytes, func() error { return bareCopy(ctx, s.data) })
		if err != nil {
			return nil, err
		}
		bare = append(bare, rate)
		rate, err = perSecond(fileBytes, func() error {
			_, err := box.Upload(ctx, "big", io.LimitReader(new(noise), fileBytes), 0o644)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("upload: %w", err)
		}
		up = append(up, rate)
		rate, err = perSecond(fileBytes, func() error {
			n, err := box.Download(ctx, "big", io.Discard)
			if err == nil && n != fileBytes {
				err = fmt.Errorf("%d bytes arrived", n)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("download: %w", err)
		}
		down = append(down, rate)
	}
	if err := box.RemoveFile(ctx, "big", false); err != nil {
		return nil, err
	}
	peak, err := statusKiB(pid, "VmHWM")
	if err != nil {
		return nil, err
	}
	out := []figure{
		quantiles(floor, "MB/s", bare), quantiles("upload of 1 GiB", "MB/s", up), quantiles("download of 1 GiB", "MB/s", down),
		quantiles("transfer of 1 GiB: server's growth", "MiB", []float64{float64(peak-before) / 1024}),
	}
	for i := 1; i < 3; i++ {
		out[i].Floor, out[i].Goal = floor, "≥ 300 MB/s"
	}
	out[3].Goal = "≤ 32 MiB"
	return out, nil
}

// noise is content that costs nothing to make.
type noise struct{ block []byte }

// Read implements io.Reader.
func (n *noise) Read(p []byte) (int, error) {
	if n.block == nil {
		n.block = make([]byte, 256<<10)
		r := rand.NewChaCha8([32]byte{1})
		_, _ = r.Read(n.block)
	}
	return copy(p, n.block), nil
}

// bareCopy has another program write what comes through a pipe, in the directory dir.
func bareCopy(ctx context.Context, dir string) error {
	name := filepath.Join(dir, "floor")
	defer os.Remove(name)
	cmd := exec.CommandContext(ctx, "dd", "of="+name, "bs=64k", "status=none", "iflag=fullblock")
	cmd.Stdin = io.LimitReader(new(noise), fileBytes)
	return cmd.Run()
}

// measureListing lists the first page of a directory of many entries.
func measureListing(ctx context.Context, s *server, box *sdk.Sandbox) ([]figure, error) {
	_, err := box.Exec(ctx, sdk.Command(fmt.Sprintf("mkdir many && cd many && seq -f 'entry-%%06g' %d | xargs -n 2000 touch", dirEntries)), sdk.ExecOptions{Check: true})
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for range pageRounds {
		if err := rest(ctx); err != nil {
			return nil, err
		}
		var page struct {
			Entries []struct{ Name string }
		}
		began := time.Now()
		path := fmt.Sprintf("/v1/sandboxes/%s/files?path=many&list=true&limit=%d", box.ID, pageEntries)
		if err := s.call(ctx, http.MethodGet, path, nil, &page); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
		if len(page.Entries) != pageEntries {
			return nil, fmt.Errorf("a page of %d entries", len(page.Entries))
		}
	}
	f := summarize(fmt.Sprintf("first page of %d of %d entries", pageEntries, dirEntries), took)
	f.Goal = "≤ 50 ms"
	return []figure{f}, box.RemoveFile(ctx, "many", true)
}

// measureTree sends a tree of small files as an archive, beside `tar | tar` on the bare host into a directory.
func measureTree(ctx context.Context, s *server, box *sdk.Sandbox) ([]figure, error) {
	tree := filepath.Join(s.data, "bench-tree")
	copied := filepath.Join(s.data, "bench-copy")
	defer os.RemoveAll(tree)
	defer os.RemoveAll(copied)
	if err := makeTree(tree); err != nil {
		return nil, err
	}
	var bare, boxed []time.Duration
	for range treeRounds {
		began := time.Now()
		pipe := fmt.Sprintf("mkdir %[2]s && tar -C %[1]s -cf - . | tar -C %[2]s -xf -", tree, copied)
		if b, err := exec.CommandContext(ctx, "sh", "-c", pipe).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("tar | tar: %w: %s", err, b)
		}
		bare = append(bare, time.Since(began))
		if err := os.RemoveAll(copied); err != nil {
			return nil, err
		}
		began = time.Now()
		if err := sendTree(ctx, box, tree); err != nil {
			return nil, err
		}
		boxed = append(boxed, time.Since(began))
		if err := box.RemoveFile(ctx, "tree", true); err != nil {
			return nil, err
		}
	}
	out := []figure{
		summarize(fmt.Sprintf("bare tar into tar of %d files", treeFiles), bare),
		summarize(fmt.Sprintf("archive up of %d files", treeFiles), boxed),
	}
	out[1].Floor, out[1].Goal = out[0].Name, "≤ 2×"
	return out, nil
}

// makeTree makes files of the sizes of a source tree, with content that does not matter.
func makeTree(root string) error {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range treeFiles {
		dir := filepath.Join(root, fmt.Sprintf("d%03d", i/treeFanOut))
		if i%treeFanOut == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		body := bytes.Repeat([]byte("x"), r.IntN(treeBytesMax))
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%05d.go", i)), body, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// sendTree has tar pack the tree, as the floor does, and sends what it writes.
func sendTree(ctx context.Context, box *sdk.Sandbox, tree string) error {
	cmd := exec.CommandContext(ctx, "tar", "-C", tree, "-cf", "-", ".")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return errors.Join(box.UploadTar(ctx, pipe, "tree"), cmd.Wait())
}
