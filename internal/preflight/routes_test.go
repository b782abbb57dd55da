//go:build linux

package preflight

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"multihost/internal/testkit"
)

// peers is a script. It makes three interfaces in a new network namespace, gives them the
// default routes of $ROUTES, and runs $SCRIPT. Meanwhile another process asks the kernel
// without a pause which route a packet takes. It asks for each of the first two interfaces, and
// for any. peers kills $SCRIPT after the ip command number $KILL that changes a route. 0 kills
// nothing. Then it prints the routes, runs the script to its end, and prints the routes again.
const peers = `set -e
ip link set lo up
for i in 8 9 10; do
	ip link add ens$i type veth peer name p$i
	ip addr add 10.0.$i.5/24 dev ens$i
	ip link set ens$i up && ip link set p$i up
done
mkdir -p "$DIR/bin" && mkfifo "$DIR/asked"
: >"$DIR/steps"
cat >"$DIR/bin/ip" <<'END'
#!/bin/bash
real() { exec env PATH="${PATH#*:}" ip "$@"; }
case " $* " in
*" show "*) real "$@" ;;
esac
echo "$*" >>"$DIR/steps"
[[ $KILL == 0 || $(wc -l <"$DIR/steps") != "$KILL" ]] && real "$@"
(real "$@")
kill -9 -- "-$VICTIM"
exit 1
END
chmod +x "$DIR/bin/ip"
run() {
	: >"$DIR/steps"
	KILL=$1 PATH="$DIR/bin:$PATH" setsid --wait bash -c 'export VICTIM=$$; exec bash "$SCRIPT" NONCE apply gce no rto_min route rto_min 5ms' >"$DIR/said" 2>&1
}
routes() { ip -4 -o route show default | sed 's/ *$//'; }
while IFS= read -r route; do
	ip -batch - <<<"route append $route"
done <<<"$ROUTES"
{
	echo $BASHPID >"$DIR/asker"
	exec yes 'route get 192.0.2.1
route get 192.0.2.1 oif ens8
route get 192.0.2.1 oif ens9'
} | ip -force -batch - 2>&1 | awk -v asked="$DIR/asked" 'NR == 1 {print >asked; close(asked)} !/ via | cache /' >"$DIR/lost" &
read -r <"$DIR/asked"
[[ $KILL == 0 ]] || run "$KILL" || true
echo "cut off: $(wc -l <"$DIR/steps")"
routes
run 0
kill "$(<"$DIR/asker")"
wait
echo "whole:"
routes
echo "said:"
grep rto_min "$DIR/said"
echo "lost:"
sort "$DIR/lost" | uniq -c | head -3
`

// changePeers runs peers and returns the parts of its output.
func changePeers(t *testing.T, routes string, kill int) (cut, whole, said, lost string) {
	t.Helper()
	testkit.NeedRoot(t)
	unshare := testkit.Need(t, "unshare", "ip", "setsid")
	dir := t.TempDir()
	file := filepath.Join(dir, "preflight.sh")
	testkit.Must(t, os.WriteFile(file, []byte(program.Text()), 0o644))
	cmd := exec.CommandContext(t.Context(), unshare, "--net", "bash", "-c", peers)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "DIR=" + dir, "SCRIPT=" + file,
		"ROUTES=" + routes, "KILL=" + strconv.Itoa(kill)}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, out, stderr.String())
	}
	cut, rest, _ := strings.Cut(string(out), "whole:\n")
	whole, rest, _ = strings.Cut(rest, "said:\n")
	said, lost, _ = strings.Cut(rest, "lost:\n")
	return cut, whole, said, lost
}

// Default routes of one metric all get rto_min and keep their order and attributes. Also if the
// script is killed, packets have a route at every moment, and the next run of the script
// completes the work. make test tries only the first two rows and kills the script only after
// the first step.
func TestDefaultRoutesOfOneMetric(t *testing.T) {
	t.Parallel()
	const (
		first  = "default via 10.0.8.1 dev ens8 proto dhcp src 10.0.8.5 metric 100"
		second = "default via 10.0.9.1 dev ens9 proto dhcp src 10.0.9.5 metric 100"
		third  = "default via 10.7.7.1 dev ens10 metric 100 onlink mtu lock 1400"
		done   = " rto_min lock 5ms"
	)
	for i, c := range []struct {
		name   string
		routes []string
		steps  int // number of steps; the test kills the script once after each
		whole  []string
	}{
		{"two", []string{first, second}, 3, []string{first + done, second + done}},
		{
			"three, one with attributes", []string{first, second, third}, 5,
			[]string{first + done, second + done, strings.Replace(third, "1400", "1400"+done, 1)},
		},
		{"one done already", []string{first + " rto_min 5ms", second}, 0, []string{first + done, second + done}},
		{"another value", []string{first + " rto_min 300ms", second + " rto_min 300ms"}, 0, []string{first + done, second + done}},
		{"cut off before", []string{first + " rto_min 5ms", second, second + " rto_min 5ms"}, 1, []string{first + done, second + done}},
		{"the first is there twice", []string{first, second, first + " rto_min 5ms"}, 0, []string{second + done, first + done}},
		{"a renewed lease", []string{first + " rto_min 5ms", second + " rto_min 5ms", second}, 3, []string{first + done, second + done}},
		{
			"a route without proto and src", []string{first, second, "default via 10.0.9.1 dev ens9 metric 100"}, 0,
			[]string{first + done, second + done, "default via 10.0.9.1 dev ens9 metric 100" + done},
		},
		{
			"next hops", []string{first, second, "default metric 100 nexthop via 10.0.9.1 dev ens9 weight 1 nexthop via 10.0.10.1 dev ens10 weight 2"}, 0,
			[]string{first + done, second + done, "default metric 100" + done + " \\\tnexthop via 10.0.9.1 dev ens9 weight 1 \\\tnexthop via 10.0.10.1 dev ens10 weight 2"},
		},
	} {
		if i > 1 && !testkit.All(t) {
			break
		}
		t.Run(c.name, func(t *testing.T) {
			for kill := range c.steps + 1 {
				if kill > 1 && !testkit.All(t) {
					break
				}
				cut, whole, said, lost := changePeers(t, strings.Join(c.routes, "\n"), kill)
				where := "killed after step " + strconv.Itoa(kill)
				head, cut, _ := strings.Cut(cut, "\n")
				if head != "cut off: "+strconv.Itoa(kill) {
					t.Errorf("%s: %s", where, head)
				}
				for _, r := range c.whole {
					route, _, _ := strings.Cut(r, " \\")
					if !strings.Contains(cut, strings.Replace(route, done, "", 1)) && !strings.Contains(cut, route) {
						t.Errorf("%s: %s is gone:\n%s", where, r, cut)
					}
				}
				same(t, where+": routes", whole, strings.Join(c.whole, "\n")+"\n")
				if lost != "" {
					t.Errorf("%s: without a way for a while: %s", where, lost)
				}
				if strings.Contains(said, "failed") {
					t.Errorf("%s: %s", where, said)
				}
			}
		})
	}
}

// A route that leads nowhere keeps its place among the others.
func TestUnreachableDefaultRouteOfOneMetricStays(t *testing.T) {
	t.Parallel()
	const way = "default via 10.0.8.1 dev ens8 metric 100"
	const both = "default via 10.0.9.1 dev ens9 metric 50"
	_, whole, said, _ := changePeers(t, both+"\nunreachable default metric 100\n"+way, 0)
	same(t, "routes", whole, both+" rto_min lock 5ms\nunreachable default metric 100\n"+way+" rto_min lock 5ms\n")
	if !strings.Contains(said, "changed") {
		t.Error(said)
	}
}
