//go:build linux

package codesync_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"multihost/internal/codesync"
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

func TestPushOverSSH(t *testing.T) {
	conn, root, fault := connect(t)
	dir := t.TempDir()
	big := make([]byte, 6<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, err := random.Read(big)
	must(t, err)
	must(t, os.Mkdir(filepath.Join(dir, "-d\n"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "-d\n", "big \xff"), big, 0o644))
	for i := range 20 {
		must(t, os.WriteFile(filepath.Join(dir, "f"+strconv.Itoa(i)), big[i<<18:(i+1)<<18], 0o644))
	}
	tree, err := codesync.Scan(t.Context(), codesync.Options{Dir: dir})
	must(t, err)
	defer tree.Close()

	fault("cut", "in", "3000000", "1")
	rep, err := tree.Push(t.Context(), conn, "run1")
	must(t, err)
	if rep.SentFiles == 0 {
		t.Errorf("report %+v", rep)
	}
	got, err := os.ReadFile(filepath.Join(root, "home/tester/run1/-d\n/big \xff"))
	must(t, err)
	if !bytes.Equal(got, big) {
		t.Error("the file arrived differently")
	}
	rep, err = tree.Push(t.Context(), conn, "run1")
	must(t, err)
	if rep != (codesync.Report{Reused: 21}) {
		t.Errorf("second push: %+v", rep)
	}
}
