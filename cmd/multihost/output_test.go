package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCommandsWriteThroughTheView: commands write data to standard output only through the
// view. Otherwise a status line would stay before the first byte. The listed files may
// write before a view exists and after it is closed.
func TestCommandsWriteThroughTheView(t *testing.T) {
	allowed := map[string]string{
		"app.go":        "help and version, which have no view",
		"completion.go": "answers to shells, which have no view",
		"call.go":       "replaces the streams by none",
		"main.go":       "opens the streams; errors after the view is closed",
		"session.go":    "gives them to the view",
	}
	harmless := regexp.MustCompile(`ui\.(IsTerminal|CanHandOver)\((p\.stdin, )?p\.stdout\)|p\.color\(p\.stdout\)`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || allowed[file] != "" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range strings.Split(string(text), "\n") {
			if line = harmless.ReplaceAllString(line, ""); strings.Contains(line, "p.stdout") || strings.Contains(line, "os.Stdout") {
				t.Errorf("%s:%d: %s\nuse the view's Stdout, Stderr or Logs", file, n+1, strings.TrimSpace(line))
			}
		}
	}
}
