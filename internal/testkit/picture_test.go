package testkit_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mostPicture limits the lines of docs/ARCHITECTURE.md, because a reader cannot take in
// more at once. Decisions stand beside the code that they explain.
const mostPicture = 150

// docs/ARCHITECTURE.md has all packages, and no others.
func TestPictureHasEveryPackage(t *testing.T) {
	data, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if n := strings.Count(text, "\n"); n > mostPicture {
		t.Errorf("docs/ARCHITECTURE.md has %d lines, at most %d are allowed: move decisions to the comments of packages", n, mostPicture)
	}
	var shown []string
	for _, row := range regexp.MustCompile(`(?m)^([a-z][-a-z/., ]*?) +[0-9,]+  `).FindAllStringSubmatch(text, -1) {
		shown = append(shown, strings.Split(row[1], ", ")...)
	}
	seen := map[string]bool{}
	for _, p := range packages(t) {
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, "multihost/"), "internal/")
		if strings.HasPrefix(name, "examples/") || len(p.GoFiles) == 0 {
			continue
		}
		i := slices.IndexFunc(shown, func(row string) bool { return among([]string{row}, name) })
		if i < 0 {
			t.Errorf("docs/ARCHITECTURE.md lacks package %s", name)
			continue
		}
		seen[shown[i]] = true
	}
	for _, row := range shown {
		if !seen[row] {
			t.Errorf("docs/ARCHITECTURE.md shows package %s, which does not exist", row)
		}
	}
}
