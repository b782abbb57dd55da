//go:build linux

package preflight_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/preflight"
	"multihost/internal/remote"
	"multihost/internal/sim/netns"
	"multihost/internal/sim/worker"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
	"multihost/internal/tpu"
)

// realWorkers are machines with namespaces of the real kernel and the real sysctl, ip,
// ethtool and sudo. conns are connections to them.
type realWorkers struct {
	machines []worker.Machine
	conns    []*sshfan.Conn
	ids      []tpu.WorkerID
}

// startReal starts one machine for each spec.
func startReal(t *testing.T, specs ...worker.Spec) *realWorkers {
	t.Helper()
	simworker.NeedNetns(t)
	testkit.NoLeaks(t)
	dir := t.TempDir()
	backend, err := netns.New(netns.Config{Root: filepath.Join(dir, "workers")})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, backend.Close()) })
	id, err := sshkey.Create(filepath.Join(dir, "key"))
	testkit.Must(t, err)
	r := &realWorkers{machines: make([]worker.Machine, len(specs))}
	errs := make([]error, len(specs))
	var wg sync.WaitGroup
	for i, s := range specs {
		s.Name, s.Node, s.NodeUID, s.Index = fmt.Sprintf("s0w%d", i), "t-0", "1234", i
		s.Hostname, s.IP = fmt.Sprintf("t1v-n-0123abcd-w-%d", i), fmt.Sprintf("10.128.0.%d", i+2)
		s.Devices = []string{"/dev/vfio/0", "/dev/vfio/vfio"}
		s.AuthorizedKeys = func() []string { return []string{"tester:" + id.PublicKey() + " tester"} }
		wg.Go(func() { r.machines[i], errs[i] = backend.Start(t.Context(), s) })
		r.ids = append(r.ids, tpu.WorkerID{Slice: 0, Worker: i})
	}
	wg.Wait()
	var hosts []sshfan.Host
	for i, m := range r.machines {
		testkit.Must(t, errs[i])
		hosts = append(hosts, sshfan.Host{
			Name: fmt.Sprintf("s0w%d", i), User: "tester", Pin: fmt.Sprintf("1234/%d", i),
			Addr: func(context.Context) (string, error) {
				return net.JoinHostPort(m.Addr(), strconv.Itoa(backend.Port())), nil
			},
		})
	}
	fleet, err := sshfan.New(sshfan.Config{Identity: id, KnownHosts: filepath.Join(dir, "known_hosts")})
	testkit.Must(t, err)
	t.Cleanup(fleet.Close)
	r.conns, errs = fleet.Connect(t.Context(), hosts)
	for _, err := range errs {
		testkit.Must(t, err)
	}
	return r
}

// preflight runs the preflight on all workers at once.
func (r *realWorkers) preflight(t *testing.T, o preflight.Options) []preflight.Report {
	t.Helper()
	reports, errs := make([]preflight.Report, len(r.conns)), make([]error, len(r.conns))
	var wg sync.WaitGroup
	for i, c := range r.conns {
		wg.Go(func() { reports[i], errs[i] = preflight.Run(t.Context(), c, o) })
	}
	wg.Wait()
	for _, err := range errs {
		testkit.Must(t, err)
	}
	return reports
}

// output returns what a command prints on worker i.
func (r *realWorkers) output(t *testing.T, i int, line string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	st, err := r.conns[i].Run(t.Context(), remote.Cmd{Line: line, Stdout: &out, Stderr: &errOut})
	if err != nil || st.Code != 0 {
		t.Errorf("run %q on worker %d: %v, %v: %s", line, i, st, err, errOut.String())
	}
	return out.String()
}

// ended lists the settings that are not as wanted. With changed, it also lists those that were
// written.
func ended(rep preflight.Report, changed bool) string {
	var b strings.Builder
	for _, res := range rep.Results {
		switch {
		case res.Outcome == preflight.Failed, res.Outcome == preflight.Skipped:
			fmt.Fprintf(&b, "%s %s: %s\n", res.Setting, res.Outcome, res.Reason)
		case changed && res.Outcome == preflight.Changed:
			fmt.Fprintf(&b, "%s changed\n", res.Setting)
		}
	}
	return b.String()
}

// readBack is a script that prints every setting. The test runs it on workers and on its own
// machine.
const readBack = `PATH=$PATH:/usr/sbin:/sbin
sysctl net.ipv4.tcp_slow_start_after_idle net.ipv4.tcp_no_metrics_save net.core.somaxconn net.ipv4.tcp_max_syn_backlog net.ipv4.tcp_mtu_probing net.core.optmem_max
cat /sys/module/tcp_cubic/parameters/hystart_detect
ip -o route show default | sed 's/ *$//'
for d in $(ip -o route show default | grep -o 'dev [a-z0-9]*' | sort -u | cut -d' ' -f2); do echo $d $(ethtool -k $d | grep tx-nocache-copy); done`

// deletedFirst prints the default routes that were deleted before they were added with
// rto_min.
const deletedFirst = `awk '{sub(/ *$/, "")} /^Deleted default/ && !added[substr($0, 9)] {print} sub(/ rto_min lock 5ms/, "") {added[$0] = 1}' `

const wantedSysctl = `net.ipv4.tcp_slow_start_after_idle = 0
net.ipv4.tcp_no_metrics_save = 1
net.core.somaxconn = 4096
net.ipv4.tcp_max_syn_backlog = 4096
net.ipv4.tcp_mtu_probing = 0
net.core.optmem_max = 131072
`

const (
	ens9 = `ip link add ens9 mtu 8896 type veth peer name p9 mtu 8896 && ip link set ens9 up && ip link set p9 up && ip addr add 10.0.1.5/24 dev ens9
`
	firstRoute = "default via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.%d metric 100 rto_min lock 5ms\n"
)

// TestRealKernel applies the settings to workers on the real kernel. It reads the settings
// back, applies them again, and once more after a reboot.
func TestRealKernel(t *testing.T) {
	stories := []struct {
		name    string
		spec    worker.Spec
		problem string // the problem that each apply reports, the first and every later one
		routes  string // after apply
		devices string
	}{
		{
			name: "as made", devices: "ens8 tx-nocache-copy: on\n",
			spec:   worker.Spec{Boot: "sysctl -w net.ipv4.tcp_mtu_probing=1 net.core.somaxconn=128 net.core.optmem_max=20480"},
			routes: fmt.Sprintf(firstRoute, 2),
		},
		{
			name: "two default routes", devices: "ens8 tx-nocache-copy: on\nens9 tx-nocache-copy: on\n",
			spec:   worker.Spec{Boot: ens9 + "ip route add default via 10.0.1.1 dev ens9 metric 200"},
			routes: fmt.Sprintf(firstRoute, 3) + "default via 10.0.1.1 dev ens9 metric 200 rto_min lock 5ms\n",
		},
		{
			name: "two default routes of one metric", devices: "ens8 tx-nocache-copy: on\nens9 tx-nocache-copy: on\n",
			spec:   worker.Spec{Boot: ens9 + "ip route append default via 10.0.1.1 dev ens9 proto dhcp src 10.0.1.5 metric 100"},
			routes: fmt.Sprintf(firstRoute, 4) + "default via 10.0.1.1 dev ens9 proto dhcp src 10.0.1.5 metric 100 rto_min lock 5ms\n",
		},
		{
			name: "extra attributes", devices: "ens8 tx-nocache-copy: on\nens9 tx-nocache-copy: on\n",
			spec: worker.Spec{Boot: ens9 + `ip route change default via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.5 metric 100 mtu lock 1400 initcwnd 20 quickack 1
ip route add default via 10.9.0.1 dev ens9 onlink metric 200
ip route add default metric 300 nexthop via 10.128.0.1 dev ens8 weight 1 nexthop via 10.0.1.1 dev ens9 weight 2
ip route add default dev ens9 scope link metric 600`},
			routes: `default via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.5 metric 100 mtu lock 1400 initcwnd 20 rto_min lock 5ms quickack 1
default via 10.9.0.1 dev ens9 metric 200 onlink rto_min lock 5ms
default metric 300 rto_min lock 5ms \	nexthop via 10.128.0.1 dev ens8 weight 1 \	nexthop via 10.0.1.1 dev ens9 weight 2
default dev ens9 scope link metric 600 rto_min lock 5ms
`,
		},
		{
			name: "no tcp_cubic", devices: "ens8 tx-nocache-copy: on\n",
			spec:    worker.Spec{Faults: []worker.Fault{{Kind: worker.Missing, Name: "tcp_cubic"}}},
			problem: "hystart_detect skipped: tcp_cubic is not loaded\n",
			routes:  fmt.Sprintf(firstRoute, 6),
		},
		{
			name: "a fixed feature", devices: "ens8 tx-nocache-copy: on\nlo tx-nocache-copy: off [fixed]\n",
			spec:    worker.Spec{Boot: "ip link set lo mtu 8896 && ip route add default dev lo metric 900"},
			problem: "tx-nocache-copy skipped: fixed to off by the driver of lo\n",
			routes:  fmt.Sprintf(firstRoute, 7) + "default dev lo scope link metric 900 rto_min lock 5ms\n",
		},
		{
			name: "a small network", devices: "ens8 tx-nocache-copy: on\n",
			spec:    worker.Spec{MTU: 1460},
			problem: "mtu failed: ens8 has mtu 1460, its network 8896\n",
			routes:  fmt.Sprintf(firstRoute, 8),
		},
	}
	specs := make([]worker.Spec, len(stories))
	for i, s := range stories {
		specs[i] = s.spec
		if s.spec.MTU == 0 {
			specs[i].MTU = 8896
		}
		specs[i].Network = strconv.Itoa(specs[i].MTU)
	}
	outside := outsideSettings(t)
	r := startReal(t, specs...)
	const watch = "/tmp/routes"
	for i := range stories {
		r.output(t, i, "setsid timeout 600 ip monitor route >"+watch+" 2>&1 </dev/null & until [[ $(pgrep -c -x ip) -gt 0 ]]; do :; done")
	}

	o := preflight.Options{ExpectMTU: 8896, ExpectChips: 1}
	apply := func(how string) {
		t.Helper()
		for i, rep := range r.preflight(t, o) {
			story := stories[i]
			if diff := cmp.Diff(story.problem, ended(rep, false)); diff != "" {
				t.Errorf("%s, %s: problems (-want +got):\n%s", story.name, how, diff)
			}
			if rep.Severity(false) > preflight.Warning {
				t.Errorf("%s, %s: taken for hopeless", story.name, how)
			}
			want := wantedSysctl + "2\n" + story.routes + story.devices
			if strings.Contains(story.problem, "tcp_cubic") {
				want = wantedSysctl + story.routes + story.devices
			}
			if diff := cmp.Diff(want, r.output(t, i, readBack)); diff != "" {
				t.Errorf("%s, %s: read back (-want +got):\n%s", story.name, how, diff)
			}
		}
	}
	apply("apply")
	for i, story := range stories {
		if lost := r.output(t, i, deletedFirst+watch); lost != "" {
			t.Errorf("%s: routes went away for a while:\n%s", story.name, lost)
		}
	}
	for i, rep := range r.preflight(t, o) {
		if diff := cmp.Diff(stories[i].problem, ended(rep, true)); diff != "" {
			t.Errorf("%s: second apply (-want +got):\n%s", stories[i].name, diff)
		}
	}
	small := preflight.Options{ExpectMTU: 1460, ExpectChips: 1}
	if rep := r.preflight(t, small)[6]; ended(rep, true) != "" {
		t.Errorf("a small network, expected small: %s", ended(rep, true))
	}

	var wg sync.WaitGroup
	for _, m := range r.machines {
		wg.Go(func() { testkit.Must(t, m.Reboot(t.Context())) })
	}
	wg.Wait()
	for i, rep := range r.preflight(t, preflight.Options{Mode: preflight.Check, ExpectMTU: 8896, ExpectChips: 1}) {
		if !strings.Contains(ended(rep, false), "rto_min failed: not as wanted") {
			t.Errorf("%s: settings survive the reboot:\n%s", stories[i].name, ended(rep, false))
		}
	}
	apply("apply after reboot")
	if diff := cmp.Diff(outside, outsideSettings(t)); diff != "" {
		t.Errorf("the machine outside (-before +after):\n%s", diff)
	}
}

// Without the rights to change settings, each result says why, and the worker is not changed.
func TestRealKernelWithoutRights(t *testing.T) {
	r := startReal(t,
		worker.Spec{MTU: 8896, Network: "mtu9k", Faults: []worker.Fault{{Kind: worker.NoSudo}}},
		worker.Spec{MTU: 8896, Network: "mtu9k", Faults: []worker.Fault{{Kind: worker.Denied, Name: "net.ipv4.tcp_no_metrics_save"}}},
		worker.Spec{MTU: 8896, Network: "mtu9k", Boot: "ip route append default via 10.128.0.1 dev ens8 onlink metric 100 mtu 1400 rto_min 5ms; ip route append default via 10.128.0.1 dev ens8 metric 100"},
	)
	before := r.output(t, 0, readBack)
	reports := r.preflight(t, preflight.Options{ExpectMTU: 8896, ExpectChips: 1})
	if diff := cmp.Diff(before, r.output(t, 0, readBack)); diff != "" {
		t.Errorf("changed without rights (-before +after):\n%s", diff)
	}
	const reason = " failed: no root rights: sudo: a password is required\n"
	var want strings.Builder
	for _, name := range []string{"tcp_slow_start_after_idle", "tcp_no_metrics_save", "rto_min", "hystart_detect", "tcp_max_syn_backlog", "tx-nocache-copy"} {
		want.WriteString(name + reason)
	}
	for i, want := range []string{
		want.String(),
		"tcp_no_metrics_save failed: permission denied on key \"net.ipv4.tcp_no_metrics_save\"\n",
		"rto_min failed: the kernel cannot tell it from the default route via 10.128.0.1 dev ens8 metric 100 onlink mtu 1400\n",
	} {
		if diff := cmp.Diff(want, ended(reports[i], false)); diff != "" {
			t.Errorf("worker %d (-want +got):\n%s", i, diff)
		}
	}
	const summary = "6/12 settings on s0w0; 11/12 settings on s0w[1-2]; "
	if got := preflight.Fold(r.ids, reports); !strings.HasPrefix(got, summary) || !strings.Contains(got, "rto_min failed on s0w2: the kernel cannot tell it") {
		t.Errorf("summary: %s", got)
	}
	if n := strings.Count(r.output(t, 2, "ip route show default"), "default"); n != 3 {
		t.Errorf("worker 2 has %d default routes, want 3", n)
	}
}

// outsideSettings reads the settings of the machine on which the test runs.
func outsideSettings(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("bash", "-c", readBack).CombinedOutput()
	if err != nil {
		t.Logf("read settings outside: %v", err) // not every machine has all of them
	}
	return string(out)
}
