package doctor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

func TestQuotasAreToldApartByTheirIDs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ kind, id, tier string }{
		{"v4-16", "TPUV4sPodPerProjectPerZoneForTPUAPI", "on demand"},
		{"v4-8", "TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI", "spot"},
		{"v4-8", "TPUV5PPerProjectPerZoneForTPUAPI", ""},
		{"v5p-8", "TPUV5PPerProjectPerZoneForTPUAPI", "on demand"},
		{"v5p-8", "TPUV5sLitepodPerProjectPerZoneForTPUAPI", ""},
		{"v5litepod-16", "TPUV5sLitepodPerProjectPerZoneForTPUAPI", "on demand"},
		{"v5litepod-16", "TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI", "spot"},
		{"v5litepod-16", "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI", ""},
		{"v5litepod-4", "TPUV5sPreemptibleLitepodServingPerProjectPerZoneForTPUAPI", "spot serving"},
		{"v6e-16", "TPUV6EReservedPerProjectPerZoneForTPUAPI", "reserved"},
		{"v2-8", "TPUV2sPerProjectPerZoneForTPUAPI", "on demand"},
		{"v2-8", "TPUV2sPodPerProjectPerZoneForTPUAPI", ""},
		{"v2-32", "TPUV2sPreemptiblePodPerProjectPerZoneForTPUAPI", "spot"},
		{"v2-32", "NodeCreateRequestsPerMinutePerProject", ""},
	} {
		kind, err := tpu.ParseType(tt.kind)
		testkit.Must(t, err)
		if tier, ok := quotaFor(tt.id, kind); tier != tt.tier || ok != (tt.tier != "") {
			t.Errorf("%s for %s: %q, %v, want %q", tt.id, tt.kind, tier, ok, tt.tier)
		}
	}
}

// A quota of Compute Engine is for one generation, or has a limit for each of several
// generations.
func TestQuotasOfComputeEngine(t *testing.T) {
	t.Parallel()
	limit := func(family string, value int64) gcp.QuotaLimit {
		l := gcp.QuotaLimit{Dimensions: map[string]string{"region": "r"}, Value: value}
		if family != "" {
			l.Dimensions["tpu_family"] = family
		}
		return l
	}
	families := gcp.QuotaInfo{ID: "TPUS-PER-TPU-FAMILY-per-project-region", Limits: []gcp.QuotaLimit{limit("CT6E", 8), limit("TPU7X", 16)}}
	own := func(id string) gcp.QuotaInfo { return gcp.QuotaInfo{ID: id, Limits: []gcp.QuotaLimit{limit("", 4)}} }
	spot := own("PREEMPTIBLE-TPU-V6E-per-project-region")
	unset := gcp.QuotaInfo{ID: spot.ID}
	for _, tt := range []struct {
		kind   string
		quotas []gcp.QuotaInfo
		want   string
	}{
		{"v6e-16", []gcp.QuotaInfo{families, spot}, "on demand 8 region=r,tpu_family=CT6E; spot or flex-start 4 region=r"},
		{"v6e-16", []gcp.QuotaInfo{families}, "on demand 8 region=r,tpu_family=CT6E; flex-start 8 region=r,tpu_family=CT6E"},
		{"v6e-16", []gcp.QuotaInfo{families, unset}, "on demand 8 region=r,tpu_family=CT6E; spot or flex-start unset 1536 region=r"},
		{"tpu7x-16", []gcp.QuotaInfo{families, spot}, "on demand 16 region=r,tpu_family=TPU7X; flex-start 16 region=r,tpu_family=TPU7X"},
		{"v5p-16", []gcp.QuotaInfo{families}, "on demand unset 0 region=r,tpu_family=CT5P; flex-start unset 0 region=r,tpu_family=CT5P"},
		{"v5p-16", []gcp.QuotaInfo{own("TPU-V5P-per-project-region"), own("PREEMPTIBLE-TPU-V5P-per-project-region")}, "on demand 4 region=r; spot or flex-start 4 region=r"},
		{"v5p-16", []gcp.QuotaInfo{{ID: "TPU-V5P-per-project-zone"}}, ""},
		{"v4-16", []gcp.QuotaInfo{families}, ""},
		{"v6e-16", []gcp.QuotaInfo{own("TPU-V5P-per-project-region"), own("CPUS-per-project-region")}, ""},
	} {
		kind, err := tpu.ParseType(tt.kind)
		testkit.Must(t, err)
		var got []string
		for _, r := range computeRows(tt.quotas, kind.Generation, "r-a") {
			text := r.tier
			if r.unset {
				text += " unset"
			}
			got = append(got, fmt.Sprintf("%s %d %s", text, r.limit, r.where))
		}
		if strings.Join(got, "; ") != tt.want {
			t.Errorf("%s: %q, want %q", tt.kind, got, tt.want)
		}
	}
}

// If doctor does not know a quota for certain, the finding is a warning.
func TestQuotasAreJudged(t *testing.T) {
	t.Parallel()
	row := func(tier, uses string, limit int64, unset bool) quotaRow {
		return quotaRow{id: "ID", tier: tier, uses: uses, where: "region=r", limit: limit, unset: unset}
	}
	for _, tt := range []struct {
		rows []quotaRow
		want string
	}{
		{[]quotaRow{row("on demand", "on demand", 16, false)}, "ok W; p allows, in chips: on demand 16"},
		{[]quotaRow{row("on demand", "on demand", 16, false), row("spot or flex-start", "spot", 8, false)}, "ok W; p allows, in chips: on demand 16, spot or flex-start 8 (4 held)"},
		{[]quotaRow{row("on demand", "on demand", 8, false), row("spot or flex-start", "spot", 16, false)}, "error W; p allows, in chips: on demand 8, spot or flex-start 16 (4 held)"},
		{[]quotaRow{row("on demand", "on demand", 8, false), row("spot or flex-start", "spot", 1536, true)},
			"warning W; p allows, in chips: on demand 8, spot or flex-start not set, which counts as 1536 by reports of users (4 held); enough for spot or flex-start"},
		{[]quotaRow{row("on demand", "on demand", 0, true)}, "warning W; p allows, in chips: on demand not set, which counts as 0 by reports of users"},
	} {
		e := projectChecks{&examination{Options: Options{Project: Setting{Value: "p"}, Provider: onCompute()}}}
		e.judgeQuota("W", "chips", 16, tt.rows, map[string]int64{"spot": 4}, nil)
		if f := e.findings[0]; string(f.Level)+" "+f.Text != tt.want {
			t.Errorf("got %s %s, want %s", f.Level, f.Text, tt.want)
		}
	}
}

// Doctor prints the command that grants the role.
func TestEveryPermissionHasARole(t *testing.T) {
	t.Parallel()
	for _, way := range []overssh.Way{overssh.Auto, overssh.IAP} {
		for _, p := range []provision.Provider{nil, onCompute()} {
			for _, p := range (projectChecks{&examination{Options: Options{Way: way, Provider: p, Reservation: "r"}}}).permissions() {
				if gcp.RoleFor(p.name) == "" {
					t.Errorf("no role has %s", p.name)
				}
			}
		}
	}
}

// Each provider needs permissions of its own. A permission has the level of the command
// that needs it most, and names all commands that need it.
func TestPermissionsAreThoseOfTheProviders(t *testing.T) {
	t.Parallel()
	level := func(name string, p provision.Provider, slices ...tpu.Slice) string {
		e := projectChecks{&examination{Options: Options{Provider: p}, sel: tpu.Selection{Slices: slices}}}
		for _, p := range e.permissions() {
			if p.name == name {
				return string(p.level) + ": " + strings.Join(p.uses, "; ")
			}
		}
		return ""
	}
	compute := onCompute()
	for _, tt := range []struct{ name, tpu, gce string }{
		{"tpu.nodes.list", "error: every command", "warning: finding slices of the Cloud TPU API"},
		{"tpu.nodes.create", "warning: qr create and job", ""},
		{"compute.instances.list", "warning: network update, network delete and gc", "error: every command; network update, network delete and gc"},
		{"compute.resourcePolicies.use", "", "warning: slices create and job"},
		{"compute.instances.getGuestAttributes", "", "error: the order of the workers, and their host keys"},
		{"compute.zoneOperations.get", "", "error: putting the SSH key into slices; slices create and job"},
		{"compute.networks.create", "warning: network create", "warning: network create"},
		{"compute.reservations.get", "", ""},
	} {
		if got := level(tt.name, nil); got != tt.tpu {
			t.Errorf("%s of the Cloud TPU API: %q, want %q", tt.name, got, tt.tpu)
		}
		if got := level(tt.name, compute); got != tt.gce {
			t.Errorf("%s of Compute Engine: %q, want %q", tt.name, got, tt.gce)
		}
	}
	// doctor examines slices of Compute Engine, and the Cloud TPU API makes new ones.
	joined := provider.Join(nil, onCloudAPI{}, compute)
	if got := level("compute.instances.setMetadata", joined, tpu.Slice{Provider: "slice request"}); got != "error: putting the SSH key into slices" {
		t.Errorf("of slices that exist: %q", got)
	}
	if got := level("compute.instances.setMetadata", joined); got != "" {
		t.Errorf("without slices of Compute Engine: %q", got)
	}
}

// onCompute returns a provider of Compute Engine's slices. It makes no calls.
func onCompute() provision.Provider {
	return gce.New(gcp.New(gcp.Config{Project: "p", Zone: "r-a", DisableAuth: true}), "")
}

// onCloudAPI is a provider of the Cloud TPU API's slices.
type onCloudAPI struct{ provision.Provider }

func (onCloudAPI) Undoing(string, ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Kind: "queued resource"}}
}

// pair starts pair.sh in a real shell. path is its PATH, or "" for the test's own PATH.
func pair(t *testing.T, path string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{"-c", remote.Prelude() + pairScript, "bash", "NONCE"}, args...)...)
	cmd.Env = os.Environ()
	if path != "" {
		cmd.Env = append(cmd.Env, "PATH="+path)
	}
	return cmd
}

func probeLines(t *testing.T, path string, args ...string) [][]string {
	t.Helper()
	out := &remote.Answer{Nonce: "NONCE"}
	cmd := pair(t, path, append([]string{"probe", "5"}, args...)...)
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	lines, ok := whole(out)
	if !ok {
		t.Fatalf("the answer is not whole: %q", lines)
	}
	slices.SortFunc(lines, slices.Compare[[]string])
	return lines
}

// The probes of other workers reach the listener, which ends with its input.
func TestTheListenerEndsWithItsInput(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "python3")
	const address = "127.83.7.1"
	dir := t.TempDir()
	listener, lines, stdin := listen(t, dir, "listen", address, "60", "60", "8080", "8482")
	h := readHeard(lines, coordinator)
	if !slices.Equal(h.ports, []string{"8080", "8482"}) || h.why != "" {
		t.Fatalf("heard %+v", h)
	}
	want := [][]string{{"tcp", "first", "8080", "ok"}, {"tcp", "first", "8482", "ok"}}
	if diff := cmp.Diff(want, probeLines(t, "", "0", "first="+address+":8080,8482")); diff != "" {
		t.Errorf("probe (-want +got):\n%s", diff)
	}
	second := pair(t, "", "listen", address, "60", "60", "8482")
	second.Env = append(second.Env, "MULTIHOST_ROOT_TMP="+dir)
	out, err := second.Output() // no input: it ends at once
	if err != nil || !strings.Contains(string(out), "NONCE taken 8482\tAddress already in use") {
		t.Errorf("a second listener: %v, %q", err, out)
	}
	// The listener closes its TCP ports as soon as all workers have connected. The UDP port
	// stays open.
	_, err = io.WriteString(stdin, "let go\n")
	testkit.Must(t, err)
	if early := readClosed(lines, coordinator); early != "" {
		t.Errorf("the listener let go early: %s", early)
	}
	want = [][]string{{"tcp", "first", "8080", "refused"}, {"tcp", "first", "8482", "refused"}}
	if diff := cmp.Diff(want, probeLines(t, "", "0", "first="+address+":8080,8482")); diff != "" {
		t.Errorf("probe of nobody (-want +got):\n%s", diff)
	}
	// Without ping, UDP proves the size.
	want = [][]string{{"size", "first", "ok"}}
	for _, path := range []string{"", withoutPing(t)} {
		if diff := cmp.Diff(want, probeLines(t, path, "9000", "first="+address+":8080,8482")); diff != "" {
			t.Errorf("probe of the size with PATH %q (-want +got):\n%s", path, diff)
		}
	}
	testkit.Must(t, stdin.Close())
	if err := listener.Wait(); err != nil {
		t.Errorf("the listener ended with %v", err)
	}
}

func heardFrom(r io.Reader) lines { return lines{bufio.NewReader(r), "NONCE"} }

// coordinator is the worker that listens.
var coordinator = tpu.WorkerID{}

// listen starts a listener on a worker whose /tmp is below dir.
func listen(t *testing.T, dir string, args ...string) (*exec.Cmd, lines, io.WriteCloser) {
	t.Helper()
	listener := pair(t, "", args...)
	listener.Env = append(listener.Env, "MULTIHOST_ROOT_TMP="+dir)
	stdin, err := listener.StdinPipe()
	testkit.Must(t, err)
	stdout, err := listener.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, listener.Start())
	return listener, heardFrom(stdout), stdin
}

// The ports belong to the run. Nothing listens on them while a run is active or starts
// on the worker. The listener closes them when a run takes the worker's lock.
func TestTheListenerLeavesThePortsToARun(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "python3")
	const address = "127.83.7.2"
	dir := t.TempDir()
	lock := filepath.Join(dir, "tmp/.multihost/lock")
	args := []string{"listen", address, "60", "60", "8080"}

	listener, lines, stdin := listen(t, dir, args...)
	if h := readHeard(lines, coordinator); !slices.Equal(h.ports, []string{"8080"}) {
		t.Fatalf("on a worker that no run was on: heard %+v", h)
	}
	if _, err := os.Stat(filepath.Dir(lock)); err == nil {
		t.Error("the look at the lock made its directory")
	}
	testkit.Must(t, os.MkdirAll(filepath.Dir(lock), 0o755))
	run, err := os.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o644)
	testkit.Must(t, err)
	defer run.Close()
	testkit.Must(t, syscall.Flock(int(run.Fd()), syscall.LOCK_EX))
	if early := readClosed(lines, coordinator); early != "a run lives or starts on s0w0" {
		t.Errorf("a run started meanwhile: %q", early)
	}
	want := [][]string{{"tcp", "first", "8080", "refused"}}
	if diff := cmp.Diff(want, probeLines(t, "", "0", "first="+address+":8080")); diff != "" {
		t.Errorf("probe (-want +got):\n%s", diff)
	}
	testkit.Must(t, stdin.Close())
	testkit.Must(t, listener.Wait())

	listener, lines, _ = listen(t, dir, args...)
	h := readHeard(lines, coordinator)
	testkit.Must(t, listener.Wait())
	if diff := cmp.Diff(heard{why: "a run lives or starts on s0w0"}, h, cmp.AllowUnexported(heard{})); diff != "" {
		t.Errorf("while a run lives (-want +got):\n%s", diff)
	}

	testkit.Must(t, syscall.Flock(int(run.Fd()), syscall.LOCK_UN))
	args[2] = "0" // the test never orders it to close the ports
	listener, lines, stdin = listen(t, dir, args...)
	if h := readHeard(lines, coordinator); !slices.Equal(h.ports, []string{"8080"}) {
		t.Errorf("after the run: heard %+v", h)
	}
	if early := readClosed(lines, coordinator); !strings.Contains(early, "listens for 10 s and no longer") {
		t.Errorf("after its time: %q", early)
	}
	testkit.Must(t, stdin.Close())
	testkit.Must(t, listener.Wait())
}

// A port that the listener closed before a probe came does not count as closed.
func TestPortsThatWereLeftToARunAreNotChecked(t *testing.T) {
	t.Parallel()
	all := []*seen{worker(0, 0), worker(0, 1), worker(0, 2)}
	results := []probed{{}, {ports: map[string]string{"8080": "ok"}}, {ports: map[string]string{"8080": "refused"}}}
	for _, tt := range []struct {
		h    heard
		want string
	}{
		{heard{why: busy(coordinator)}, "between workers\n  unknown ports: not checked: a run lives or starts on s0w0\n0 ok, 1 not checked\n"},
		{heard{ports: []string{"8080"}, early: busy(coordinator)}, "between workers\n  unknown ports: s0w2: not checked: a run lives or starts on s0w0\n  ok      ports: s0w1: reach s0w0 on tcp:8080\n1 ok, 1 not checked\n"},
	} {
		e := pairChecks{&examination{}}
		e.judgePorts(all[0], all, tt.h, results)
		if diff := cmp.Diff(tt.want, e.report().String()); diff != "" {
			t.Errorf("heard %+v (-want +got):\n%s", tt.h, diff)
		}
	}
}

// withoutPing returns a PATH with all programs of the script except ping.
func withoutPing(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"bash", "timeout", "python3"} {
		file, err := exec.LookPath(name)
		testkit.Must(t, err)
		if name == "python3" { // it may be a script that looks for the real python3
			out, err := exec.Command(file, "-c", "import sys; print(sys.executable)").Output()
			testkit.Must(t, err)
			file = strings.TrimSpace(string(out))
		}
		testkit.Must(t, os.Symlink(file, filepath.Join(dir, name)))
	}
	return dir
}

func TestAWorkerThatCannotListenSaysWhy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bash, err := exec.LookPath("bash")
	testkit.Must(t, err)
	testkit.Must(t, os.Symlink(bash, filepath.Join(dir, "bash")))
	out, err := pair(t, dir, "listen", "127.0.0.1", "60", "60", "8482").Output()
	testkit.Must(t, err)
	if h := readHeard(heardFrom(bytes.NewReader(out)), coordinator); len(h.ports) > 0 || h.why != "s0w0: python3 is not installed" {
		t.Errorf("heard %+v", h)
	}
}

// An answer that breaks off early does not count.
func TestAListenerThatCannotBeReadIsNotTakenForOneThatListens(t *testing.T) {
	t.Parallel()
	broken := iotest.ErrReader(errors.New("connection lost"))
	long := strings.NewReader(strings.Repeat("x", bufio.MaxScanTokenSize) + "\n")
	for _, tt := range []struct {
		rest io.Reader
		want string
	}{{broken, "s0w0: connection lost"}, {long, "s0w0: bufio: buffer full"}} {
		said := heardFrom(io.MultiReader(strings.NewReader("NONCE listening 8080\n"), tt.rest))
		if h := readHeard(said, coordinator); h.why != tt.want {
			t.Errorf("heard %+v, want %q", h, tt.want)
		}
		if early := readClosed(said, coordinator); early != tt.want {
			t.Errorf("closed: %q, want %q", early, tt.want)
		}
	}
}

func TestFactsOfThisMachine(t *testing.T) {
	t.Parallel()
	python, err := exec.Command("/usr/bin/python3", "-c", "import platform; print(platform.python_version())").Output()
	testkit.Must(t, err)
	testkit.EachLogin(t, func(t *testing.T, login testkit.HostileLogin) {
		home := t.TempDir()
		login.At(t, home)
		cmd := exec.Command(testkit.LoginShell(home), "-c", "echo from a start-up file; "+remote.Bash(remote.Prelude()+factsScript, "NONCE"))
		cmd.Env = []string{"HOME=" + home, "PATH=/usr/bin:/bin"} // without programs that are scripts
		out, err := cmd.Output()
		testkit.Must(t, err)
		a := &remote.Answer{Nonce: "NONCE"}
		_, err = a.Write(out)
		testkit.Must(t, err)
		lines, ok := whole(a)
		facts := map[string]string{}
		for _, line := range lines {
			facts[line[0]] = strings.Join(line[1:], " ")
		}
		if !ok || facts["kernel"] == "" || facts["python"] != strings.TrimSpace(string(python)) || !strings.Contains(facts["home"], " ") {
			t.Errorf("facts: %q", out)
		}
	})
}

// worker returns a healthy worker's results.
func worker(slice, n int) *seen {
	return &seen{
		id: tpu.WorkerID{Slice: slice, Worker: n}, trip: 20 * time.Millisecond, offset: time.Millisecond,
		facts: map[string]string{"kernel": "5.15.0", "python": "3.10.12", "jax": "0.6.0", "jaxlib": "0.6.0", "libtpu": "0.0.11", "home": "60000000000 100000000000", "tmp": "60000000000 100000000000"},
		tools: []string{"python3", "numactl", "ethtool", "ping"},
		report: preflight.Report{Devices: 4, Results: []preflight.Result{
			{Setting: "somaxconn", Outcome: preflight.OK}, {Setting: "mtu", Want: "8896", Before: "8896", Outcome: preflight.OK},
			{Setting: "tpu_devices", Outcome: preflight.OK},
		}},
		errs: map[string]error{},
	}
}

func judged(change func(all []*seen)) string {
	all := []*seen{worker(0, 0), worker(0, 1), worker(1, 0), worker(1, 1)}
	change(all)
	e := workerChecks{&examination{Options: Options{Prefix: "t"}}}
	for s := range 2 {
		e.sel.Slices = append(e.sel.Slices, tpu.Slice{Index: s, Name: "t", Type: "v4-16", Workers: []tpu.Worker{{Internal: "10.0.0.1"}, {Internal: "10.0.0.2"}}})
	}
	e.judgeClocks(all)
	e.judgeDevices(all)
	e.judgeHolders(all)
	e.judgeSettings(all)
	e.judgeDisks(all)
	e.judgeVersions(all)
	r := e.report()
	r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool { return f.Level == OK })
	text := r.String()
	return text[:max(0, strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n")+1)]
}

// Equal problems of workers become one finding, with the command that corrects them.
func TestTroubleOfWorkersIsJudged(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		change func(all []*seen)
		want   string
	}{
		{"nothing is wrong", func([]*seen) {}, ""},
		{"every clock is off: it is ours", func(all []*seen) {
			for _, s := range all {
				s.offset = -time.Hour
			}
		}, `workers
  warning clock: s[0-1]w[0-1] (4): 1h00m behind this machine's; tokens and certificates may be refused
          cure: sudo systemctl restart chrony
`},
		{"versions differ", func(all []*seen) {
			all[3].facts["jax"] = "0.5.9"
			delete(all[1].facts, "libtpu")
			all[0].facts["kernel"] = "5.19.0"
		}, `workers
  warning versions: s0w0: kernel differs: 5.19.0 on s0w0, 5.15.0 on s0w1,s1w[0-1]
          slices of one runtime version are alike unless somebody changed them; make the odd one anew
  warning versions: s0w1: libtpu differs: 0.0.11 on s0w0,s1w[0-1], none on s0w1
          cure: multihost exec --tpu-prefix=t --workers=s0w1 -- python3 -m pip install 'libtpu==0.0.11'
  warning versions: s1w1: jax differs: 0.6.0 on s0w[0-1],s1w0, 0.5.9 on s1w1
          cure: multihost exec --tpu-prefix=t --workers=s1w1 -- python3 -m pip install 'jax==0.6.0'
`},
		{"tools and room are missing", func(all []*seen) {
			all[0].tools = []string{"ping"}
			for _, s := range all {
				s.facts["home"] = "1000000000 100000000000"
			}
		}, `workers
  warning settings: s0w0: ethtool is not installed
          cure: multihost preflight apply --install --tpu-prefix=t
  warning settings: s0w0: numactl is not installed
          cure: multihost preflight apply --install --tpu-prefix=t
  warning disk: s[0-1]w[0-1] (4): the disk of the home is more than nine tenths full
          cure: multihost exec --tpu-prefix=t -- bash -c 'rm -rf ~/.multihost/store; df -h ~; du -xsh ~/* | sort -h | tail'
`},
		{"somebody uses the TPU", func(all []*seen) {
			run := launch.Process{PID: 7, User: "ann", Command: "python3 train.py", Run: launch.Ref{Run: "r1", Attempt: 1}, RunAlive: true}
			for _, s := range all[:2] {
				s.holders = []launch.Process{run}
			}
			all[2].holders = []launch.Process{{PID: 8, User: "bob", Command: "jupyter"}, {PID: 9, User: "bob", Command: "jupyter"}}
			all[3].blind = "sudo: a password is required"
		}, `workers
  warning tpu users: s0w[0-1] (2): run r1 uses the TPU
          cure: multihost stop r1
  warning tpu users: s1w0: jupyter of bob uses the TPU
          cure: multihost exec --tpu-prefix=t --workers=s1w0 --sudo -- kill 8 9
  unknown tpu users: s1w1: processes of other users are not seen: sudo: a password is required
`},
		{"a worker does not tell", func(all []*seen) {
			for _, check := range []string{CheckVersions, CheckSettings, CheckHolders} {
				all[1].errs[check] = errors.New("the answer is not whole")
			}
			all[1].facts, all[1].report = nil, preflight.Report{}
		}, `workers
  unknown tpu users: s0w1: not checked: the answer is not whole
  unknown settings: s0w1: not checked: the answer is not whole
  unknown versions: s0w1: not checked: the answer is not whole
`},
	} {
		if diff := cmp.Diff(tt.want, judged(tt.change)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.story, diff)
		}
	}
}

// Any answer of a worker is handled.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("hello\nNONCE listening 8080\nNONCE ready\n"))
	f.Add([]byte("NONCE ready\nNONCE closed run\n"))
	f.Add([]byte("NONCE taken \tpython3 is not installed\nNONCE end\n"))
	f.Add([]byte("NONCE tcp first\t8080\tok\nNONCE size first\tsmall\t1400\nNONCE end\n"))
	f.Add([]byte("NONCE \nNONCE \t\xff\t\t\t\t\n\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		said := heardFrom(bytes.NewReader(data))
		readHeard(said, coordinator)
		readClosed(said, coordinator)
		a := &remote.Answer{Nonce: "NONCE"}
		_, _ = io.Copy(a, bytes.NewReader(data))
		lines, _ := whole(a)
		for _, l := range lines {
			room(strings.Join(l, " "))
		}
	})
}
