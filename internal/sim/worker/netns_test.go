//go:build linux

package worker_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/sim/netns"
	"multihost/internal/sim/worker"
	"multihost/internal/testkit/simworker"
)

func newNetnsFixture(t testing.TB) *fixture {
	t.Helper()
	simworker.NeedNetns(t)
	checkGoroutines(t)
	root := t.TempDir()
	b, err := netns.New(netns.Config{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
			t.Errorf("root of the backend has %v, %v", left, err)
		}
	})
	f := &fixture{t: t, backend: b, root: root, signer: newSigner(t)}
	f.keys = []string{entry("dev", f.signer)}
	return f
}

func TestNetnsCut(t *testing.T)            { testCut(t, newNetnsFixture(t)) }
func TestNetnsFaultsOfReach(t *testing.T)  { testFaultsOfReach(t, newNetnsFixture(t)) }
func TestNetnsShutdownScript(t *testing.T) { testShutdownScript(t, newNetnsFixture(t)) }

func TestNetnsMachine(t *testing.T) {
	f := newNetnsFixture(t)
	outside, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	m := f.start(func(s *worker.Spec) {
		s.Devices = []string{"/dev/vfio/0", "/dev/vfio/vfio"}
		s.Env = []string{`ODD=a "b" c`}
		s.Boot = "ip route add default via 10.128.0.1 dev ens8 onlink metric 300 && touch /run/boot-script"
	})
	c := f.dial(m)
	for _, story := range []struct{ name, line, want string }{
		{"host name", "hostname; cat /etc/hostname", "t1v-n-0123-w-0\nt1v-n-0123-w-0\n"},
		{"login", "whoami; echo $HOME $SHELL; pwd; id -u; id -nG", "dev\n/home/dev /bin/bash\n/home/dev\n1001\ndev google-sudoers\n"},
		{"homes and users are its own", "ls /home; awk -F: '$3 >= 1000 && $3 < 60000 {print $1}' /etc/passwd", "dev\ndev\n"},
		{"files of the machine outside are out of sight", "sudo -n ls -A /root /tmp", "/root:\n\n/tmp:\n"},
		{"sudo", "sudo -n id -un", "root\n"},
		{"environment", `echo "$ODD"; echo $PATH | cut -d: -f1-3`, "a \"b\" c\n/usr/local/sbin:/usr/local/bin:/usr/sbin\n"},
		{"devices", "stat -c '%n %F %a' /dev/vfio/*; ls -d /dev/accel* 2>&1 | grep -c 'No such'", "/dev/vfio/0 character special file 666\n/dev/vfio/vfio character special file 666\n1\n"},
		{"devices have holders", "exec 7</dev/vfio/0; ls -l /proc/$$/fd/7 | sed 's/.* -> //'; lsof -t /dev/vfio/0 7<&- >/tmp/holders; grep -cx $$ /tmp/holders", "/dev/vfio/0\n1\n"},
		{"interface", "cat /sys/class/net/ens8/mtu; ip -4 -o addr show ens8 | awk '{print $4}'", "8896\n10.128.0.7/32\n"},
		{"routes", "ip route show default | sed 's/ *$//'", "default via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.7 metric 100\ndefault via 10.128.0.1 dev ens8 metric 300 onlink\n"},
		{"boot script", "stat -c %U /run/boot-script", "root\n"},
		{"module parameter", "cd /sys/module/tcp_cubic/parameters && cat hystart_detect && echo 2 | sudo -n tee hystart_detect && cat hystart_detect", "3\n2\n2\n"},
		{"open files", "ulimit -n", "1024\n"},
		{"terminal", "test -c /dev/ptmx && script -qec tty /dev/null", "/dev/pts/0\r\n"},
		{"process 1 reaps", "for i in 1 2 3; do (setsid true &); done; while ps -eo stat | grep -q Z; do :; done; ps -p 1 -o user=", "root\n"},
		{"root outside is out of reach", "for k in vm.swappiness kernel.panic; do sudo -n sysctl -q -w $k=1; echo $?; done; sudo -n mount -t tmpfs x /mnt; echo $?", "1\n1\n32\n"},
		{"numactl", "numactl --cpunodebind=0 --membind=0 echo bound", "bound\n"},
	} {
		out, errOut, err := runErr(t, c, story.line)
		if diff := cmp.Diff(story.want, out); diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s%s", story.name, err, diff, errOut)
		}
	}
	if id := run(t, c, "cat /proc/sys/kernel/random/boot_id"); id == string(outside) || len(id) != len(outside) {
		t.Errorf("boot id is %q, that of the machine outside %q", id, outside)
	}
}

func TestNetnsReboot(t *testing.T) {
	f := newNetnsFixture(t)
	m := f.start(nil)
	keys := m.HostKeys()
	const state = `cat /proc/sys/kernel/random/boot_id; sysctl -n net.ipv4.tcp_no_metrics_save; cat /sys/module/tcp_cubic/parameters/hystart_detect
cat /tmp/none keep /opt/package; ip route show default; pgrep -c -u dev sleep`
	c := f.dial(m)
	run(t, c, `echo kept >keep; echo installed | sudo -n tee /opt/package; echo x >/tmp/x; sudo -n sysctl -w net.ipv4.tcp_no_metrics_save=1
echo 2 | sudo -n tee /sys/module/tcp_cubic/parameters/hystart_detect; sudo -n ip route change default via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.7 metric 100 rto_min 5ms
setsid sleep 1000 >/dev/null 2>&1 </dev/null &`)
	before, _, _ := runErr(t, c, state)
	if err := m.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("connection ends without error")
	}
	check := func(how string) {
		t.Helper()
		after, _, _ := runErr(t, f.dial(m), state)
		b, a, _ := strings.Cut(after, "\n")
		if strings.HasPrefix(before, b) {
			t.Errorf("%s: boot id is the same", how)
		}
		want := "0\n3\nkept\ninstalled\ndefault via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.7 metric 100 \n0\n"
		if diff := cmp.Diff(want, a); diff != "" {
			t.Errorf("%s (-want +got):\n%s", how, diff)
		}
		before = after
	}
	check("Reboot")
	if diff := cmp.Diff(keys, m.HostKeys()); diff != "" {
		t.Errorf("host keys changed:\n%s", diff)
	}

	set(t, m, "reboot 1h0m0s")
	if err := m.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("reboot during a long one")

	// calls reboot(2) inside the machine, which comes back by itself
	_, _, _ = runErr(t, f.dial(m), `sudo -n perl -e 'syscall(169, 0xfee1dead, 672274793, 0x1234567)'`)
	await(t, "the machine to come back", func() bool {
		c, err := f.tryDial(m, "dev", f.signer)
		if err == nil {
			defer c.Close()
			id, _, _ := runErr(t, c, "cat /proc/sys/kernel/random/boot_id")
			return id != "" && !strings.HasPrefix(before, id)
		}
		return false
	})
	check("reboot(2)")
}

func TestNetnsLogins(t *testing.T) {
	f := newNetnsFixture(t)
	m := f.start(nil)
	other := newSigner(t)
	for _, login := range []string{"dev", "ann", "root"} {
		if c, err := f.tryDial(m, login, other); err == nil {
			c.Close()
			t.Errorf("login %q with a foreign key", login)
		}
	}
	f.authorize(entry("ann", other))
	f.authorize(entry("root", other))
	c, err := f.tryDial(m, "ann", other)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := run(t, c, "whoami; sudo -n whoami"); got != "ann\nroot\n" {
		t.Errorf("got %q", got)
	}
	if c, err := f.tryDial(m, "root", other); err == nil {
		c.Close()
		t.Error("root can log in")
	}
	f.mu.Lock()
	f.keys = f.keys[:1]
	f.mu.Unlock()
	if c, err := f.tryDial(m, "ann", other); err == nil {
		c.Close()
		t.Error("a key that was taken back opens the machine")
	}

	set(t, m, "no-sudo")
	if _, errOut, err := runErr(t, f.dial(m), "sudo -n true"); err == nil || !strings.Contains(errOut, "password is required") {
		t.Errorf("no-sudo: %v, %q", err, errOut)
	}
	set(t, m, "clear no-sudo")
	run(t, f.dial(m), "sudo -n true")

	set(t, m, "refuse-auth 1")
	if c, err := f.tryDial(m, "dev", f.signer); err == nil {
		c.Close()
		t.Error("refuse-auth: let in")
	}
	run(t, f.dial(m), "true")
}

// Machines of one network reach each other with packets of its size. Machines of two
// networks do not. The test reaches all of them, at both addresses.
func TestNetnsNetwork(t *testing.T) {
	f := newNetnsFixture(t)
	type place struct {
		ip, network string
		mtu         int
	}
	// No other run of this test uses these addresses at the same time.
	near := fmt.Sprintf("10.%d.%d.", 192+os.Getpid()%60, os.Getpid()/60%100)
	far := fmt.Sprintf("10.%d.%d.", 192+os.Getpid()%60, 100+os.Getpid()/60%100)
	var machines []worker.Machine
	for i, p := range []place{{near + "2", "big", 8896}, {near + "3", "big", 8896}, {near + "4", "small", 1460}, {far + "5", "small", 1460}} {
		machines = append(machines, f.start(func(s *worker.Spec) {
			s.Index, s.Hostname, s.IP, s.Network, s.MTU = i, fmt.Sprintf("t1v-n-0123-w-%d", i), p.ip, p.network, p.mtu
		}))
	}
	big, small := f.dial(machines[0]), f.dial(machines[2])
	const ping, once = "ping -q -c1 -W20 -M do -s ", "ping -q -c1 -W0.5 -M do -s "
	run(t, big, ping+"8868 "+near+"3")
	run(t, small, ping+"1432 "+far+"5")
	for _, c := range []struct {
		what, line string
		from       int
	}{
		{"a packet larger than the MTU", once + "8869 " + near + "3", 0},
		{"a packet larger than the small MTU", once + "1433 " + far + "5", 2},
		{"a machine of another network", once + "56 " + near + "4", 0},
		{"the world", once + "56 192.0.2.7", 0},
	} {
		if out, _, err := runErr(t, f.dial(machines[c.from]), c.line); err == nil {
			t.Errorf("%s gets through:\n%s", c.what, out)
		}
	}
	for _, m := range machines {
		own, ok := m.(worker.Internal)
		if !ok {
			t.Fatal("machine has no internal address")
		}
		for _, port := range []int{22, f.backend.Port()} {
			conn, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", own.InternalAddr(), port), patience)
			if err != nil {
				t.Error(err)
				continue
			}
			banner, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || !strings.HasPrefix(banner, "SSH-2.0-OpenSSH") {
				t.Errorf("%s: got %q, %v", conn.RemoteAddr(), banner, err)
			}
			conn.Close()
		}
	}
}

func TestNetnsMetadata(t *testing.T) {
	f := newNetnsFixture(t)
	var asked atomic.Int32
	m := f.start(func(s *worker.Spec) {
		s.Metadata = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/computeMetadata/v1/instance/attributes/startup-script" && r.Header.Get("Metadata-Flavor") == "Google" {
				asked.Add(1)
				fmt.Fprint(w, "#!/bin/bash\nid -un >>/opt/started; pwd >>/opt/started\n")
				return
			}
			fmt.Fprint(w, r.Host)
		})
	})
	for boot := range 2 {
		c := f.dial(m)
		if got := run(t, c, "curl -s http://metadata.google.internal/x; curl -s http://169.254.169.254/x"); got != "metadata.google.internal169.254.169.254" {
			t.Errorf("got %q", got)
		}
		want := strings.Repeat("root\n/\n", boot+1)
		await(t, "the startup script", func() bool { return run(t, c, "cat /opt/started 2>/dev/null || true") == want })
		if err := m.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the third boot to ask", func() bool { return asked.Load() == 3 })
}

// A real kernel can have these faults of settings, too. The test sets them inside of a
// machine.
func TestNetnsFaultsOfSettings(t *testing.T) {
	f := newNetnsFixture(t)
	m := f.start(func(s *worker.Spec) {
		s.Faults = []worker.Fault{{Kind: worker.Missing, Name: "tcp_cubic"}, {Kind: worker.Denied, Name: "net.ipv4.tcp_mtu_probing"}}
	})
	const line = "cat /sys/module/tcp_cubic/parameters/hystart_detect; ls /dev/accel3; sudo -n sysctl -q -w net.ipv4.tcp_mtu_probing=1; echo $?; sysctl -n net.ipv4.tcp_mtu_probing"
	set(t, m, "missing /dev/accel3")
	if got := run(t, f.dial(m), line); got != "1\n0\n" {
		t.Errorf("with faults: %q", got)
	}
	if err := m.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := run(t, f.dial(m), line); got != "1\n0\n" {
		t.Errorf("after a reboot: %q", got)
	}
	set(t, m, "clear")
	if got := run(t, f.dial(m), line); got != "3\n/dev/accel3\n0\n1\n" {
		t.Errorf("after the faults: %q", got)
	}
	for _, words := range []string{"missing net.ipv4.tcp_mtu_probing", "fixed tx-nocache-copy", "denied vm.swappiness", "denied ip-route"} {
		fault, err := worker.ParseFault(strings.Fields(words)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.SetFault(fault); err == nil {
			t.Errorf("%q is accepted", words)
		}
	}

	for _, what := range []string{"handshake", "exec"} {
		set(t, m, "slow "+what+" 300ms")
		from := time.Now()
		run(t, f.dial(m), "true")
		if took := time.Since(from); took < 300*time.Millisecond {
			t.Errorf("slow %s: took %v", what, took)
		}
		set(t, m, "clear slow")
	}

	before := m.HostKeys()
	set(t, m, "rotate-host-keys")
	if cmp.Equal(before, m.HostKeys()) {
		t.Error("host keys are the same")
	}
	c := f.dial(m)
	if got := run(t, c, "cut -d' ' -f2 <<<$(ssh-keyscan -t ed25519 127.0.0.1 2>/dev/null | cut -d' ' -f2,3)"); strings.TrimSpace(got) != m.HostKeys()["ssh-ed25519"] {
		t.Errorf("sshd shows host key %q", got)
	}

	set(t, m, "kill")
	if err := c.Wait(); err == nil {
		t.Error("connection ends without error")
	}
	await(t, "sshd to be started again", func() bool {
		c, err := f.tryDial(m, "dev", f.signer)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// outsideState returns what the test must leave as it is, also while it runs.
func outsideState(t *testing.T) map[string]string {
	t.Helper()
	state := make(map[string]string)
	for _, dir := range []string{"/proc/sys/net", "/proc/sys/vm", "/proc/sys/kernel", "/sys/module/tcp_cubic"} {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			// Counters, and trees of interfaces that come and go.
			for _, part := range []string{"random/", "ns_last_pid", "nr_", "pty/nr", "/neigh/", "/conf/", "pid_max", "sched_domain", "tainted", "perf_", "stat_refresh", "_count"} {
				if strings.Contains(path, part) {
					return nil
				}
			}
			if info, err := d.Info(); err != nil || info.Mode()&0o444 == 0 {
				return nil
			}
			if value, err := os.ReadFile(path); err == nil {
				state[path] = string(value)
			}
			return nil
		})
	}
	for _, path := range []string{"/etc/passwd", "/etc/shadow", "/etc/group", "/etc/hosts", "/etc/sudoers", "/etc/ssh/sshd_config", "/proc/self/mounts"} {
		data, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if path == "/proc/self/mounts" {
			data = withoutMountsOf(data, os.TempDir())
		}
		state[path] = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	return state
}

// withoutMountsOf leaves out what is mounted below dir: other tests may have mounts there
// now. Another check proves that nothing of this backend's own directory is left.
func withoutMountsOf(mounts []byte, dir string) (rest []byte) {
	for line := range bytes.Lines(mounts) {
		if f := bytes.Fields(line); len(f) < 2 || !bytes.HasPrefix(f[1], []byte(dir+"/")) {
			rest = append(rest, line...)
		}
	}
	return rest
}

// network returns the links and routes of the machine, without those of other tests'
// backends, which may run now.
func network(t *testing.T, without string) string {
	t.Helper()
	var lines []string
	for _, args := range [][]string{{"-o", "link"}, {"-4", "-o", "addr"}, {"route", "show", "table", "all"}, {"netns"}} {
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
		for line := range strings.Lines(string(out)) {
			if without == "" || !strings.Contains(line, without) {
				lines = append(lines, strings.TrimRight(line, " \n"))
			}
		}
	}
	return strings.Join(lines, "\n")
}

// The settings, mounts and accounts of the real machine do not change. Links and routes are
// removed afterwards.
func TestNetnsChangesNothingOutside(t *testing.T) {
	f := newNetnsFixture(t)
	before, net := outsideState(t), network(t, "mhs")
	m := f.start(nil)
	c := f.dial(m)
	// Whatever root of a machine does must not affect the real machine.
	_, _, _ = runErr(t, c, `sudo -n bash -c 'cd /proc/sys
for f in net/core/* net/ipv4/tcp_* vm/* kernel/*; do [[ -f $f ]] && read -r v <$f && echo $((v+1)) >$f; done
mount -o remount,rw /proc/sys; ip link set ens8 mtu 1300; ip route flush table main; rm -rf /etc'`)
	during := outsideState(t)
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.backend.Close(); err != nil {
		t.Fatal(err)
	}
	after := outsideState(t)
	if diff := cmp.Diff(before, during); diff != "" {
		t.Errorf("changed while a machine ran (-before +during):\n%s", diff)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("changed in the end (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(net, network(t, "mhs")); diff != "" {
		t.Errorf("network (-before +after):\n%s", diff)
	}
}

// A killed simulator leaves nothing. Sweep must report that it found nothing.
func TestNetnsKilled(t *testing.T) {
	simworker.NeedNetns(t)
	root := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "WORKER_TEST_HOLD="+root)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Errorf("simulator says %q, %v", line, err)
	}
	if !strings.Contains(network(t, ""), "10.255.77.2") || len(processesNaming(root)) == 0 {
		t.Error("nothing is there to be cleaned up")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if err := netns.Sweep(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	await(t, "the links and routes to be gone", func() bool { return !strings.Contains(network(t, ""), "10.255.77.") })
	if left := processesNaming(root); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
}

// processesNaming returns the living processes whose command line contains text.
func processesNaming(text string) []string {
	var found []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, path := range lines {
		data, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(data), text) {
			found = append(found, strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return found
}

// Eight workers start in little more time than one. Each has a disk of its own.
func TestNetnsManyMachines(t *testing.T) {
	f := newNetnsFixture(t)
	machines := make([]worker.Machine, 8)
	from := time.Now()
	var wg sync.WaitGroup
	for i := range machines {
		wg.Go(func() {
			m, err := f.backend.Start(t.Context(), worker.Spec{
				Name: fmt.Sprint(i), Node: "t-0", Index: i, IP: fmt.Sprintf("10.128.3.%d", i+2), AuthorizedKeys: f.authorized,
			})
			if err != nil {
				t.Error(err)
			}
			machines[i] = m
		})
	}
	wg.Wait()
	t.Logf("8 machines in %v", time.Since(from).Round(time.Millisecond))
	if t.Failed() {
		return
	}
	addrs := make(map[string]bool)
	for i, m := range machines {
		addrs[m.Addr()] = true
		run(t, f.dial(m), fmt.Sprintf("echo %d >mine", i))
	}
	var got []string
	for _, m := range machines {
		got = append(got, strings.TrimSpace(run(t, f.dial(m), "cat mine")))
	}
	if want := []string{"0", "1", "2", "3", "4", "5", "6", "7"}; !slices.Equal(got, want) || len(addrs) != 8 {
		t.Errorf("got %v at %v", got, addrs)
	}
}

func TestToolsErrorNamesPackages(t *testing.T) {
	err := &worker.ToolsError{Missing: []string{"sshd", "ip"}, Packages: []string{"openssh-server", "iproute2"}}
	if got := err.Error() + "; " + err.Hint(); got != "programs are missing: sshd, ip; install them: apt-get install openssh-server iproute2" {
		t.Errorf("got %q", got)
	}
}
