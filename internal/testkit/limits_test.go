package testkit_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// These limits are what a reader can keep in mind: paths through a function, methods of a type,
// lines of Go in a package.
const (
	mostComplexity = 20
	mostMethods    = 30
	mostLines      = 4000
)

// The test limits the size of functions, types and packages. It reads the files for all
// systems.
func TestLimits(t *testing.T) {
	m, err := measure("../..")
	if err != nil {
		t.Fatal(err)
	}
	for what, most := range map[string]int{"cyclomatic complexity": mostComplexity, "methods": mostMethods, "lines of Go": mostLines} {
		for _, name := range slices.Sorted(maps.Keys(m[what])) {
			if n := m[what][name]; n > most {
				t.Errorf("%s: %s has %d, at most %d are allowed", what, name, n, most)
			}
		}
	}
}

// measure returns the complexity of functions, the methods of types and the lines of
// packages. It leaves out test files. The result is by limit and by name, which begins with
// the directory of the package. If a function has a version for each system, the most
// complex one counts.
func measure(root string) (map[string]map[string]int, error) {
	lines, ways, methods := map[string]int{}, map[string]int{}, map[string]int{}
	seen := map[string]bool{} // counted methods
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(dir)
		if ofProduct(pkg) {
			lines[pkg] += bytes.Count(src, []byte("\n"))
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := pkg + " " + f.Name.Name
			if on := receiver(f); on != "" {
				name = pkg + " " + on + "." + f.Name.Name
				if !seen[name] {
					methods[pkg+" "+on]++
				}
				seen[name] = true
			}
			ways[name] = max(ways[name], complexity(f))
		}
		return nil
	})
	return map[string]map[string]int{"lines of Go": lines, "cyclomatic complexity": ways, "methods": methods}, err
}

// ofProduct reports whether a package is in the binary that users get.
func ofProduct(pkg string) bool {
	return strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "internal/") && !strings.HasPrefix(pkg+"/", "internal/testkit/")
}

// complexity counts the paths through a function, like gocyclo: one, and one more for each
// branch. Function literals are part of the function around them.
func complexity(n ast.Node) int {
	ways := 1
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			ways++
		case *ast.CaseClause:
			if n.List != nil {
				ways++
			}
		case *ast.CommClause:
			if n.Comm != nil {
				ways++
			}
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR {
				ways++
			}
		}
		return true
	})
	return ways
}

func TestComplexity(t *testing.T) {
	for _, tt := range []struct {
		body string
		want int
	}{
		{`return`, 1},
		{`if a { b() } else { c() }`, 2},
		{`if a { b() } else if c { d() }`, 3},
		{`if a && b || !c { d() }`, 4},
		{`for { a() }`, 2},
		{`for range a { b() }`, 2},
		{`switch a { case 1, 2: b(); case 3: c(); default: d() }`, 3},
		{`switch a.(type) { case int: b(); default: c() }`, 2},
		{`select { case <-a: b(); default: c() }`, 2},
		{`a(func() { if b { c() } })`, 2},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "f.go", "package p; func f() { "+tt.body+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := complexity(file.Decls[0]); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.body, got, tt.want)
		}
	}
}
