//go:build unix

package localworker

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"multihost/internal/launch"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// A Fleet has the workers of slices, by the slice's name.
type Fleet map[string][]*Worker

// Slice makes a ready slice with its workers.
func (f Fleet) Slice(t testing.TB, name string, workers int) tpu.Slice {
	t.Helper()
	for range workers {
		f[name] = append(f[name], Make(t))
	}
	return testkit.ReadySlice(name, workers)
}

// Dialer returns a dialer that finds the workers.
func (f Fleet) Dialer() *Dialer {
	return &Dialer{Find: func(s tpu.Slice, worker int) (*Worker, error) {
		if worker >= len(f[s.Name]) {
			return nil, fmt.Errorf("slice %q has no worker %d", s.Name, worker)
		}
		return f[s.Name][worker], nil
	}}
}

func (w *Worker) Start(t testing.TB, spec launch.Spec) {
	t.Helper()
	c := w.Connect("worker", false, time.Minute)
	defer c.Close()
	armed, err := launch.Arm(t.Context(), c, spec)
	testkit.Must(t, err)
	_, err = armed.ReleaseAt(t.Context(), time.Time{})
	testkit.Must(t, err)
}

// UntilAllowed is a line of a script that waits for Allow.
const UntilAllowed = "until [ -e ~/go ]; do sleep 0.02; done\n"

// Allow lets the scripts of the worker continue.
func (w *Worker) Allow(t testing.TB) {
	t.Helper()
	testkit.Must(t, os.WriteFile(filepath.Join(w.Home, "go"), nil, 0o600))
}
