package testkit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"multihost/internal/testkit"
)

// A map has no order. If a loop over a map makes output, an error or a list, the result differs
// from run to run. The code must therefore sort the keys first, or take the order from a slice.
func TestNothingIsSaidInTheOrderOfAMap(t *testing.T) {
	testkit.OnlyInAll(t, "nothing: it reads the types of the whole program")
	fset := token.NewFileSet()
	exports := map[string]string{}
	own := exportedPackages(t, exports)
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	ranges := 0
	for _, p := range own {
		if strings.HasPrefix(p.ImportPath, "multihost/internal/sim") || strings.HasPrefix(p.ImportPath, "multihost/internal/testkit") {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		n, found := checkOrder(t, fset, p.ImportPath, files, imports)
		ranges += n
		for _, f := range found {
			if p.ImportPath == "multihost/internal/sshfan" && strings.HasPrefix(f.text, "links grows") {
				continue // the order does not matter: each element is checked or ended alone
			}
			t.Errorf("%s: %s", fset.Position(f.at), f.text)
		}
	}
	if ranges < 20 {
		t.Errorf("only %d maps are gone through: they are no longer found", ranges)
	}
}

// exportedPackages returns the packages of the module. It puts the files with the types of
// all imports into exports.
func exportedPackages(t *testing.T, exports map[string]string) (own []pkg) {
	t.Helper()
	out, err := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,GoFiles,Dir,Export", "multihost/cmd/...", "multihost/internal/...").Output()
	if err != nil {
		t.Fatalf("list packages: %v", err)
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			pkg
			Export string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return own
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if strings.HasPrefix(p.ImportPath, "multihost/") {
			own = append(own, p.pkg)
		}
	}
}

// checkOrder counts the loops over maps, and finds those whose order is visible in a
// result.
func checkOrder(t *testing.T, fset *token.FileSet, path string, files []*ast.File, imports types.Importer) (ranges int, found []finding) {
	t.Helper()
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	if _, err := (&types.Config{Importer: imports}).Check(path, fset, files, info); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for _, decl := range file.Decls {
			ast.Inspect(decl, func(n ast.Node) bool {
				loop, ok := n.(*ast.RangeStmt)
				if !ok || !overMap(info, loop.X) {
					return true
				}
				ranges++
				if why := seenIn(info, decl, loop); why != "" {
					found = append(found, finding{loop.Pos(), fmt.Sprintf("%s in the order of the map %s", why, types.ExprString(loop.X))})
				}
				return true
			})
		}
	}
	return ranges, found
}

func overMap(info *types.Info, x ast.Expr) bool {
	if call, ok := x.(*ast.CallExpr); ok {
		switch types.ExprString(call.Fun) {
		case "maps.Keys", "maps.Values", "maps.All":
			return true
		}
	}
	_, ok := info.TypeOf(x).Underlying().(*types.Map)
	return ok
}

// seenIn says what shows the order of a loop, or "".
func seenIn(info *types.Info, decl ast.Decl, loop *ast.RangeStmt) (why string) {
	ast.Inspect(loop.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			for _, value := range n.Results {
				typ := info.TypeOf(value)
				if !types.Implements(typ, errorType) || typ == types.Typ[types.UntypedNil] {
					continue
				}
				why = "an error is returned"
			}
		case *ast.CallExpr:
			name := types.ExprString(n.Fun)
			switch name = name[strings.LastIndexByte(name, '.')+1:]; {
			case strings.HasPrefix(name, "Fprint"), strings.HasPrefix(name, "Write"), name == "Emit", name == "Notef":
				why = name + " is called"
			case name == "append" && len(n.Args) > 0:
				if to := types.ExprString(n.Args[0]); !sorted(decl, loop.End(), to) && !local(loop, to) {
					why = to + " grows, and is not sorted afterwards,"
				}
			}
		}
		return true
	})
	return why
}

var errorType = types.Universe.Lookup("error").Type().Underlying().(*types.Interface)

// sorted reports whether the function sorts name after the loop.
func sorted(decl ast.Decl, after token.Pos, name string) (yes bool) {
	ast.Inspect(decl, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || call.Pos() < after || len(call.Args) == 0 {
			return true
		}
		fn := types.ExprString(call.Fun)
		if (strings.HasPrefix(fn, "slices.Sort") || strings.HasPrefix(fn, "sort.")) && types.ExprString(call.Args[0]) == name {
			yes = true
		}
		return true
	})
	return yes
}

// local reports whether the growing variable name belongs to one round of the loop. That is so
// for a variable that the loop declares, and for an element with the loop's key.
func local(loop *ast.RangeStmt, name string) (yes bool) {
	ast.Inspect(loop, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, lhs := range n.Lhs {
					yes = yes || types.ExprString(lhs) == name
				}
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				yes = yes || id.Name == name
			}
		}
		return true
	})
	return yes || strings.Contains(name, "[")
}
