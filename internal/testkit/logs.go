package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Append appends text to a file, which it makes with its directory if necessary.
func Append(t testing.TB, path, text string) {
	t.Helper()
	Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	Must(t, err)
	defer f.Close()
	_, err = f.WriteString(text)
	Must(t, err)
}

// Steps returns what a training prints in MaxText's format for the steps from … to-1. Each step
// takes that many seconds.
func Steps(from, to int, seconds float64) string {
	var b strings.Builder
	for step := from; step < to; step++ {
		fmt.Fprintf(&b, "completed step: %d, seconds: %.3f, TFLOP/s/device: 98.500, Tokens/s/device: 4000.000, total_weights: 512, loss: 3.000\n", step, seconds)
	}
	return b.String()
}
