package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"multihost/internal/testkit"
)

// A listed package is what go list tells of one.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct{ Main bool }
}

// The program is sound Go on the systems that no test runs on. Types are checked
// and nothing is compiled, which is a tenth of the work of a build; of what is not
// ours only the declarations.
func TestTheProgramIsSoundOnEverySystem(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("skipped under the race detector: it finds nothing in a program that is not run")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // it takes a third of the time else
	s := &source{fset: token.NewFileSet(), files: map[string]*ast.File{}}
	var systems []string
	for _, p := range platforms() {
		if p.system == runtime.GOOS || slices.Contains(systems, p.system) {
			continue
		}
		systems = append(systems, p.system)
		t.Run(p.String(), func(t *testing.T) {
			for _, fault := range s.unsound(t, p) {
				t.Error(fault)
			}
		})
	}
}

// What is wrong in the body of a function is found.
func TestUnsoundGoIsFound(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "a.go"), []byte("package a\n\nfunc f() int { return absent() }\n"), 0o644))
	s := &source{fset: token.NewFileSet(), files: map[string]*ast.File{}}
	_, errs := s.typecheck(listed{ImportPath: "a", Dir: dir, GoFiles: []string{"a.go"}}, true, platforms()[0], nil)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "undefined: absent") {
		t.Errorf("errors = %v", errs)
	}
}

// A source is files that were read once; most are of every system.
type source struct {
	fset  *token.FileSet
	files map[string]*ast.File
}

// unsound checks the types of the program as it is built for a platform.
func (s *source) unsound(t *testing.T, p platform) (faults []string) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,Module", "./cmd/multihost")
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "GOOS="+p.system, "GOARCH="+p.arch, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list what the program is made of: %v", err)
	}
	checked := map[string]*types.Package{"unsafe": types.Unsafe}
	ours := 0
	for packages := json.NewDecoder(strings.NewReader(string(out))); ; {
		var l listed
		if err := packages.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if l.ImportPath == "unsafe" {
			continue
		}
		own := l.Module != nil && l.Module.Main
		if own {
			ours++
		}
		pkg, errs := s.typecheck(l, own, p, checked)
		checked[l.ImportPath] = pkg // a package comes after those that it imports
		if own {
			for _, err := range errs {
				faults = append(faults, err.Error())
			}
		}
	}
	if ours < 15 {
		t.Errorf("only %d packages of ours were checked", ours)
	}
	return faults
}

type imported map[string]*types.Package

// Import implements types.Importer.
func (all imported) Import(path string) (*types.Package, error) {
	if pkg := all[path]; pkg != nil {
		return pkg, nil
	}
	return nil, fmt.Errorf("package %q is not known", path)
}

// parse reads a file, with the bodies of its functions or without.
func (s *source) parse(path string, bodies bool) (*ast.File, error) {
	if file := s.files[path]; file != nil {
		return file, nil
	}
	file, err := parser.ParseFile(s.fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && !bodies {
			f.Body = nil
		}
	}
	s.files[path] = file
	return file, nil
}

func (s *source) typecheck(l listed, bodies bool, p platform, checked map[string]*types.Package) (*types.Package, []error) {
	var errs []error
	var files []*ast.File
	for _, name := range l.GoFiles {
		file, err := s.parse(filepath.Join(l.Dir, name), bodies)
		if err != nil {
			return types.NewPackage(l.ImportPath, ""), []error{err}
		}
		files = append(files, file)
	}
	known := imported(checked)
	if len(l.ImportMap) > 0 {
		known = imported{}
		for path, pkg := range checked {
			known[path] = pkg
		}
		for path, real := range l.ImportMap {
			known[path] = checked[real]
		}
	}
	conf := types.Config{Importer: known, IgnoreFuncBodies: !bodies, Sizes: types.SizesFor("gc", p.arch), Error: func(err error) { errs = append(errs, err) }}
	pkg, _ := conf.Check(l.ImportPath, s.fset, files, nil)
	return pkg, errs
}
