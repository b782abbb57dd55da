//go:build linux

package preflight_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"multihost/internal/preflight"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

func TestApplyOverSSH(t *testing.T) {
	testkit.NoLeaks(t)
	w := simworker.Start(t, simworker.Config{})
	w.Fault(t, "missing", "tcp_cubic")
	w.Fault(t, "denied", "net.ipv4.tcp_no_metrics_save")
	o := preflight.Options{ExpectMTU: 8896, ExpectChips: 1}
	rep, err := preflight.Run(t.Context(), w.Conns[0], o)
	testkit.Must(t, err)
	var said []string
	for _, r := range rep.Results {
		if r.Outcome == preflight.Failed || r.Outcome == preflight.Skipped {
			said = append(said, r.Setting+" "+string(r.Outcome)+": "+r.Reason)
		}
	}
	want := `tcp_no_metrics_save failed: permission denied on key "net.ipv4.tcp_no_metrics_save"|` +
		"hystart_detect skipped: tcp_cubic is not loaded"
	if got := strings.Join(said, "|"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	route, err := os.ReadFile(filepath.Join(w.Root, "state/route"))
	testkit.Must(t, err)
	if !strings.Contains(string(route), "rto_min lock 5ms") {
		t.Errorf("routes of the worker:\n%s", route)
	}
	w.Fault(t, "clear", "denied")
	rep, err = preflight.Run(t.Context(), w.Conns[0], o)
	testkit.Must(t, err)
	for _, r := range rep.Results {
		if (r.Outcome == preflight.Changed) != (r.Setting == "tcp_no_metrics_save") || r.Outcome == preflight.Failed {
			t.Errorf("second apply: %+v", r)
		}
	}
}
