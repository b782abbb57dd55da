package testkit_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// A bufio.Scanner stops in the same way at the end of a file, at a line that is too long, and at
// a read error. A loop over a Scanner must therefore check the Scanner's error. Code that gets
// the last piece from a bufio.Reader must check the error that comes with it.
func TestNoReadEndsUnasked(t *testing.T) {
	files := 0
	for _, p := range packages(t) {
		paths, err := filepath.Glob(filepath.Join(p.Dir, "*.go")) // GoFiles has only the files for this system
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			files++
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range unaskedReads(file) {
				t.Errorf("%s: %s", fset.Position(f.at), f.text)
			}
		}
	}
	if files < 100 {
		t.Errorf("only %d files were looked at", files)
	}
}

type finding struct {
	at   token.Pos
	text string
}

// unaskedReads finds functions that use a Scanner and never its Err. It also finds reads whose
// error is dropped.
func unaskedReads(file *ast.File) (found []finding) {
	known := map[ast.Node]bool{} // calls and types of Scanners that have a variable
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		scanners, scanned, asked := map[string]token.Pos{}, map[string]bool{}, map[string]bool{}
		ast.Inspect(fn, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncType:
				for _, field := range n.Params.List {
					if isScannerType(field.Type) {
						known[field.Type] = true
						for _, name := range field.Names {
							scanners[name.Name] = name.Pos()
						}
					}
				}
			case *ast.AssignStmt:
				for i, value := range n.Rhs {
					name, named := n.Lhs[min(i, len(n.Lhs)-1)].(*ast.Ident)
					if isCall(value, "bufio", "NewScanner") && named {
						known[value] = true
						scanners[name.Name] = value.Pos()
					}
				}
				found = append(found, droppedError(n)...)
			case *ast.ExprStmt:
				if name, method := methodOf(n.X); method == "Err" && name != "" {
					return false // the result of Err is not used
				}
			case *ast.CallExpr:
				switch name, method := methodOf(n); method {
				case "Scan":
					scanned[name] = true
				case "Err":
					asked[name] = true
				}
			}
			return true
		})
		for name, at := range scanners {
			if scanned[name] && !asked[name] {
				found = append(found, finding{at, fmt.Sprintf("scanner %s is not asked for its Err: a long line or a read error would end it without a word", name)})
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if ok && !known[n] && (isCall(e, "bufio", "NewScanner") || isScannerType(e)) {
			found = append(found, finding{n.Pos(), "a bufio.Scanner belongs in a variable of the function that reads it"})
			return false
		}
		return !known[n]
	})
	return found
}

// droppedError finds an assignment that keeps the data of a read and drops its error.
func droppedError(n *ast.AssignStmt) []finding {
	last, ok := n.Lhs[len(n.Lhs)-1].(*ast.Ident)
	if !ok || last.Name != "_" || len(n.Rhs) != 1 || len(n.Lhs) < 2 {
		return nil
	}
	switch _, method := methodOf(n.Rhs[0]); method {
	case "ReadString", "ReadBytes", "ReadLine", "ReadSlice", "ReadRune", "ReadByte":
		return []finding{{n.Pos(), "the error of " + method + " is dropped"}}
	}
	return nil
}

func isScannerType(e ast.Expr) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	sel, ok := e.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Scanner" && isName(sel.X, "bufio")
}

func isCall(e ast.Expr, pkg, name string) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == name && isName(sel.X, pkg)
}

func isName(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// methodOf returns the names of the variable and the method if e is a call of a variable's
// method.
func methodOf(e ast.Expr) (name, method string) {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return "", ""
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if id, ok := sel.X.(*ast.Ident); ok {
		name = id.Name
	}
	return name, sel.Sel.Name
}

func TestUnaskedReadsAreFound(t *testing.T) {
	for body, want := range map[string]int{
		`s := bufio.NewScanner(r); for s.Scan() {}; return s.Err()`:                             0,
		`s := bufio.NewScanner(r); for s.Scan() {}; if err := s.Err(); err != nil {panic(err)}`: 0,
		`s := bufio.NewScanner(r); for s.Scan() {}`:                                             1,
		`for s := bufio.NewScanner(r); s.Scan(); {}`:                                            1,
		`s := bufio.NewScanner(r); for s.Scan() {}; s.Err()`:                                    1,
		`s := bufio.NewScanner(r); read(s)`:                                                     0,
		`read(bufio.NewScanner(r))`:                                                             1,
		`x.s = bufio.NewScanner(r); for x.s.Scan() {}`:                                          1,
		`var s *bufio.Scanner; _ = s`:                                                           1,
		`func(s *bufio.Scanner) { s.Scan() }(nil)`:                                              1,
		`line, _ := b.ReadString('\n'); use(line)`:                                              1,
		`line, err := b.ReadString('\n'); use(line, err)`:                                       0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", "package a\nfunc f() { "+body+"\n}", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if found := unaskedReads(file); len(found) != want {
			t.Errorf("%s: %v, want %d", body, found, want)
		}
	}
}
