package daemon

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"multihost/internal/sim"
	"multihost/internal/testkit"
)

func TestWorkersOfTheSimulatorAnswerWhereGcloudLooks(t *testing.T) {
	t.Parallel()
	taken := &net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	for _, test := range []struct {
		name    string
		asked   int
		try     error // error of trying the port
		tried   int
		port    int
		why     string
		refused string
	}{
		{name: "22 can be had", tried: 22, port: 22},
		{name: "22 is somebody's", try: taken, tried: 22, why: "workers cannot answer at port 22: address already in use"},
		{name: "ports below 1024 are root's", try: syscall.EACCES, tried: 22, why: "workers cannot answer at port 22: permission denied"},
		{name: "asked for", asked: 2222, tried: 2222, port: 2222},
		{name: "asked for, and somebody's", asked: 22, try: taken, tried: 22, refused: "--ssh-port=22: workers cannot answer there: address already in use"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tried := 0
			port, why, err := Port(test.asked, func(port int) error { tried = port; return test.try })
			if port != test.port || tried != test.tried || text(why) != test.why || text(err) != test.refused {
				t.Errorf("got %d, %q, %q after trying %d; want %d, %q, %q after %d", port, text(why), text(err), tried, test.port, test.why, test.refused, test.tried)
			}
			if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("the cause of %q is lost", err)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestTheStatusNamesWhatExists(t *testing.T) {
	t.Parallel()
	got := StatusText(sim.Status{
		URL: "http://127.0.0.1:1", Project: "p", Zone: "z-a", SSHPort: 22,
		Groups: []sim.GroupStatus{
			{ID: "m-0", Type: "tpu7x-16", Topology: "ACTIVE", VMs: make([]sim.VMStatus, 2)},
			{ID: "m-1", Type: "tpu7x-16", Waiting: true, VMs: make([]sim.VMStatus, 2)},
			{ID: "one", Type: "v6e-1", VMs: []sim.VMStatus{{Status: "TERMINATED"}}},
			{ID: "zero", Type: "v6e-1"},
		},
	})
	const want = `simulator at http://127.0.0.1:1, project p, zone z-a, SSH port 22
group  m-0   ACTIVE      tpu7x-16  2 VMs
group  m-1   WAITING     tpu7x-16  2 VMs
group  one   TERMINATED  v6e-1     1 VM
group  zero  EMPTY       v6e-1     0 VMs
`
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A shell that leaves the simulator removes what Export has set, and keeps the user's own
// credentials.
func TestUnset(t *testing.T) {
	t.Parallel()
	server, err := sim.Start(t.Context(), sim.Config{Dir: t.TempDir(), Login: true})
	testkit.Must(t, err)
	defer func() { testkit.Must(t, server.Close()) }()
	for _, dir := range []string{server.Config.Dir, "/elsewhere"} {
		lookup := func(name string) (string, bool) {
			v, ok := server.Env()[name]
			return v, ok
		}
		unset := strings.Fields(Unset(lookup, dir))
		for name := range server.Env() {
			kept := name == "GOOGLE_APPLICATION_CREDENTIALS" && dir == "/elsewhere"
			if slices.Contains(unset, name) == kept {
				t.Errorf("in %s: %s is unset: %v", dir, name, !kept)
			}
		}
	}
}
