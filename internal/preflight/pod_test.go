//go:build linux

package preflight

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"multihost/internal/testkit"
)

// pod is a script that starts a process as a container runtime does: in namespaces of its own
// with an interface of a pod network, with read-only /proc/sys and /sys, and with only the
// given capabilities.
const pod = `set -e
mount --make-rprivate /
ip link set lo up
ip link add eth0 type veth peer name p0
ip addr add 10.4.0.5/24 dev eth0
ip link set eth0 up && ip link set p0 up
ip route add default via 10.4.0.1 dev eth0
sysctl -q -w net.ipv4.tcp_no_metrics_save=0
mount -t sysfs -o ro sysfs /sys
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys
exec setpriv --inh-caps=-all --bounding-set="$CAPABILITIES" bash "$@"`

// inPod runs the printed script as the first process of a container. The container has some of
// a runtime's default capabilities and those in more. said is the output of the script.
func inPod(t *testing.T, more string, words ...string) (said string, status int) {
	t.Helper()
	testkit.NeedRoot(t)
	unshare := testkit.Need(t, "unshare", "setpriv", "ip", "ethtool", "sysctl")
	dir := t.TempDir()
	script := filepath.Join(dir, "preflight.sh")
	testkit.Must(t, os.WriteFile(script, []byte(Print(Options{Platform: GKE})), 0o644))
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "dev", "vfio"), 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "dev", "vfio", "0"), nil, 0o644))
	args := append([]string{"--net", "--mount", "bash", "-c", pod, "pod", script}, words...)
	cmd := exec.CommandContext(t.Context(), unshare, args...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "MULTIHOST_ROOT_DEV=" + dir,
		"CAPABILITIES=-all,+chown,+dac_override,+fowner,+kill,+setuid,+setgid,+net_bind_service,+net_raw" + more,
	}
	out, err := cmd.CombinedOutput()
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// If the container lacks NET_ADMIN or cannot write below /proc/sys and /sys, the script says
// this and what to add to the pod's specification. It makes all other settings.
func TestPodIsToldWhichRightsItLacks(t *testing.T) {
	const (
		route   = "preflight: rto_min                    "
		metrics = "preflight: tcp_no_metrics_save        failed   is 0, wanted 1: "
		closed  = "Read-only file system (a container may write there only with securityContext: privileged: true)"
	)
	for _, c := range []struct {
		name, more string
		words      []string
		status     int
		say, not   []string
	}{
		{"ordinary", "", []string{"PLATFORM=GKE"}, 0, []string{
			"this container lacks the capability NET_ADMIN", "add it with securityContext: capabilities: {add: [NET_ADMIN]}",
			"this pod has a network of its own (no hostNetwork: true)",
			route + "failed   is unset, wanted 5ms: Operation not permitted (the container lacks NET_ADMIN)",
			metrics, closed,
		}, []string{"changed"}},
		{"with NET_ADMIN", ",+net_admin", []string{"PLATFORM=GKE"}, 0,
			[]string{route + "changed  5ms, was unset", "tx-nocache-copy            changed  on, was off", metrics, closed},
			[]string{"lacks"}},
		{"every setting wanted", "", []string{"PLATFORM=GKE", "--require"}, 76, []string{route + "failed"}, []string{"changed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			said, status := inPod(t, c.more, c.words...)
			if status != c.status {
				t.Errorf("it ends with %d, want %d", status, c.status)
			}
			for _, text := range c.say {
				if !strings.Contains(said, text) {
					t.Errorf("nothing says %q", text)
				}
			}
			for _, text := range c.not {
				if strings.Contains(said, text) {
					t.Errorf("it says %q", text)
				}
			}
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}
