package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// registry answers as an npm registry does, below /npm/: GET /npm/NAME tells the versions, GET /npm/-/FILE gives a tarball.
type registry struct {
	dir      string
	packages map[string]map[string]map[string]any // by name and version: what package.json says
	files    map[string]map[string]string         // by name and version: the tarball's name
	sums     map[string]string                    // by the tarball's name
}

const (
	tarballMax     = 64 << 20 // bytes
	packageJSONMax = 1 << 20
)

func newRegistry(dir string) (*registry, error) {
	r := &registry{dir: dir, packages: map[string]map[string]map[string]any{}, files: map[string]map[string]string{}, sums: map[string]string{}}
	tarballs, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil {
		return nil, err
	}
	for _, file := range tarballs {
		if err := r.add(file); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return r, nil
}

func (r *registry) add(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, tarballMax))
	if err != nil {
		return err
	}
	about, err := packageJSON(b)
	if err != nil {
		return err
	}
	name, _ := about["name"].(string)
	version, _ := about["version"].(string)
	if r.packages[name] == nil {
		r.packages[name], r.files[name] = map[string]map[string]any{}, map[string]string{}
	}
	sum := sha512.Sum512(b)
	r.packages[name][version], r.files[name][version] = about, filepath.Base(file)
	r.sums[filepath.Base(file)] = "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
	return nil
}

// packageJSON reads package/package.json of a tarball.
func packageJSON(tarball []byte) (map[string]any, error) {
	z, err := gzip.NewReader(bytes.NewReader(tarball))
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(z); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("there is no package.json")
		}
		if err != nil {
			return nil, err
		}
		if path.Clean(h.Name) != "package/package.json" {
			continue
		}
		var about map[string]any
		err = json.NewDecoder(io.LimitReader(files, packageJSONMax)).Decode(&about)
		return about, err
	}
}

// ServeHTTP implements http.Handler.
func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	rest := strings.TrimPrefix(req.URL.Path, "/npm/")
	if file, ok := strings.CutPrefix(rest, "-/"); ok {
		http.ServeFile(w, req, filepath.Join(r.dir, filepath.Base(file)))
		return
	}
	name, err := url.PathUnescape(rest)
	if err != nil || r.packages[name] == nil {
		http.NotFound(w, req)
		return
	}
	versions := map[string]any{}
	latest := ""
	for version, about := range r.packages[name] {
		file := r.files[name][version]
		one := map[string]any{"dist": map[string]any{"tarball": "http://" + req.Host + "/npm/-/" + file, "integrity": r.sums[file]}}
		for k, v := range about {
			one[k] = v
		}
		versions[version], latest = one, max(latest, version)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]string{"latest": latest}, "versions": versions})
}
