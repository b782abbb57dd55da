package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"multihost/internal/testkit"
)

// The program has no type errors on systems on which no test runs. The test only checks types.
func TestTheProgramIsSoundOnEverySystem(t *testing.T) {
	testkit.OnlyInAll(t, "TestUnsoundGoIsFound")
	if testkit.RaceDetector {
		t.Skip("skipped under the race detector: it finds nothing in a program that is not run")
	}
	var systems []string
	for _, p := range platforms() {
		if p.system == runtime.GOOS || slices.Contains(systems, p.system) {
			continue
		}
		systems = append(systems, p.system)
		t.Run(p.String(), func(t *testing.T) {
			for _, fault := range unsound(t, p, nil, "./cmd/multihost", "./internal/...") {
				t.Error(fault)
			}
		})
	}
}

// unsound finds a type error in the body of a function.
func TestUnsoundGoIsFound(t *testing.T) {
	file, err := filepath.Abs("../internal/tpu/tpu.go")
	testkit.Must(t, err)
	planted := map[string][]byte{file: []byte("package tpu\n\nfunc f() int { return absent() }\n")}
	faults := unsound(t, platforms()[0], planted, "./internal/tpu")
	if !slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, "undefined: absent") }) {
		t.Errorf("faults = %q", faults)
	}
}

// unsound returns the type errors of packages when built for p. In packages of other modules it
// checks only the declarations. planted replaces the contents of some files.
func unsound(t *testing.T, p platform, planted map[string][]byte, patterns ...string) (faults []string) {
	t.Helper()
	root, err := filepath.Abs("..")
	testkit.Must(t, err)
	found, err := packages.Load(&packages.Config{
		Context: t.Context(), Dir: root, Overlay: planted,
		Env:  append(os.Environ(), "GOOS="+p.system, "GOARCH="+p.arch, "CGO_ENABLED=0"),
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes,
		ParseFile: func(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
			file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
			if file != nil && !strings.HasPrefix(name, root) {
				for _, d := range file.Decls {
					if f, ok := d.(*ast.FuncDecl); ok {
						f.Body = nil
					}
				}
			}
			return file, err
		},
	}, patterns...)
	testkit.Must(t, err)
	for _, pkg := range found {
		for _, fault := range pkg.Errors {
			faults = append(faults, fault.Error())
		}
	}
	return faults
}
