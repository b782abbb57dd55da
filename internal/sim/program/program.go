// Package program does what a container runtime does before it starts a program: it merges
// environments and finds the program.
package program

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Overlay returns the variables of both lists, with those of over in place of the same ones
// in under. Of several values of a variable, the last one counts.
func Overlay(under, over []string) []string {
	var env []string
	last := make(map[string]int)
	for _, e := range slices.Concat(under, over) {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := last[name]; ok {
			env[i] = e
			continue
		}
		last[name] = len(env)
		env = append(env, e)
	}
	return env
}

// Value returns the value of a variable, or "".
func Value(env []string, name string) string {
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

// Find finds the program of a command line in a search path. Its errors have the texts of a
// container runtime.
func Find(path string, argv []string) (string, error) {
	if len(argv) == 0 || argv[0] == "" {
		return "", errors.New("no command specified")
	}
	if strings.Contains(argv[0], "/") {
		if _, err := os.Stat(argv[0]); err != nil {
			return "", fmt.Errorf("exec: %q: stat %s: no such file or directory: %w", argv[0], argv[0], os.ErrNotExist)
		}
		return argv[0], nil
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, argv[0])
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH: %w", argv[0], os.ErrNotExist)
}
