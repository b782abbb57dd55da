package testkit_test

import (
	"bytes"
	"fmt"
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

// A reader can hold in mind this much: ways through a function, methods of a type, lines of Go
// of a package.
const (
	mostComplexity = 20
	mostMethods    = 30
	mostLines      = 4000
)

// aboveComplexity, aboveMethods and aboveLines list what is above its limit today. A figure
// here may only go down: code that grows fails the test, and so does code that shrinks while
// its figure stays. Lines stand here in full hundreds.
var (
	aboveComplexity = map[string]int{}
	aboveMethods    = map[string]int{}
	aboveLines      = map[string]int{
		"cmd/multihost": 5600,
	}
)

// moving are the packages that are taken apart in several steps. Their figures may be lower
// than those of the lists.
var moving = []string{"cmd/multihost"}

// TestLimits checks how large a function, a type and a package may be. It reads the files of
// every system, not of this one alone.
func TestLimits(t *testing.T) {
	m, err := measure("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []limit{
		{"cyclomatic complexity", mostComplexity, 1, aboveComplexity},
		{"methods", mostMethods, 1, aboveMethods},
		{"lines of Go", mostLines, 100, aboveLines},
	} {
		for _, fault := range l.faults(m[l.what]) {
			t.Errorf("%s: %s", l.what, fault)
		}
	}
}

// A limit is the most that something may count.
type limit struct {
	what  string
	most  int
	step  int            // the unit in which a figure of above is written
	above map[string]int // what is above the limit today, by name
}

// faults returns what breaks the limit: a count that is too high, and a figure in the list
// that is higher than its count.
func (l limit) faults(counts map[string]int) (faults []string) {
	names := maps.Clone(l.above)
	maps.Copy(names, counts)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n, listed := counts[name], l.above[name]
		pkg, _, _ := strings.Cut(name, " ")
		figure := (n + l.step - 1) / l.step * l.step
		switch {
		case n > max(l.most, listed):
			faults = append(faults, fmt.Sprintf("%s has %d, at most %d are allowed", name, n, max(l.most, listed)))
		case listed == 0 || slices.Contains(moving, pkg):
		case n <= l.most:
			faults = append(faults, fmt.Sprintf("%s has %d: take it off the list", name, n))
		case figure < listed:
			faults = append(faults, fmt.Sprintf("%s has %d: write %d instead of %d into the list", name, n, figure, listed))
		}
	}
	return faults
}

// measure counts what is in the Go files below root that are not tests, by limit and name. A
// name begins with the directory of the package. If each system has its own version of a
// function, the most complex one counts.
func measure(root string) (map[string]map[string]int, error) {
	lines, ways, methods := map[string]int{}, map[string]int{}, map[string]int{}
	seen := map[string]bool{} // methods that are counted
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

// complexity counts the ways through a function as gocyclo does: one, and one more for each
// place where the code branches. Function literals belong to the function around them.
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

func TestFaultsOfALimit(t *testing.T) {
	l := limit{what: "lines", most: 4000, step: 100, above: map[string]int{"internal/a": 5000, "cmd/multihost": 9000}}
	for _, tt := range []struct {
		name  string
		lines int
		want  string // what the faults have, "" for none
	}{
		{"internal/b", 4000, ""},
		{"internal/b", 4001, "internal/b has 4001, at most 4000"},
		{"internal/a", 5001, "internal/a has 5001, at most 5000"},
		{"internal/a", 4901, ""},
		{"internal/a", 4900, "write 4900 instead of 5000"},
		{"internal/a", 3900, "take it off the list"},
		{"cmd/multihost", 8000, ""},
		{"cmd/multihost", 3000, ""},
		{"cmd/multihost", 9001, "at most 9000"},
	} {
		counts := map[string]int{"internal/a": 5000, tt.name: tt.lines}
		got := strings.Join(l.faults(counts), "\n")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s of %d lines: %q, want %q", tt.name, tt.lines, got, tt.want)
		}
	}
	if got := l.faults(nil); len(got) != 1 || !strings.Contains(got[0], "take it off the list") {
		t.Errorf("of a package that is gone: %q", got)
	}
}
