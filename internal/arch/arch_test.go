package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	module   = "dayfly.dev/dayfly"
	lineWall = 800 // lines of a file that is not generated
)

// layers are the packages below internal/ from the bottom up. A package imports only layers below its own; siblings never
// import each other. A name covers the packages below it too, and those may import one another.
var layers = [][]string{
	{"cleanup", "clock", "failpoint", "tree"},
	{"cgroup", "reserve"},
	{"agentwire", "warden", "store", "disk", "driver", "image", "hostnet", "metrics"},
	{"agent", "control"},
	{"node"}, // implements control's Node with control's words
	{"api", "cli"},
}

// outsiders are modules beyond the standard library that the Go SDK may import, with the record that says why.
var outsiders = map[string]string{"github.com/coder/websocket": "docs/adr/0014-sdk-websocket.md"}

// exceptions are arrows that the rule forbids and that have a reason.
var exceptions = map[string]string{
	module + "/internal/driver/drivertest " + module + "/internal/agentwire": "a suite for tests that speaks to a machine as the node does",
}

func layerOf(pkg string) (level int, family string, ok bool) {
	rest, ok := strings.CutPrefix(pkg, module+"/internal/")
	if !ok {
		return 0, "", false
	}
	family, _, _ = strings.Cut(rest, "/")
	for i, names := range layers {
		for _, name := range names {
			if name == family {
				return i, family, true
			}
		}
	}
	return 0, family, false
}

// sources walks every Go file of the repository.
func sources(t *testing.T, visit func(file string, parsed *ast.File, lines int)) {
	t.Helper()
	root := filepath.Join("..", "..")
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || strings.HasPrefix(d.Name(), "_") || d.Name() == "bin" || d.Name() == "testdata" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(p) != ".go" {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(fset, p, src, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		visit(filepath.ToSlash(rel), parsed, strings.Count(string(src), "\n"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestImportsPointDown(t *testing.T) {
	seen := 0
	sources(t, func(file string, parsed *ast.File, _ int) {
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		pkg := path.Join(module, path.Dir(file))
		for _, spec := range parsed.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if imported != module && !strings.HasPrefix(imported, module+"/") {
				foreign := strings.Contains(strings.Split(imported, "/")[0], ".")
				if foreign && (path.Dir(file) == "." || strings.HasPrefix(path.Dir(file), "sdk/go") && outsiders[imported] == "") {
					t.Errorf("%s imports %s: the nouns and the Go SDK use the standard library only", file, imported)
				}
				continue
			}
			seen++
			if why := forbidden(pkg, imported); why != "" && exceptions[pkg+" "+imported] == "" {
				t.Errorf("%s imports %s: %s", file, imported, why)
			}
		}
	})
	if seen < 20 {
		t.Fatalf("only %d imports of our own seen: the walk is broken", seen)
	}
}

// forbidden tells why pkg may not import imported, or nothing.
func forbidden(pkg, imported string) string {
	switch {
	case pkg == module:
		return "the nouns import nothing of ours"
	case strings.HasPrefix(pkg, module+"/sdk/go"):
		if imported != module+"/sdk/go" {
			return "the SDK stands alone"
		}
		return ""
	case strings.HasPrefix(imported, module+"/cmd/"):
		if strings.HasPrefix(pkg, module+"/cmd/") {
			return ""
		}
		return "nothing imports a command"
	}
	from, family, inside := layerOf(pkg)
	if !inside {
		if strings.HasPrefix(pkg, module+"/internal/") && family != "deps" && family != "arch" {
			return "its layer is not in arch_test.go"
		}
		return "" // commands, tests and tools see everything
	}
	if family == "cli" && strings.HasPrefix(imported, module+"/internal/") && !strings.HasPrefix(imported, module+"/internal/cli") {
		return "the CLI sees the server only through the SDK"
	}
	if family != "cli" && strings.HasPrefix(imported, module+"/sdk/") {
		return "only the CLI uses the SDK"
	}
	to, toFamily, inside := layerOf(imported)
	if !inside || family == toFamily {
		return ""
	}
	if to >= from {
		return "arrows point down only"
	}
	return ""
}

func TestFilesStayUnderTheWall(t *testing.T) {
	sources(t, func(file string, _ *ast.File, lines int) {
		if lines > lineWall {
			t.Errorf("%s has %d lines; the wall is %d: look for the second noun", file, lines, lineWall)
		}
	})
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	docs := map[string]bool{}
	sources(t, func(file string, parsed *ast.File, _ int) {
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		dir := path.Dir(file)
		docs[dir] = docs[dir] || parsed.Doc != nil && len(parsed.Doc.Text()) > 40
	})
	for dir, ok := range docs {
		if !ok {
			t.Errorf("%s: no package comment", dir)
		}
	}
}
