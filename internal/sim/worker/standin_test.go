//go:build linux

package worker_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"multihost/internal/sim/worker"
	"multihost/internal/testkit"
)

// A standinRow is one command and its whole answer.
type standinRow struct {
	line   string
	status int
	stdout string
	stderr string
}

func checkRows(t *testing.T, c *ssh.Client, rows []standinRow) {
	t.Helper()
	for _, r := range rows {
		out, errOut, err := runErr(t, c, r.line)
		status := 0
		var exit *ssh.ExitError
		if errors.As(err, &exit) {
			status = exit.ExitStatus()
		} else if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, standinRow{r.line, status, out, errOut}, cmp.AllowUnexported(standinRow{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", r.line, diff)
		}
	}
}

const defaultRoute = "default via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.7 metric 100"

func TestSysctl(t *testing.T) {
	f := newFixture(t)
	m := f.start(nil)
	c := f.dial(m)
	checkRows(t, c, []standinRow{
		{"sysctl net.ipv4.tcp_slow_start_after_idle", 0, "net.ipv4.tcp_slow_start_after_idle = 1\n", ""},
		{"sysctl -n net/ipv4/tcp_no_metrics_save net.core.somaxconn", 0, "0\n4096\n", ""},
		{"sudo -n sysctl -w net.core.optmem_max=131072", 0, "net.core.optmem_max = 131072\n", ""},
		{"sudo sysctl -qw net.ipv4.tcp_mtu_probing=1; cat $MULTIHOST_ROOT_PROC/proc/sys/net/ipv4/tcp_mtu_probing", 0, "1\n", ""},
		{"echo 0 >$MULTIHOST_ROOT_PROC/proc/sys/net/ipv4/tcp_mtu_probing; sysctl -n net.ipv4.tcp_mtu_probing", 0, "0\n", ""},
		{"sysctl -n net.core.optmem_max", 0, "131072\n", ""},
		{"sysctl net.ipv4.nope", 255, "", "sysctl: cannot stat /proc/sys/net/ipv4/nope: No such file or directory\n"},
		{"sudo sysctl -e net.ipv4.nope=1", 0, "", ""},
		{"sudo sysctl -w net.core.somaxconn", 255, "", "sysctl: \"net.core.somaxconn\" must be of the form name=value\n"},
	})
	set(t, m, "denied net.ipv4.tcp_mtu_probing")
	set(t, m, "missing net.core.somaxconn")
	set(t, m, "missing tcp_cubic")
	checkRows(t, c, []standinRow{
		{"sudo sysctl -w net.ipv4.tcp_mtu_probing=0", 255, "", "sysctl: permission denied on key \"net.ipv4.tcp_mtu_probing\"\n"},
		{"sysctl -n net.core.somaxconn", 255, "", "sysctl: cannot stat /proc/sys/net/core/somaxconn: No such file or directory\n"},
		{"ls $MULTIHOST_ROOT_SYS/sys/module", 0, "", ""},
	})
	if err := m.SetFault(worker.Fault{Kind: worker.Missing, Name: "tcp_bbr"}); err == nil {
		t.Error("a setting that the machine has not can go missing")
	}
	set(t, m, "clear")
	checkRows(t, c, []standinRow{
		{"sysctl -n net.core.somaxconn net.core.optmem_max", 0, "4096\n131072\n", ""},
		{"cat $MULTIHOST_ROOT_SYS/sys/module/tcp_cubic/parameters/hystart_detect", 0, "3\n", ""},
	})
}

func TestIP(t *testing.T) {
	f := newFixture(t)
	m := f.start(nil)
	c := f.dial(m)
	link := "10.128.0.1 dev ens8 proto dhcp scope link src 10.128.0.7 metric 100 \n"
	tuned := defaultRoute + " rto_min lock 5ms"
	checkRows(t, c, []standinRow{
		{"ip route show", 0, defaultRoute + " \n" + link, ""},
		{"ip -o -4 route show default", 0, defaultRoute + " \n", ""},
		{"ip -j route show default", 0, `[{"dst":"default","gateway":"10.128.0.1","dev":"ens8","protocol":"dhcp","prefsrc":"10.128.0.7","metric":100,"flags":[]}]` + "\n", ""},
		{"ip route show default dev ens8", 0, strings.Replace(defaultRoute, "dev ens8 ", "", 1) + " \n", ""},
		{"ip -6 route show", 0, "", ""},
		{"sudo -n ip route change " + defaultRoute + " rto_min 5ms", 0, "", ""},
		{"ip route show default", 0, tuned + " \n", ""},
		{"ip -j route show default", 0, `[{"dst":"default","gateway":"10.128.0.1","dev":"ens8","protocol":"dhcp","prefsrc":"10.128.0.7","metric":100,"flags":[],"metrics":[{"rto_min":5}]}]` + "\n", ""},
		{"sudo ip route change " + tuned, 255, "", "Error: argument \"lock\" is wrong: \"rto_min\" value is invalid\n"},
		{"sudo ip route change '" + defaultRoute + "'", 1, "", "Error: any valid prefix is expected rather than \"" + defaultRoute + "\".\n"},
		{"sudo ip route change default via 10.128.0.1 dev ens8 metric 7", 2, "", "RTNETLINK answers: No such file or directory\n"},
		{"sudo ip route change default dev nodev", 1, "", "Cannot find device \"nodev\"\n"},
		{"sudo ip route change default dev ens8 foo", 255, "", "Error: either \"to\" is duplicate, or \"foo\" is a garbage.\n"},
		{"sudo ip route add " + defaultRoute, 2, "", "RTNETLINK answers: File exists\n"},
		{"sudo ip route replace default via 10.128.0.1 dev ens8 metric 200 && ip route show default", 0, tuned + " \ndefault via 10.128.0.1 dev ens8 metric 200 \n", ""},
		{"sudo ip route del default dev ens8 metric 200 && ip route show default", 0, tuned + " \n", ""},
		{"sudo ip route del default dev ens8 metric 200", 2, "", "RTNETLINK answers: No such process\n"},
		// Several routes have one metric. Like the kernel, ip changes and deletes the first
		// of them.
		{"sudo ip route append " + defaultRoute + " && ip route show default", 0, tuned + " \n" + defaultRoute + " \n", ""},
		{"sudo ip route append " + defaultRoute, 2, "", "RTNETLINK answers: File exists\n"},
		{"sudo ip route change " + defaultRoute, 2, "", "RTNETLINK answers: File exists\n"},
		{"sudo ip route del " + defaultRoute + " rto_min 5ms && ip route show default", 0, defaultRoute + " \n", ""},
		{"sudo ip route del default proto boot via 10.128.0.1 dev ens8", 2, "", "RTNETLINK answers: No such process\n"},
		{"sudo ip route prepend " + defaultRoute + " rto_min 5ms && ip route show default", 0, tuned + " \n" + defaultRoute + " \n", ""},
		{"sudo ip route del " + defaultRoute + " && ip route show default", 0, defaultRoute + " \n", ""},
		{"sudo ip route change " + defaultRoute + " rto_min 5ms && ip route show default", 0, tuned + " \n", ""},
		{"ip link show ens8", 0, "2: ens8: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 8896 qdisc mq state UP mode DEFAULT group default qlen 1000\n    link/ether 42:01:0a:80:00:07 brd ff:ff:ff:ff:ff:ff\n", ""},
		{"ip -o link | cut -d: -f 2", 0, " lo\n ens8\n", ""},
		{"ip link show nodev", 1, "", "Device \"nodev\" does not exist.\n"},
		{"sudo ip link set dev ens8 mtu 1460; cat $MULTIHOST_ROOT_SYS/sys/class/net/ens8/mtu", 0, "1460\n", ""},
		{"ip -o -4 addr show dev ens8", 0, "2: ens8    inet 10.128.0.7/32 metric 100 scope global dynamic ens8\\       valid_lft forever preferred_lft forever\n", ""},
		{"ip frob", 1, "", "Object \"frob\" is unknown, try \"ip help\".\n"},
		{"ip route frob", 255, "", "Command \"frob\" is unknown, try \"ip route help\".\n"},
	})
	set(t, m, "denied ip-route")
	checkRows(t, c, []standinRow{
		{"sudo ip route change " + defaultRoute, 2, "", "RTNETLINK answers: Operation not permitted\n"},
	})
}

func TestEthtool(t *testing.T) {
	f := newFixture(t)
	m := f.start(nil)
	c := f.dial(m)
	checkRows(t, c, []standinRow{
		{"ethtool -k ens8 | grep nocache", 0, "tx-nocache-copy: off\n", ""},
		{"sudo ethtool -K ens8 tx-nocache-copy on && ethtool -k ens8 | grep nocache", 0, "tx-nocache-copy: on\n", ""},
		{"sudo ethtool -K ens8 nope on", 2, "", "netlink error: bit name not found (offset 52)\nnetlink error: Operation not supported\n"},
		{"ethtool -k nodev", 92, "", "netlink error: no device matches name (offset 24)\nnetlink error: No such device\n"},
	})
	set(t, m, "fixed tx-nocache-copy")
	checkRows(t, c, []standinRow{
		{"ethtool -k ens8 | grep nocache", 0, "tx-nocache-copy: on [fixed]\n", ""},
		{"sudo ethtool -K ens8 tx-nocache-copy off", 1, "Actual changes:\ntx-nocache-copy: on [requested off]\n", "Could not change any device features\n"},
	})
	set(t, m, "clear fixed")
	set(t, m, "denied ethtool")
	checkRows(t, c, []standinRow{
		{"sudo ethtool -K ens8 tx-nocache-copy off", 1, "", "netlink error: Operation not permitted\n"},
	})
}

func TestSudo(t *testing.T) {
	f := newFixture(t)
	m := f.start(nil)
	c := f.dial(m)
	checkRows(t, c, []standinRow{
		{`FOO=1 LC_ALL=C sudo -n -- sh -c 'echo "$USER $SUDO_USER ${HOME##*/} [$FOO] [$LC_ALL] ${MULTIHOST_ROOT_PROC:+set}"'`, 0, "root dev root [] [C] set\n", ""},
		{`FOO=1 sudo -nE sh -c 'echo "[$FOO]"'`, 0, "[1]\n", ""},
		{`sudo -n A='x y' B= sh -c 'echo "[$A][$B]$#" - "$@"' - 'p q' r`, 0, "[x y][]2 - p q r\n", ""},
		{`sudo -u dev sh -c 'echo "$USER ${HOME##*/}"'`, 0, "dev dev\n", ""},
		{`sudo -u nobody2 true`, 1, "", "sudo: unknown user nobody2\n"},
		{`sudo -n no-such-command`, 1, "", "sudo: no-such-command: command not found\n"},
		{`sudo -n sh -c 'exit 7'`, 7, "", ""},
		{`sudo -n true; sudo -n -v`, 0, "", ""},
		{`id -un; id -u; whoami; sudo id -u; sudo -u dev id -u`, 0, "dev\n1001\ndev\n0\n1001\n", ""},
		{`sysctl -w net.core.somaxconn=1`, 255, "", "sysctl: permission denied on key \"net.core.somaxconn\"\n"},
		{`ip route del default`, 2, "", "RTNETLINK answers: Operation not permitted\n"},
		{`sudo reboot`, 1, "", "reboot: not modelled by the simulator\n"},
	})
	set(t, m, "no-sudo")
	checkRows(t, c, []standinRow{
		{`sudo -n true`, 1, "", "sudo: a password is required\n"},
	})
	set(t, m, "clear no-sudo")
	run(t, c, "sudo -n true")
}

func TestNumactl(t *testing.T) {
	f := newFixture(t)
	c := f.dial(f.start(nil))
	checkRows(t, c, []standinRow{
		{`numactl --membind=0 --cpunodebind=0 sh -c 'echo "$@"' - 'a b' --membind=9`, 0, "a b --membind=9\n", ""},
		{"numactl -N 0-1 -m 1 true", 0, "", ""},
		{"numactl --hardware | head -1", 0, "available: 2 nodes (0-1)\n", ""},
		{"numactl --membind=2 true 2>&1 | head -1", 0, "libnuma: Warning: node argument 2 is out of range\n", ""},
		{"numactl --membind=2 true 2>/dev/null", 1, "", ""},
		{"ls -d $MULTIHOST_ROOT_SYS/sys/devices/system/node/node* | wc -l", 0, "2\n", ""},
	})
}

func TestHoldersAreTheMachinesOwn(t *testing.T) {
	testkit.Need(t, "pgrep", "lsof")
	f := newFixture(t)
	m := f.start(nil)
	other := f.start(func(s *worker.Spec) { s.Index = 1 })
	hold := func(m worker.Machine) int {
		s := newSession(t, f.dial(m))
		out, err := s.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(`exec 9<>"$MULTIHOST_ROOT_DEV/dev/accel0"; echo $$; exec sleep 1000`); err != nil {
			t.Fatal(err)
		}
		return readPID(t, out)
	}
	pid, otherPID := hold(m), hold(other)
	c := f.dial(m)
	checkRows(t, c, []standinRow{
		{"sudo lsof -w -t /dev/accel0", 0, fmt.Sprintln(pid), ""},
		{"sudo lsof -w /dev/accel0 | awk 'NR > 1 { print $2, $NF }'", 0, fmt.Sprintf("%d /dev/accel0\n", pid), ""},
		{"lsof -t /dev/accel1", 1, "", ""},
		{"lsof /dev/accel9", 1, "", "lsof: status error on /dev/accel9: No such file or directory\n"},
		{"pgrep -x sleep", 0, fmt.Sprintln(pid), ""},
		{"pgrep -f no-such-thing-at-all", 1, "", ""},
		{"fuser /dev/accel0", 0, fmt.Sprintf(" %5d", pid), "/dev/accel0:\n"},
		{"pkill -9 -x sleep", 0, "", ""},
		{"killall -q sleep2", 1, "", ""},
		{"sudo apt-get install -y numactl >/dev/null", 0, "", ""},
		{"apt-get update 2>/dev/null", 100, "", ""},
		{"hostname", 0, "t1v-n-0123-w-0\n", ""},
	})
	await(t, "the holder to die", func() bool { return !alive(pid) })
	if !alive(otherPID) {
		t.Error("pkill reached another machine")
	}
}

// If a stand-in is missing, the worker must not use the real program of the machine on
// which the simulator runs.
func TestAMissingProgramComesBackByAptGet(t *testing.T) {
	f := newFixture(t)
	m := f.start(nil)
	c := f.dial(m)
	const look = `for p in numactl ethtool sudo python3; do type -P $p >/dev/null && printf '%s ' $p; done; sudo bash -c 'type -P numactl >/dev/null' && echo and root`
	all := standinRow{look, 0, "numactl ethtool sudo python3 and root\n", ""}
	checkRows(t, c, []standinRow{all})
	set(t, m, "missing numactl")
	checkRows(t, c, []standinRow{{look, 1, "ethtool sudo python3 ", ""}})
	set(t, m, "missing ethtool")
	checkRows(t, c, []standinRow{
		{look, 1, "sudo python3 ", ""},
		{"apt-get install -y numactl 2>/dev/null", 100, "", ""},
		{"sudo apt-get install -y numactl ethtool lsof >/dev/null; numactl --hardware | head -1", 0, "available: 2 nodes (0-1)\n", ""},
		all,
	})
	set(t, m, "missing numactl")
	set(t, m, "clear")
	checkRows(t, c, []standinRow{all})
}

func TestMachinesAreApart(t *testing.T) {
	outside := func() string {
		var all []string
		for _, p := range []string{
			"/proc/sys/net/core/optmem_max", "/proc/sys/net/ipv4/tcp_mtu_probing",
			"/proc/sys/net/ipv4/tcp_no_metrics_save", "/proc/sys/kernel/hostname", "/proc/net/route",
		} {
			text, _ := os.ReadFile(p)
			for line := range strings.Lines(string(text)) {
				if !strings.HasPrefix(line, "mhs") { // other tests have these machines of the netns backend
					all = append(all, line)
				}
			}
		}
		return strings.Join(all, "")
	}
	before := outside()
	f := newFixture(t)
	a := f.start(nil)
	b := f.start(func(s *worker.Spec) { s.Index = 1 })
	const look = `sysctl -a | grep -v boot_id; ip route; ethtool -k ens8; ls "$TMPDIR"; ls "$MULTIHOST_ROOT_DEV/dev"; ls`
	was := run(t, f.dial(b), look)
	run(t, f.dial(a), `set -e
		sudo sysctl -w net.core.optmem_max=131072 net.ipv4.tcp_mtu_probing=1 net.ipv4.tcp_no_metrics_save=1
		sudo ip route change `+defaultRoute+` rto_min 5ms
		sudo ethtool -K ens8 tx-nocache-copy on
		touch "$TMPDIR/x" y; rm "$MULTIHOST_ROOT_DEV/dev/accel3"`)
	if diff := cmp.Diff(was, run(t, f.dial(b), look)); diff != "" {
		t.Errorf("the other machine changed:\n%s", diff)
	}
	if diff := cmp.Diff(before, outside()); diff != "" {
		t.Errorf("the machine outside changed:\n%s", diff)
	}
	if a.Addr() == b.Addr() {
		t.Error("two machines have one address")
	}
	if entries, err := filepath.Glob(filepath.Join(f.root, "workers", "*", "home", "dev", "y")); err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v", entries, err)
	}
}
