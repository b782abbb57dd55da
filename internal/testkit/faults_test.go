package testkit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// An exported error without a kind would have a guessed exit status. Such an error is a
// type with the method Error and without Fault, or a variable Err… that fault.New did not
// make.
func TestEveryExportedErrorHasAKind(t *testing.T) {
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.ImportPath, "multihost/internal/") || strings.HasPrefix(p.ImportPath, "multihost/internal/testkit") {
			continue
		}
		for _, wrong := range withoutKind(t, p) {
			t.Errorf("%s: %s has no kind: give it the method Fault, or make it with fault.New", p.ImportPath, wrong)
		}
	}
}

// withoutKind returns the exported errors of a package that have no kind.
func withoutKind(t *testing.T, p pkg) (wrong []string) {
	t.Helper()
	methods := map[string]map[string]bool{} // names of methods, by type
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if on := receiver(d); on != "" {
					if methods[on] == nil {
						methods[on] = map[string]bool{}
					}
					methods[on][d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR {
						wrong = append(wrong, madeWithoutKind(v)...)
					}
				}
			}
		}
	}
	for name, has := range methods {
		if ast.IsExported(name) && has["Error"] && !has["Fault"] {
			wrong = append(wrong, name)
		}
	}
	return wrong
}

// receiver returns the type to which a method belongs, or "".
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	switch generic := of.(type) {
	case *ast.IndexExpr:
		of = generic.X
	case *ast.IndexListExpr:
		of = generic.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

// madeWithoutKind returns the variables Err… that errors.New or fmt.Errorf made.
func madeWithoutKind(v *ast.ValueSpec) (wrong []string) {
	for i, name := range v.Names {
		if !strings.HasPrefix(name.Name, "Err") || i >= len(v.Values) {
			continue
		}
		call, ok := v.Values[i].(*ast.CallExpr)
		if !ok {
			continue
		}
		if of, ok := call.Fun.(*ast.SelectorExpr); ok && (of.Sel.Name == "New" || of.Sel.Name == "Errorf") {
			if from, ok := of.X.(*ast.Ident); ok && from.Name != "fault" {
				wrong = append(wrong, name.Name)
			}
		}
	}
	return wrong
}
