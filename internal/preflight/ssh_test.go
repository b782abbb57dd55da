//go:build linux

package preflight_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"multihost/internal/preflight"
	"multihost/internal/sim/worker"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
)

// connect starts one simulated worker and connects to it. root is its file system.
func connect(t *testing.T) (conn *sshfan.Conn, root string, fault func(words ...string)) {
	t.Helper()
	testkit.NoLeaks(t)
	backend, err := worker.NewProcess(worker.ProcessConfig{Root: t.TempDir()})
	must(t, err)
	t.Cleanup(func() { must(t, backend.Close()) })
	dir := t.TempDir()
	id, err := sshfan.CreateIdentity(filepath.Join(dir, "key"))
	must(t, err)
	root = filepath.Join(dir, "machine")
	machine, err := backend.Start(t.Context(), worker.Spec{
		Name: "s0w0", Node: "t-0", NodeUID: "1234", Hostname: "t1v-n-0123abcd-w-0", Root: root, MTU: 8896,
		Devices:        []string{"/dev/vfio/0", "/dev/vfio/vfio"},
		AuthorizedKeys: func() []string { return []string{"tester:" + id.PublicKey() + " tester"} },
	})
	must(t, err)
	fleet, err := sshfan.New(sshfan.Config{Identity: id, KnownHosts: filepath.Join(dir, "known_hosts")})
	must(t, err)
	t.Cleanup(fleet.Close)
	conns, errs := fleet.Connect(t.Context(), []sshfan.Host{{
		Name: "s0w0", User: "tester", Pin: "1234/0",
		Addr: func(context.Context) (string, error) {
			return net.JoinHostPort(machine.Addr(), strconv.Itoa(backend.Port())), nil
		},
	}})
	must(t, errs[0])
	return conns[0], root, func(words ...string) {
		t.Helper()
		f, err := worker.ParseFault(words...)
		must(t, err)
		must(t, machine.SetFault(f))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestApplyOverSSH(t *testing.T) {
	conn, root, fault := connect(t)
	fault("missing", "tcp_cubic")
	fault("denied", "net.ipv4.tcp_no_metrics_save")
	o := preflight.Options{ExpectMTU: 8896, ExpectChips: 1}
	rep, err := preflight.Run(t.Context(), conn, o)
	must(t, err)
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
	route, err := os.ReadFile(filepath.Join(root, "state/route"))
	must(t, err)
	if !strings.Contains(string(route), "rto_min lock 5ms") {
		t.Errorf("routes of the worker:\n%s", route)
	}
	fault("clear", "denied")
	rep, err = preflight.Run(t.Context(), conn, o)
	must(t, err)
	for _, r := range rep.Results {
		if (r.Outcome == preflight.Changed) != (r.Setting == "tcp_no_metrics_save") || r.Outcome == preflight.Failed {
			t.Errorf("second apply: %+v", r)
		}
	}
}
