package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/remote"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// A host is a worker in a directory. It has kernel files below proc, sys and dev. Its PATH has
// stand-ins for the tools that change a machine, and the other tools that the script needs.
type host struct {
	t    *testing.T
	root string
}

// The stand-ins keep their state in $STATE. Like the kernel, ip changes the first route
// with the same metric, and deletes the first route that has everything in the arguments.
var standIns = map[string]string{
	"ip": `#!/bin/bash -p
metric() { local m=0; [[ $1 == *" metric "* ]] && { m=${1##* metric }; m=${m%% *}; }; echo "$m"; }
named() { local word have=" $1 "; [[ $have == *" proto "* ]] || have+="proto boot "; for word in $2; do [[ $have == *" $word "* ]] || return 1; done; }
args=" $* "
case $args in
*" route show default "*) cat "$STATE/routes" ;;
*" route "*" default "*)
	echo "ip $*" >>"$STATE/calls"
	[[ -e $STATE/ip-fails ]] && { cat "$STATE/ip-fails" >&2; exit 2; }
	spec=${args#* route * }; verb=${args#* route }; verb=${verb%% *}
	spec=${spec% }
	spec=${spec/rto_min 5ms/rto_min lock 5ms}
	done='' match=''
	while IFS= read -r line; do
		[[ ${line% } == "$spec" ]] && match=1
		if [[ -z $done && $verb == del ]] && named "$line" "$spec"; then
			done=1
		elif [[ -z $done && $verb == change && $(metric "$line") == "$(metric "$spec")" ]]; then
			done=1
			[[ -e $STATE/ip-loses ]] || echo "$spec"
		else
			echo "$line"
		fi
	done <"$STATE/routes" >"$STATE/routes.new"
	case $verb in
	change) [[ -z $match ]] || { echo "RTNETLINK answers: File exists" >&2; exit 2; } ;;
	del) [[ -n $done ]] || { echo "RTNETLINK answers: No such process" >&2; exit 2; } ;;
	add | append)
		[[ -e $STATE/ip-no-add ]] && { echo "RTNETLINK answers: Network is unreachable" >&2; exit 2; }
		[[ -z $match ]] || { echo "RTNETLINK answers: File exists" >&2; exit 2; }
		echo "$spec" >>"$STATE/routes.new"
		;;
	esac
	mv "$STATE/routes.new" "$STATE/routes" ;;
*) echo "ip stand-in: unknown call: $*" >&2; exit 1 ;;
esac
`,
	"ethtool": `#!/bin/bash -p
case $1 in
-k) echo "Features for $2:"; echo "rx-checksumming: on"; printf '\ttx-nocache-copy: '; cat "$STATE/feature-$2" 2>/dev/null || cat "$STATE/feature" ;;
-K) echo "ethtool $*" >>"$STATE/calls"; [[ $(cat "$STATE/feature") == *fixed* ]] && { echo "Could not change any device features" >&2; exit 1; }; echo "$4" >"$STATE/feature-$2" ;;
esac
`,
	"id": "#!/bin/bash -p\ncat \"$STATE/uid\"\n",
	"sudo": `#!/bin/bash -p
echo "sudo $*" >>"$STATE/calls"
[[ -e $STATE/sudo-refuses ]] && { echo "sudo: a password is required" >&2; exit 1; }
[[ $1 == -n ]] || exit 1
shift
exec "$@"
`,
	"numactl": "#!/bin/bash -p\n",
	"apt-get": `#!/bin/bash -p
echo "apt-get $*" >>"$STATE/calls"
[[ -e $STATE/apt-fails ]] && { cat "$STATE/apt-fails"; exit 100; }
for name; do [[ -e $STATE/repository/$name ]] && cp "$STATE/repository/$name" "${0%/*}/$name"; done
exit 0
`,
}

const oneRoute = "default via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.5 metric 100 \n"

// newHost returns a new TPU VM with sudo, one default route and four chips.
func newHost(t *testing.T) *host {
	h := &host{t, t.TempDir()}
	for name, value := range map[string]string{
		"proc/sys/net/ipv4/tcp_slow_start_after_idle":    "1",
		"proc/sys/net/ipv4/tcp_no_metrics_save":          "0",
		"proc/sys/net/core/somaxconn":                    "4096",
		"proc/sys/net/ipv4/tcp_max_syn_backlog":          "2048",
		"proc/sys/net/ipv4/tcp_mtu_probing":              "1",
		"proc/sys/net/core/optmem_max":                   "20480",
		"proc/sys/kernel/random/boot_id":                 "c0ffee",
		"proc/meminfo":                                   "MemTotal:  1000 kB\nMemFree: 3 kB",
		"sys/module/tcp_cubic/parameters/hystart_detect": "3",
		"sys/class/net/ens8/mtu":                         "8896",
		"sys/class/net/ens9/mtu":                         "8896",
		"sys/devices/system/node/node0/meminfo":          "Node 0 MemTotal:   500 kB",
		"sys/devices/system/node/node1/meminfo":          "Node 1 MemTotal:   500 kB",
		"dev/vfio/0":                                     "", "dev/vfio/1": "", "dev/vfio/2": "", "dev/vfio/3": "", "dev/vfio/vfio": "",
		"state/uid": "1000", "state/feature": "off", "state/routes": strings.TrimSuffix(oneRoute, "\n"), "state/calls": "",
	} {
		h.write(name, value)
	}
	for name, text := range standIns {
		h.write("bin/"+name, text)
		testkit.Must(t, os.Chmod(filepath.Join(h.root, "bin", name), 0o755))
	}
	for _, tool := range []string{"bash", "cat", "tee", "timeout", "env", "mv", "cp", "true", "head", "gzip", "flock"} {
		path, err := exec.LookPath(tool)
		testkit.Must(t, err)
		testkit.Must(t, os.Symlink(path, filepath.Join(h.root, "bin", tool)))
	}
	testkit.Must(t, os.Truncate(filepath.Join(h.root, "state/calls"), 0))
	return h
}

func (h *host) write(name, value string) {
	h.t.Helper()
	full := filepath.Join(h.root, name)
	testkit.Must(h.t, os.MkdirAll(filepath.Dir(full), 0o755))
	testkit.Must(h.t, os.WriteFile(full, []byte(value+"\n"), 0o644))
}

func (h *host) read(name string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.root, name))
	testkit.Must(h.t, err)
	return strings.TrimSpace(string(text))
}

func (h *host) remove(names ...string) {
	for _, name := range names {
		testkit.Must(h.t, os.RemoveAll(filepath.Join(h.root, name)))
	}
}

func (*host) Name() string               { return "s0w0" }
func (*host) ClockOffset() time.Duration { return 0 }

func (h *host) Run(ctx context.Context, c remote.Cmd) (remote.Status, error) {
	c = c.Whole()
	cmd := exec.CommandContext(ctx, testkit.LoginShell(h.root), "-c", "echo noise of a login script; "+c.Line)
	cmd.Env = []string{"PATH=" + filepath.Join(h.root, "bin"), "HOME=" + h.root, "MULTIHOST_KEEP=STATE", "STATE=" + filepath.Join(h.root, "state"),
		"MULTIHOST_ROOT_PROC=" + h.root, "MULTIHOST_ROOT_SYS=" + h.root, "MULTIHOST_ROOT_DEV=" + h.root, "MULTIHOST_ROOT_TMP=" + h.root}
	return runCmd(cmd, c)
}

func runCmd(cmd *exec.Cmd, c remote.Cmd) (remote.Status, error) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return remote.Status{Code: exit.ExitCode()}, nil
	}
	return remote.Status{}, err
}

func run(t *testing.T, r remote.Runner, o Options) Report {
	t.Helper()
	rep, err := Run(t.Context(), r, o)
	testkit.Must(t, err)
	return rep
}

// outcomes returns a line for each result that is not ok.
func outcomes(rep Report) (all []string) {
	for _, r := range rep.Results {
		if r.Outcome == OK {
			continue
		}
		line := fmt.Sprintf("%s %s: %s -> %s", r.Setting, r.Outcome, r.Before, r.After)
		if r.Reason != "" {
			line += " (" + r.Reason + ")"
		}
		all = append(all, line)
	}
	return all
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

var fresh = []string{
	"tcp_slow_start_after_idle changed: 1 -> 0",
	"tcp_no_metrics_save changed: 0 -> 1",
	"rto_min changed: unset -> 5ms",
	"hystart_detect changed: 3 -> 2",
	"tcp_max_syn_backlog changed: 2048 -> 4096",
	"tcp_mtu_probing changed: 1 -> 0",
	"optmem_max changed: 20480 -> 131072",
	"tx-nocache-copy changed: off -> on",
}

func TestFreshHostGetsEverySetting(t *testing.T) {
	t.Parallel()
	testkit.EachLogin(t, func(t *testing.T, login testkit.HostileLogin) {
		h := newHost(t)
		login.At(t, h.root)
		o := Options{ExpectMTU: 8896, ExpectChips: 4}
		rep := run(t, h, o)
		same(t, "outcomes", outcomes(rep), fresh)
		same(t, "routes", h.read("state/routes"), "default via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.5 metric 100 rto_min lock 5ms")
		same(t, "severity", rep.Severity(true), Fine)
		results := rep.Results
		rep.Results = nil
		same(t, "worker", rep, Report{NUMANodes: 2, Node0Bytes: 500 << 10, TotalBytes: 1000 << 10, HasNumactl: true, Devices: 4, BootID: "c0ffee"})
		same(t, "number of results", len(results), len(Settings()))
	})
}

func TestSecondApplyChangesNothingAndNeedsNoSudo(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	run(t, h, Options{})
	h.write("state/calls", "")
	h.write("state/sudo-refuses", "")
	same(t, "outcomes", outcomes(run(t, h, Options{})), []string(nil))
	same(t, "calls", h.read("state/calls"), "")
}

func TestCheckOnlyReads(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rep := run(t, h, Options{Mode: Check, Install: true})
	var want []string
	for _, line := range fresh {
		name, values, _ := strings.Cut(line, " changed: ")
		before, _, _ := strings.Cut(values, " -> ")
		want = append(want, fmt.Sprintf("%s failed: %s -> %s (not as wanted)", name, before, before))
	}
	same(t, "outcomes", outcomes(rep), want)
	same(t, "calls", h.read("state/calls"), "")
	same(t, "severity", rep.Severity(false), Warning)
	same(t, "severity with require", rep.Severity(true), Hard)
}

// Each story changes a new host and names the outcomes that are then not ok.
func TestStories(t *testing.T) {
	t.Parallel()
	twoRoutes := oneRoute + "default via 10.129.0.1 dev ens9 proto dhcp src 10.129.0.5 metric 200"
	for name, c := range map[string]struct {
		prepare func(*host)
		options Options
		differs map[string]string // outcomes by setting; "" means ok
		routes  string
		hard    bool
	}{
		"root needs no sudo": {
			prepare: func(h *host) { h.write("state/uid", "0"); h.remove("bin/sudo") },
			options: Options{Platform: GKE},
		},
		"no sudo rights": {
			prepare: func(h *host) { h.write("state/sudo-refuses", "") },
			differs: map[string]string{
				"tcp_slow_start_after_idle": "failed: 1 -> 1 (no root rights: sudo: a password is required)",
				"tcp_no_metrics_save":       "failed: 0 -> 0 (no root rights: sudo: a password is required)",
				"rto_min":                   "failed: unset -> unset (no root rights: sudo: a password is required)",
				"hystart_detect":            "failed: 3 -> 3 (no root rights: sudo: a password is required)",
				"tcp_max_syn_backlog":       "failed: 2048 -> 2048 (no root rights: sudo: a password is required)",
				"tcp_mtu_probing":           "failed: 1 -> 1 (no root rights: sudo: a password is required)",
				"optmem_max":                "failed: 20480 -> 20480 (no root rights: sudo: a password is required)",
				"tx-nocache-copy":           "failed: off -> off (no root rights: sudo: a password is required)",
			},
			routes: strings.TrimSpace(oneRoute),
		},
		"two default routes": {
			prepare: func(h *host) { h.write("state/routes", twoRoutes) },
			differs: map[string]string{
				"rto_min":         "changed: ens8: unset, ens9: unset -> ens8: 5ms, ens9: 5ms",
				"tx-nocache-copy": "changed: ens8: off, ens9: off -> ens8: on, ens9: on",
			},
			routes: "default via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.5 metric 100 rto_min lock 5ms\n" +
				"default via 10.129.0.1 dev ens9 proto dhcp src 10.129.0.5 metric 200 rto_min lock 5ms",
		},
		"route with attributes and states": {
			prepare: func(h *host) {
				h.write("state/routes", "default via 10.0.0.1 dev ens8 proto static metric 7 onlink linkdown mtu lock 1400 rto_min lock 200ms")
			},
			differs: map[string]string{"rto_min": "changed: 200ms -> 5ms"},
			routes:  "default via 10.0.0.1 dev ens8 proto static metric 7 onlink mtu lock 1400 rto_min lock 5ms",
		},
		"two default routes with one metric": {
			prepare: func(h *host) {
				h.write("state/routes", "default via 10.0.0.1 dev ens8 src 10.0.0.5\ndefault via 10.0.1.1 dev ens9 src 10.0.1.5")
			},
			differs: map[string]string{
				"rto_min":         "changed: ens8: unset, ens9: unset -> ens8: 5ms, ens9: 5ms",
				"tx-nocache-copy": "changed: ens8: off, ens9: off -> ens8: on, ens9: on",
			},
			routes: "default via 10.0.0.1 dev ens8 src 10.0.0.5 rto_min lock 5ms\ndefault via 10.0.1.1 dev ens9 src 10.0.1.5 rto_min lock 5ms",
		},
		"a lease that was renewed beside a changed route": {
			prepare: func(h *host) {
				h.write("state/routes", "default via 10.0.0.1 dev ens8 proto dhcp metric 100 rto_min lock 5ms\ndefault via 10.0.0.1 dev ens8 proto dhcp metric 100")
			},
			differs: map[string]string{"rto_min": "changed: ens8: 5ms, ens8: unset -> 5ms"},
			routes:  "default via 10.0.0.1 dev ens8 proto dhcp metric 100 rto_min lock 5ms",
		},
		"default routes that the kernel cannot tell apart": {
			prepare: func(h *host) {
				h.write("state/routes", "default via 10.0.0.1 dev ens8 mtu 1400 rto_min lock 5ms\ndefault via 10.0.0.1 dev ens8")
			},
			differs: map[string]string{"rto_min": "failed: ens8: 5ms, ens8: unset -> ens8: 5ms, ens8: unset " +
				"(the kernel cannot tell it from the default route via 10.0.0.1 dev ens8 mtu 1400)"},
			routes: "default via 10.0.0.1 dev ens8 mtu 1400 rto_min lock 5ms\ndefault via 10.0.0.1 dev ens8",
		},
		"route change refused": {
			prepare: func(h *host) { h.write("state/ip-fails", "RTNETLINK answers: Operation not permitted") },
			differs: map[string]string{"rto_min": "failed: unset -> unset (Operation not permitted)"},
			routes:  strings.TrimSpace(oneRoute),
		},
		"route change loses the route, which is put back": {
			prepare: func(h *host) { h.write("state/ip-loses", "") },
			differs: map[string]string{"rto_min": "failed: unset -> unset (ens8: changed, but reads back otherwise)"},
			routes:  strings.TrimSpace(oneRoute),
		},
		"route change loses the route for good": {
			prepare: func(h *host) { h.write("state/ip-loses", ""); h.write("state/ip-no-add", "") },
			differs: map[string]string{
				"rto_min":         "failed: unset ->  (a default route was lost and could not be put back: Network is unreachable)",
				"tx-nocache-copy": "skipped:  ->  (no default route names an interface)",
				"mtu":             "skipped:  ->  (no default route names an interface)",
			},
			hard: true,
		},
		"no default route": {
			prepare: func(h *host) { h.write("state/routes", "") },
			differs: map[string]string{
				"rto_min":         "failed:  ->  (no IPv4 default route)",
				"tx-nocache-copy": "skipped:  ->  (no default route names an interface)",
				"mtu":             "skipped:  ->  (no default route names an interface)",
			},
		},
		"no tcp_cubic": {
			prepare: func(h *host) { h.remove("sys/module/tcp_cubic") },
			differs: map[string]string{"hystart_detect": "skipped:  ->  (tcp_cubic is not loaded)"},
		},
		"setting that the kernel lacks": {
			prepare: func(h *host) { h.remove("proc/sys/net/core/optmem_max") },
			differs: map[string]string{"optmem_max": "skipped:  ->  (this kernel has no net.core.optmem_max)"},
		},
		"feature fixed by the driver": {
			prepare: func(h *host) { h.write("state/feature", "off [fixed]") },
			differs: map[string]string{"tx-nocache-copy": "skipped: off -> off (fixed to off by the driver of ens8)"},
		},
		"no ethtool, no numactl": {
			prepare: func(h *host) { h.remove("bin/ethtool", "bin/numactl") },
			differs: map[string]string{
				"tx-nocache-copy": "skipped:  ->  (ethtool is not installed (package ethtool))",
				"numactl":         "skipped: missing -> missing (numactl is not installed (package numactl))",
			},
		},
		"no ethtool, no numactl, installed": {
			prepare: func(h *host) {
				h.remove("bin/ethtool", "bin/numactl")
				for _, name := range []string{"ethtool", "numactl"} {
					h.write("state/repository/"+name, standIns[name])
					testkit.Must(h.t, os.Chmod(filepath.Join(h.root, "state/repository", name), 0o755))
				}
			},
			options: Options{Install: true},
			differs: map[string]string{"numactl": "changed: missing -> installed"},
		},
		"install while the package lock is held": {
			prepare: func(h *host) {
				h.remove("bin/numactl")
				h.write("state/apt-fails", "Waiting for cache lock: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 912 (unattended-upgr)...\n"+
					"E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 912 (unattended-upgr)")
			},
			options: Options{Install: true},
			differs: map[string]string{"numactl": "failed: missing -> missing (the dpkg lock is held by process 912 (unattended-upgr))"},
		},
		"network with mtu 1460": {
			prepare: func(h *host) { h.write("sys/class/net/ens8/mtu", "1460") },
			options: Options{ExpectMTU: 8896},
			differs: map[string]string{"mtu": "failed: 1460 -> 1460 (ens8 has mtu 1460, its network 8896)"},
		},
		"one slice takes the mtu that its network has": {
			prepare: func(h *host) { h.write("sys/class/net/ens8/mtu", "1460") },
			options: Options{ExpectMTU: 1460},
		},
		"two slices want 8896 on a network with less": {
			prepare: func(h *host) { h.write("sys/class/net/ens8/mtu", "1460") },
			options: Options{ExpectMTU: 1460, BetweenSlices: 8896},
			differs: map[string]string{"mtu": "failed: 1460 -> 1460 (ens8 has mtu 1460; between slices 8896 is wanted)"},
		},
		"two slices want 8896 on a network that nobody may read": {
			prepare: func(h *host) { h.write("sys/class/net/ens8/mtu", "1460") },
			options: Options{BetweenSlices: 8896},
			differs: map[string]string{"mtu": "failed: 1460 -> 1460 (ens8 has mtu 1460; between slices 8896 is wanted)"},
		},
		"two slices on a network with 8896": {options: Options{ExpectMTU: 8896, BetweenSlices: 8896}},
		"an interface with less than the network of two slices": {
			prepare: func(h *host) { h.write("sys/class/net/ens8/mtu", "1460") },
			options: Options{ExpectMTU: 8896, BetweenSlices: 8896},
			differs: map[string]string{"mtu": "failed: 1460 -> 1460 (ens8 has mtu 1460, its network 8896)"},
		},
		"no devices": {
			prepare: func(h *host) { h.remove("dev/vfio/0", "dev/vfio/1", "dev/vfio/2", "dev/vfio/3") },
			differs: map[string]string{"tpu_devices": "failed: 0 -> 0 (no TPU device below /dev/accel* or /dev/vfio/*)"},
			hard:    true,
		},
		"a device is missing": {
			prepare: func(h *host) { h.remove("dev/vfio/2") },
			options: Options{ExpectChips: 4},
			differs: map[string]string{"tpu_devices": "failed: 3 -> 3 (3 TPU devices, 4 expected)"},
			hard:    true,
		},
		"no TPU worker": {
			prepare: func(h *host) { h.remove("dev/vfio") },
			options: Options{ExpectChips: NoDevices},
			differs: map[string]string{"tpu_devices": "skipped: 0 -> 0 (not a TPU worker)"},
		},
		"accel devices": {
			prepare: func(h *host) { h.remove("dev/vfio"); h.write("dev/accel0", ""); h.write("dev/accel1", "") },
			options: Options{ExpectChips: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			if c.prepare != nil {
				c.prepare(h)
			}
			rep := run(t, h, c.options)
			want := map[string]string{}
			for _, line := range fresh {
				name, rest, _ := strings.Cut(line, " ")
				want[name] = rest
			}
			for name, line := range c.differs {
				want[name] = line
			}
			got := map[string]string{}
			for _, line := range outcomes(rep) {
				name, rest, _ := strings.Cut(line, " ")
				got[name] = rest
			}
			same(t, "outcomes", got, want)
			if c.routes != "" {
				same(t, "routes", strings.ReplaceAll(h.read("state/routes"), " \n", "\n"), c.routes)
			}
			same(t, "hard", rep.Severity(false) == Hard, c.hard)
		})
	}
}

type answer string

func (answer) Name() string               { return "s0w0" }
func (answer) ClockOffset() time.Duration { return 0 }

func (a answer) Run(_ context.Context, c remote.Cmd) (remote.Status, error) {
	_, call, _ := strings.Cut(c.Whole().Line, " multihost-preflight ")
	_, err := io.WriteString(c.Stdout, strings.ReplaceAll(string(a), "NONCE", strings.Fields(call)[2]))
	return remote.Status{Code: 3}, err
}

func TestGarbageIsAnError(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "bash: command not found\n", "NONCE ", "NONCE end", "NONCE result\nNONCE end\n",
		"NONCE info devices\t-1\nNONCE end\n", strings.Repeat("x", 3<<20)} {
		_, err := Run(t.Context(), answer(text), Options{})
		if !errors.Is(err, ErrNoReport) || !strings.Contains(err.Error(), "exit status 3") || len(err.Error()) > 500 {
			t.Errorf("answer %.40q: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	line := func(word string, fields ...string) string {
		return "NONCE " + word + " " + strings.Join(fields, "\t") + "\n"
	}
	whole := line("info", "boot_id", "x") + line("info", "numa_nodes", "2")
	for _, s := range Settings() {
		whole += line("result", s.Name, s.Want, "1", "2", "ok", "no", "")
	}
	f.Add([]byte(whole + line("end")))
	f.Add([]byte(line("result", "a", "b") + "\xff"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rep, err := parse(records(text, "NONCE"))
		if err == nil && len(rep.Results) != len(Settings()) {
			t.Errorf("a report with %d results", len(rep.Results))
		}
		rep.Severity(true)
	})
}

func records(text []byte, nonce string) []remote.Record {
	a := remote.Answer{Nonce: nonce}
	_, _ = a.Write(text) // only the beginning of a long text is used
	return a.Records()
}

func TestFold(t *testing.T) {
	t.Parallel()
	var workers []tpu.WorkerID
	var reports []Report
	for s := range 2 {
		for w := range 4 {
			rep := Report{Results: []Result{{Setting: "rto_min", Want: "5ms", Before: "unset", After: "5ms", Outcome: Changed}, {Setting: "somaxconn", Want: "4096", Before: "4096", After: "4096", Outcome: OK}}}
			if s == 1 && w == 2 {
				rep.Results[0] = Result{Setting: "rto_min", Want: "5ms", Before: "unset", After: "unset", Outcome: Failed, Reason: "Operation not permitted"}
			}
			workers, reports = append(workers, tpu.WorkerID{Slice: s, Worker: w}), append(reports, rep)
		}
	}
	same(t, "all fine", Fold(workers[:6], reports[:6]), "2/2 settings on s0w[0-3],s1w[0-1]")
	same(t, "one failed", Fold(workers, reports),
		"2/2 settings on s0w[0-3],s1w[0-1,3]; 1/2 settings on s1w2; rto_min failed on s1w2: Operation not permitted")
	refused := Report{Results: []Result{
		{Setting: "rto_min", Outcome: Failed, Reason: "no root rights: sudo: a password is required"},
		{Setting: "devices", Outcome: Failed, Reason: "no TPU device"},
		{Setting: "somaxconn", Outcome: Failed, Reason: "no root rights: sudo: a password is required"},
	}}
	same(t, "one reason for many settings", Fold(workers[:2], []Report{refused, refused}),
		"0/3 settings on s0w[0-1]; rto_min, somaxconn failed on s0w[0-1]: no root rights: sudo: a password is required; devices failed on s0w[0-1]: no TPU device")
	same(t, "table", "\n"+Table(workers, reports), `
SETTING    WANT  BEFORE  AFTER  OUTCOME  WORKERS              REASON
rto_min    5ms   unset   5ms    changed  s0w[0-3],s1w[0-1,3]
rto_min    5ms   unset   unset  failed   s1w2                 Operation not permitted
somaxconn  4096  4096    4096   ok       s[0-1]w[0-3]
`)
}

func TestNUMAWrap(t *testing.T) {
	t.Parallel()
	generation := map[string]tpu.Generation{}
	for _, g := range tpu.Generations() {
		generation[g.Name] = g
	}
	good := Report{NUMANodes: 2, HasNumactl: true, Node0Bytes: 224 << 30, TotalBytes: 448 << 30}
	one, none := good, good
	one.NUMANodes, none.HasNumactl = 1, false
	for _, c := range []struct {
		mode       NUMA
		generation string
		report     Report
		argv       string
		say        string // part of the note or of the error
		fails      bool
	}{
		{NUMAAuto, "v5p", good, "numactl --membind=0 --cpunodebind=0", "224 of 448 GiB", false},
		{"", "v4", good, "numactl --membind=0 --cpunodebind=0", "bound to NUMA node 0", false},
		{NUMAAuto, "v6e", good, "", "", false},
		{NUMAAuto, "v5p", one, "", "", false},
		{NUMAAuto, "v5p", none, "", "numactl is not installed", false},
		{NUMABind, "v5p", good, "numactl --membind=0 --cpunodebind=0", "", false},
		{NUMAPreferred, "v4", good, "numactl --preferred=0 --cpunodebind=0", "memory of node 0 first", false},
		{NUMABind, "v5p", one, "", "one NUMA node", false},
		{NUMABind, "v6e", good, "", "only v4 and v5p gain from it", true},
		{NUMAPreferred, "v5e", good, "", "v5e would only lose", true},
		{NUMABind, "v4", none, "", "numactl is not installed", true},
		{NUMAOff, "v5p", good, "", "", false},
		{"all", "v5p", good, "", "want auto, bind, preferred or off", true},
	} {
		argv, note, err := NUMAWrap(c.mode, generation[c.generation], c.report)
		if got := strings.Join(argv, " "); got != c.argv || (err != nil) != c.fails || !strings.Contains(fmt.Sprint(note, err), c.say) || c.say == "" && note != "" && c.mode != NUMABind {
			t.Errorf("%s on %s with %d nodes: %q, note %q, error %v", c.mode, c.generation, c.report.NUMANodes, got, note, err)
		}
	}
}

func TestScriptIsClean(t *testing.T) {
	testkit.OnlyInAll(t, "`make lint`")
	t.Parallel()
	shellcheck := testkit.Need(t, "shellcheck")
	script := filepath.Join(t.TempDir(), "printed.sh")
	testkit.Must(t, os.WriteFile(script, []byte(Print(Options{ExpectMTU: 8896})), 0o644))
	forPods := filepath.Join(t.TempDir(), "pods.sh")
	testkit.Must(t, os.WriteFile(forPods, []byte(Print(Options{Platform: GKE})), 0o644))
	for _, name := range []string{script, forPods} {
		if out, err := exec.Command(shellcheck, name).CombinedOutput(); err != nil {
			t.Errorf("shellcheck: %v\n%s", err, out)
		}
	}
}

// The program for a worker without runner contains its own arguments, and gives the answer
// that Run gets.
func TestKitAnswersAsRunDoes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var out bytes.Buffer
	_, err := h.Run(t.Context(), remote.Cmd{Line: "bash -s", Stdin: strings.NewReader(Kit(Options{})), Stdout: &out})
	testkit.Must(t, err)
	rep, err := parse(records(out.Bytes(), KitNonce))
	testkit.Must(t, err)
	same(t, "outcomes", outcomes(rep), fresh)
}

// The printed script does to a worker what Run does, and reports it in words.
func TestPrintedScriptDoesTheSame(t *testing.T) {
	t.Parallel()
	h, twin := newHost(t), newHost(t)
	said, status := printed(t, h, Options{})
	rep, err := Run(t.Context(), twin, Options{})
	testkit.Must(t, err)
	for _, r := range rep.Results {
		line := fmt.Sprintf("preflight: %-26s %-8s ", r.Setting, r.Outcome)
		if r.Outcome == Changed {
			line += r.After + ", was " + r.Before
		}
		if !strings.Contains(said, line) {
			t.Errorf("nothing says %q", line)
		}
	}
	if !strings.HasSuffix(said, "preflight: 12 of 12 settings are as wanted or not there\n") || status != 0 {
		t.Errorf("it ends with status %d and says\n%s", status, said)
	}
	same(t, "a second check", outcomes(mustRun(t, h, Options{Mode: Check})), outcomes(mustRun(t, twin, Options{Mode: Check})))
}

// printed runs what Print prints, with words as arguments.
func printed(t *testing.T, h *host, o Options, words ...string) (said string, status int) {
	t.Helper()
	var out bytes.Buffer
	st, err := h.Run(t.Context(), remote.Cmd{Line: "bash -s -- " + strings.Join(words, " "), Stdin: strings.NewReader(Print(o)), Stdout: &out, Stderr: &out})
	testkit.Must(t, err)
	return out.String(), st.Code
}

func mustRun(t *testing.T, h *host, o Options) Report {
	t.Helper()
	rep, err := Run(t.Context(), h, o)
	testkit.Must(t, err)
	return rep
}

// A program may follow the printed script, as in `bash preflight.sh PLATFORM=GKE && python3
// train.py`. The script's status decides whether it starts.
func TestPrintedScriptStopsOnlyWhatCannotWork(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*host)
		words  string
		status int
		say    string
	}{
		{"a setting is refused", func(h *host) { h.write("state/sudo-refuses", "") }, "PLATFORM=GCE", 0, "rto_min                    failed   is unset, wanted 5ms: no root rights"},
		{"and every one is wanted", func(h *host) { h.write("state/sudo-refuses", "") }, "PLATFORM=gce --require", 76, "failed"},
		{"no devices", func(h *host) { testkit.Must(h.t, os.RemoveAll(filepath.Join(h.root, "dev"))) }, "", 76, "no TPU device"},
		{"no devices in a pod", func(h *host) { testkit.Must(h.t, os.RemoveAll(filepath.Join(h.root, "dev"))) }, "PLATFORM=GKE", 76, "does the container ask for google.com/tpu"},
		{"no devices where none are expected", func(h *host) { testkit.Must(h.t, os.RemoveAll(filepath.Join(h.root, "dev"))) }, "TPU=no", 0, "skipped  not a TPU worker"},
		{"another word for TPU", func(*host) {}, "TPU=none", 64, "unknown word TPU=none"},
		{"none expected, but a setting is refused", func(h *host) { h.write("state/sudo-refuses", "") }, "TPU=NO --require", 76, "rto_min                    failed"},
		{"devices wanted in any case", func(h *host) { testkit.Must(h.t, os.RemoveAll(filepath.Join(h.root, "dev"))) }, "TPU=yes", 76, "on a host without TPU: TPU=no"},
		{"a pod that is not root", func(*host) {}, "PLATFORM=GKE", 0, "run the container as root (securityContext: runAsUser: 0) with NET_ADMIN"},
		{"only looked at", func(*host) {}, "check", 0, "not as wanted"},
		{"another platform", func(*host) {}, "PLATFORM=AWS", 64, "unknown word PLATFORM=AWS"},
		{"the node's own interface", func(h *host) { h.write("sys/class/net/ens8/device/vendor", "0x1ae0") }, "PLATFORM=GKE", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			if strings.Contains(c.name, "not root") {
				testkit.Must(t, os.Remove(filepath.Join(h.root, "bin/sudo")))
			}
			c.change(h)
			said, status := printed(t, h, Options{}, c.words)
			if status != c.status || !strings.Contains(said, c.say) {
				t.Errorf("it ends with %d, want %d, and says\n%s", status, c.status, said)
			}
			pod := strings.Contains(said, "this pod has a network of its own")
			if want := strings.Contains(c.words, "GKE") && c.say != ""; pod != want {
				t.Errorf("it says of a pod's own network: %v, want %v", pod, want)
			}
		})
	}
}
