package main

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/shlex"

	"multihost/internal/doctor"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// An ailment is a problem, what doctor says about it, and the repair that doctor tells the
// user to type.
type ailment struct {
	story string
	plant func(t *testing.T, l *troubleLab)
	args  []string // arguments of doctor

	check string
	level doctor.Level
	says  string // regular expression
	cure  string // regular expression; "" if doctor prints none: then the test clears the fault

	status int                               // exit status of doctor before the cure
	beyond bool                              // the cure needs real hardware or a person, so the test clears the fault itself
	then   []string                          // arguments of doctor after the cure; nil: the same as before
	cured  func(t *testing.T, l *troubleLab) // done after the cure, because doctor only shows what to undo
}

// withFault plants a fault of the simulator.
func withFault(text string) func(*testing.T, *troubleLab) {
	return func(t *testing.T, l *troubleLab) {
		t.Helper()
		f, err := sim.ParseFault(text)
		testkit.Must(t, err)
		_, err = l.server.Inject(f)
		testkit.Must(t, err)
	}
}

// typing plants a fault by commands of multihost.
func typing(lines ...string) func(*testing.T, *troubleLab) {
	return func(t *testing.T, l *troubleLab) {
		t.Helper()
		for _, line := range lines {
			l.type_(t, line)
		}
	}
}

// type_ runs a command line of multihost or gcloud. The command must succeed.
func (l *troubleLab) type_(t *testing.T, line string) {
	t.Helper()
	if strings.HasPrefix(line, "gcloud ") {
		testkit.RunGcloud(t, l.env, line)
		return
	}
	words, err := shlex.Split(line)
	testkit.Must(t, err)
	var stdout, stderr transcript
	if status := l.program(&stdout, &stderr).run(words[1:]); status != 0 {
		t.Fatalf("%s: exit status %d\n%s%s", line, status, stdout.String(), stderr.String())
	}
}

// calls sends a request to the simulator's API. The request must succeed.
func (l *troubleLab) calls(t *testing.T, method, path, body string) (answer []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, l.server.URL()+path, strings.NewReader(body))
	testkit.Must(t, err)
	resp, err := http.DefaultClient.Do(req)
	testkit.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s, %v\n%s", method, path, resp.Status, err, text)
	}
	return text
}

// reads returns one value of the object at path in the simulator's API, or nil if there is
// none.
func (l *troubleLab) reads(t *testing.T, path, object, name string) any {
	t.Helper()
	var all map[string]json.RawMessage
	testkit.Must(t, json.Unmarshal(l.calls(t, "GET", path, ""), &all))
	var in map[string]any
	if all[object] != nil {
		testkit.Must(t, json.Unmarshal(all[object], &in))
	}
	return in[name]
}

// examine runs doctor and reads its report.
func (l *troubleLab) examine(t *testing.T, args ...string) (r doctor.Report, status int) {
	t.Helper()
	var stdout, stderr transcript
	status = l.program(&stdout, &stderr).run(append([]string{"doctor", "--output=json"}, args...))
	for line := range strings.Lines(stdout.String()) {
		var e struct {
			Kind, Name string
			Data       doctor.Report
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Kind == "result" && e.Name == "doctor" {
			return e.Data, status
		}
	}
	t.Fatalf("doctor %q ended with %d and no report:\n%s%s", args, status, stdout.String(), stderr.String())
	return r, status
}

// troubleOf returns the first finding of a check that is neither ok nor unknown.
func troubleOf(r doctor.Report, check string) *doctor.Finding {
	for i, f := range r.Findings {
		if f.Check == check && (f.Level == doctor.Warning || f.Level == doctor.Error) {
			return &r.Findings[i]
		}
	}
	return nil
}

// treat plants the fault, runs doctor, types the cure that doctor prints, and runs doctor
// again.
func (l *troubleLab) treat(t *testing.T, a ailment) {
	t.Helper()
	if strings.Contains(a.cure, "gcloud") {
		testkit.NeedGcloud(t)
	}
	a.plant(t, l)
	r, status := l.examine(t, a.args...)
	f := troubleOf(r, a.check)
	if f == nil {
		t.Fatalf("doctor finds nothing:\n%s", r)
	}
	if f.Level != a.level || !regexp.MustCompile(a.says).MatchString(f.Workers+" "+f.Text) || status != a.status {
		t.Errorf("exit status %d, want %d; %s %s %q, want %s %q\n%s", status, a.status, f.Level, f.Workers, f.Text, a.level, a.says, r)
	}
	if !regexp.MustCompile("^" + a.cure + "$").MatchString(f.Cure) {
		t.Fatalf("cure %q, want %q\n%s", f.Cure, a.cure, r)
	}
	if strings.Contains(f.Text, " denies it") && f.Fixable {
		t.Errorf("--fix would open what a rule denies: %+v", *f)
	}
	if a.cure == "" || a.beyond {
		_, err := l.server.Clear("all")
		testkit.Must(t, err)
	} else {
		l.type_(t, f.Cure)
	}
	if a.cured != nil {
		a.cured(t, l)
	}
	args := a.args
	if a.then != nil {
		args = a.then
	}
	r, _ = l.examine(t, args...)
	if f := troubleOf(r, a.check); f != nil {
		t.Errorf("after %q it is still there:\n%s", a.cure, r)
	}
}

// twoSmallSlices have a worker each.
var twoSmallSlices = sim.SliceSpec{Name: "t", Count: 2, Type: "v4-8"}

// The command that doctor prints cures everything that doctor finds. The test plants one
// fault after the other in a healthy cloud and on healthy workers.
func TestDoctorsCuresCure(t *testing.T) {
	testkit.OnlyInAll(t, "the story doctor and the tests of package doctor")
	besideOthers(t)
	l := newLab(t, "process", twoSmallSlices)
	slices, second := []string{"--tpu-prefix=t"}, []string{"--tpu-prefix=t-1"} // one worker is enough to find these faults
	for _, a := range []ailment{{
		story: "no SSH key", plant: func(*testing.T, *troubleLab) {}, args: slices,
		check: doctor.CheckKey, level: doctor.Warning, says: "no key at", cure: "multihost doctor --fix --tpu-prefix=t",
	}, {
		story: "the key is not where workers look", args: slices,
		plant: func(t *testing.T, l *troubleLab) {
			for _, suffix := range []string{"", ".pub"} {
				testkit.Must(t, os.Remove(l.env["MULTIHOST_FLAG_IDENTITY_FILE"]+suffix))
			}
			l.env["MULTIHOST_FLAG_IDENTITY_FILE"] = filepath.Join(l.dir, "another")
			if out, err := exec.Command(testkit.Need(t, "ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(l.dir, "another")).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		},
		check: doctor.CheckLogin, level: doctor.Warning, says: "not in the metadata of the slice of t-0, t-1", cure: "multihost doctor --fix --tpu-prefix=t",
	}, {
		story: "an API is not enabled", plant: withFault("api-disabled service=tpu.googleapis.com"), status: 77,
		check: doctor.CheckAPIs, level: doctor.Error, says: "tpu.googleapis.com is not enabled", cure: "gcloud services enable tpu.googleapis.com --project=multihost-sim",
	}, {
		story: "a zone does not exist", plant: func(*testing.T, *troubleLab) {}, args: []string{"--zone=us-nope1-a"}, status: 78,
		check: doctor.CheckZone, level: doctor.Error, says: `us-nope1-a \(from --zone\): zone "us-nope1-a" does not exist or has no Cloud TPU`, cure: "gcloud compute tpus locations list", beyond: true, then: second,
	}, {
		story: "a zone of Compute Engine does not exist", plant: func(*testing.T, *troubleLab) {}, args: []string{"--zone=us-nope1-a", "--tpu-type=tpu7x-8"}, status: 78,
		check: doctor.CheckZone, level: doctor.Error, says: `us-nope1-a \(from --zone\): .*zones/us-nope1-a' was not found`, cure: "gcloud compute .*list", beyond: true, then: second,
	}, {
		story: "a permission is lacking", plant: withFault("permission-denied permission=tpu.nodes.create n=all"),
		check: doctor.CheckPermissions, level: doctor.Warning, says: "tpu.nodes.create lacking, for qr create and job; roles/tpu.admin has it",
		cure: "gcloud projects add-iam-policy-binding multihost-sim --member=user:you@multihost.example --role=roles/tpu.admin",
	}, {
		// network create has no --ip.
		story: "there is no network yet", plant: func(*testing.T, *troubleLab) {}, args: []string{"--ip=external"},
		check: doctor.CheckNetwork, level: doctor.Warning, says: "no network mtu9k", cure: "multihost network create mtu9k",
	}, {
		story: "a quota is too small", plant: withFault("quota cores=24"), args: []string{"--tpu-type=v4-16"},
		check: doctor.CheckQuota, level: doctor.Warning, says: `a v4-16 needs 16 cores; .* on demand 24 \(16 held\)`,
		cure: "gcloud beta quotas preferences create --service=tpu.googleapis.com --quota-id=TPUV4sPodPerProjectPerZoneForTPUAPI --preferred-value=32 --dimensions='zone=us-central2-b' --email=you@multihost.example --project=multihost-sim",
	}, {
		story: "a dead request holds quota", args: []string{"--tpu-type=v4-16"},
		plant: func(t *testing.T, l *troubleLab) {
			withFault("quota cores=32")(t, l)
			withFault("qr-failed qr=dead")(t, l)
			typing("multihost qr create dead --node-id=dead --tpu-type=v4-8")(t, l)
			testkit.Eventually(t, "the request has failed", func() bool {
				return slicesContain(l.server.Status().Queued, func(q sim.QueuedStatus) bool { return q.ID == "dead" && q.State == "FAILED" })
			})
		},
		check: doctor.CheckQuota, level: doctor.Warning, says: "queued resource dead is FAILED", cure: "multihost qr delete dead --force",
	}, {
		story: "a network has small packets", plant: typing("multihost network create small --mtu=1460"), args: []string{"--network=small"},
		check: doctor.CheckMTU, level: doctor.Warning, says: "^ 1460", cure: "multihost network update small --mtu=8896",
	}, {
		story: "nobody may log in", plant: typing("multihost network firewall delete small-ssh"), args: []string{"--network=small"},
		check: doctor.CheckSSHRule, level: doctor.Warning, says: "only 10.128.0.0/9 may reach tcp:22",
		cure: `multihost network firewall create small-ssh --network=small --allow=tcp:22 --source-ranges=35\.235\.240\.0/20`,
	}, {
		story: "workers may not talk", plant: typing("multihost network firewall delete small-internal"), args: []string{"--network=small"}, status: 69,
		check: doctor.CheckWorkerRules, level: doctor.Error, says: `workers in 10\S+ cannot reach each other on tcp:8080-8081 \(MEGASCALE\), tcp:8470-8482`,
		cure: `multihost network firewall create small-internal --network=small --allow=tcp,udp,icmp --source-ranges=\S+`,
	}, {
		story: "a rule forbids the coordinator", args: []string{"--network=small"}, status: 69,
		plant: func(t *testing.T, l *troubleLab) {
			l.calls(t, "POST", "/compute/v1/projects/multihost-sim/global/firewalls",
				`{"name":"no-jax","network":"global/networks/small","denied":[{"IPProtocol":"tcp","ports":["8482"]}],"priority":900,"sourceRanges":["10.0.0.0/8"]}`)
		},
		check: doctor.CheckWorkerRules, level: doctor.Error, says: `cannot reach each other on tcp:8470-8482 \(libtpu and JAX\); rule no-jax denies it`,
		cure: `multihost network firewall create small-internal-2 .* --priority=899`,
	}, {
		story: "a network has no subnetwork where the slices are", args: []string{"--network=bare"}, status: 69,
		plant: func(t *testing.T, l *troubleLab) {
			typing("multihost network create bare --subnet-mode=custom", "multihost network firewall create bare-all --network=bare --allow=tcp,udp,icmp --source-ranges=10.0.0.0/8")(t, l)
			// The network uses this range already, so that no other subnetwork can.
			l.calls(t, "POST", "/compute/v1/projects/multihost-sim/regions/us-east5/subnetworks", `{"name": "far", "network": "global/networks/bare", "ipCidrRange": "10.0.0.0/20"}`)
		},
		check: doctor.CheckWorkerRules, level: doctor.Error, says: "network bare has no subnetwork in us-central2",
		cure: `gcloud compute networks subnets create bare --network=bare --region=us-central2 --range=10\.0\.16\.0/20 --project=multihost-sim`,
	}, {
		story: "a slice takes no keys of the project", args: slices, plant: onlyTheProjectHasTheKey,
		check: doctor.CheckLogin, level: doctor.Warning, says: `the key is not in the metadata of the slice \(keys of the project are blocked\) of t-1 yet`,
		cure: "multihost doctor --fix --tpu-prefix=t",
	}, {
		story: "a host key has changed", plant: withFault("worker-rotate-host-keys node=t-1 worker=0"), args: slices, status: 77,
		check: doctor.CheckHostKeys, level: doctor.Error, says: "^s1w0 .*host key", cure: "multihost hostkey forget s0w0 --tpu-prefix=t-1",
	}, {
		story: "a run holds the TPU", args: slices,
		plant: func(t *testing.T, l *troubleLab) {
			typing("multihost run --tpu-prefix=t --run-name=held --detach --preflight=off --script-dir="+l.code+
				` "--command=exec 9<$MULTIHOST_ROOT_DEV/dev/accel0; sleep 900"`)(t, l)
		},
		check: doctor.CheckHolders, level: doctor.Warning, says: `^s\[0-1\]w0 run held uses the TPU`, cure: "multihost stop held",
	}, {
		story: "somebody else's process holds the TPU", args: slices,
		plant: func(t *testing.T, l *troubleLab) {
			devices, err := filepath.Glob(filepath.Join(l.dir, "sim/workers/*-t-1-*-w-0/dev/accel2"))
			if err != nil || len(devices) != 1 {
				t.Fatalf("devices %q, %v", devices, err)
			}
			device, err := os.Open(devices[0])
			testkit.Must(t, err)
			defer device.Close()
			holder := exec.Command("sleep", "901")
			holder.Stdin = device
			testkit.Must(t, holder.Start())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = holder.Wait() // a signal has ended the process
			}()
			t.Cleanup(func() {
				_ = holder.Process.Kill() // if the repair did not work
				<-ended
			})
		},
		check: doctor.CheckHolders, level: doctor.Warning, says: `^s1w0 sleep 901 of \S+ uses the TPU`,
		cure: `multihost exec --tpu-prefix=t --workers=s1w0 --sudo -- kill \d+`,
	}, {
		story: "a worker has another jax", args: slices, plant: anotherJAX,
		check: doctor.CheckVersions, level: doctor.Warning, says: `^s1w0 jax differs: 0\.6\.0 on s0w0, 0\.5\.9 on s1w0`,
		cure: "multihost exec --tpu-prefix=t --workers=s1w0 -- python3 -m pip install 'jax==0.6.0'",
	}, {
		story: "a program of preflight is not installed", plant: withFault("worker-missing node=t-1 worker=0 setting=numactl"), args: slices,
		check: doctor.CheckSettings, level: doctor.Warning, says: "^s1w0 numactl is not installed",
		cure: "multihost preflight apply --install --tpu-prefix=t",
	}, {
		story: "a clock is off", plant: withFault("worker-clock node=t-1 worker=0 duration=1h"), args: second,
		check: doctor.CheckClock, level: doctor.Warning, says: "^s0w0 1h00m ahead of this machine's",
		cure: "multihost exec --tpu-prefix=t-1 --sudo -- systemctl restart chrony",
	}, {
		story: "guest attributes are switched off", plant: func(t *testing.T, l *troubleLab) {
			withFault("no-guest-attributes node=*")(t, l)
			testkit.Must(t, os.Remove(filepath.Join(l.dir, ".local/state/multihost/hostkeys.json")))
		}, args: second,
		check: doctor.CheckHostKeys, level: doctor.Warning, says: `^s0w0 the API does not know the keys`,
	}, {
		story: "a worker refuses connections", plant: withFault("worker-unreachable node=t-1"), args: append(slices, "--connect-timeout=5s"), status: 69,
		check: doctor.CheckSSH, level: doctor.Error, says: "^s1w0 connect.*refused",
	}, {
		story: "a chip is missing", plant: withFault("worker-missing node=t-0 worker=0 setting=/dev/accel3"), args: []string{"--tpu-prefix=t-0"}, status: 76,
		check: doctor.CheckDevices, level: doctor.Error, says: "^s0w0 3 TPU devices, 4 expected", beyond: true,
		cure: "multihost exec --tpu-prefix=t-0 --sudo -- systemctl reboot",
	}} {
		if !t.Run(a.story, func(t *testing.T) { l.treat(t, a) }) {
			t.Log("what follows may fail for it")
		}
	}
}

// onlyTheProjectHasTheKey leaves the key only in the metadata of the project. Slice t-1
// does not accept keys of the project.
func onlyTheProjectHasTheKey(t *testing.T, l *troubleLab) {
	key, err := os.ReadFile(l.env["MULTIHOST_FLAG_IDENTITY_FILE"] + ".pub")
	testkit.Must(t, err)
	words := strings.Fields(string(key))
	entry := "ann:" + strings.Join(words[:2], " ") + " ann"
	const project, nodes = "/compute/v1/projects/multihost-sim", "/v2/projects/multihost-sim/locations/" + sim.DefaultZone + "/nodes/"
	l.calls(t, "POST", project+"/setCommonInstanceMetadata", fmt.Sprintf(`{"fingerprint": %q, "items": [{"key": "ssh-keys", "value": %q}]}`,
		l.reads(t, project, "commonInstanceMetadata", "fingerprint"), entry))
	l.calls(t, "PATCH", nodes+"t-0?updateMask=metadata", `{"metadata": {}}`)
	l.calls(t, "PATCH", nodes+"t-1?updateMask=metadata", `{"metadata": {"block-project-ssh-keys": "TRUE"}}`)
	testkit.Eventually(t, "the metadata have changed", func() bool {
		return l.reads(t, nodes+"t-0", "metadata", "ssh-keys") == nil && l.reads(t, nodes+"t-1", "metadata", "block-project-ssh-keys") != nil
	})
}

// anotherJAX gives the workers different versions of jax, as pip would install them. For
// the cure, pip gets a directory that has only the newer version.
func anotherJAX(t *testing.T, l *troubleLab) {
	const about = "jax-0.6.0.dist-info/"
	file, err := os.Create(filepath.Join(l.dir, "jax-0.6.0-py3-none-any.whl"))
	testkit.Must(t, err)
	defer file.Close()
	wheel := zip.NewWriter(file)
	for _, part := range [][2]string{
		{"jax/__init__.py", ""},
		{about + "METADATA", "Metadata-Version: 2.1\nName: jax\nVersion: 0.6.0\n"},
		{about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{about + "RECORD", "jax/__init__.py,,\n" + about + "METADATA,,\n" + about + "WHEEL,,\n" + about + "RECORD,,\n"},
	} {
		w, err := wheel.Create(part[0])
		testkit.Must(t, err)
		_, err = io.WriteString(w, part[1])
		testkit.Must(t, err)
	}
	testkit.Must(t, wheel.Close())
	script := filepath.Join(l.dir, "plant.sh")
	testkit.Must(t, os.WriteFile(script, []byte(`set -e
mkdir -p ~/.config/pip
printf '[global]\nno-index = true\nfind-links = %s\ndisable-pip-version-check = true\n[install]\nuser = true\nbreak-system-packages = true\n' "${0%/*}" >~/.config/pip/pip.conf
site=$(python3 -m site --user-site) || [ -n "$site" ] # there is none yet, says the status
mkdir -p "$site/jax-$1.dist-info" "$site/jax"
cd "$site"
: >jax/__init__.py
printf 'Metadata-Version: 2.1\nName: jax\nVersion: %s\n' "$1" >"jax-$1.dist-info/METADATA"
printf '%s,,\n' jax/__init__.py "jax-$1.dist-info/METADATA" "jax-$1.dist-info/RECORD" >"jax-$1.dist-info/RECORD"
`), 0o600))
	typing("multihost exec --tpu-prefix=t --workers=s0w0 -- bash "+script+" 0.6.0",
		"multihost exec --tpu-prefix=t --workers=s1w0 -- bash "+script+" 0.5.9")(t, l)
}

func slicesContain[T any](all []T, like func(T) bool) bool { return slices.ContainsFunc(all, like) }

func TestDoctorChangesNothing(t *testing.T) {
	besideOthers(t)
	l := newTroubleLab(t, "process", 1)
	before := l.server.Requests()
	r, status := l.examine(t, "--tpu-prefix=t", "--tpu-type=v4-16")
	if status != 0 || troubleOf(r, doctor.CheckKey) == nil {
		t.Fatalf("exit status %d\n%s", status, r)
	}
	for _, req := range l.server.Requests()[len(before):] {
		if req.Method != "GET" && !strings.Contains(req.Path, ":testIamPermissions") && !strings.Contains(req.Path, "getGuestAttributes") {
			t.Errorf("it wrote: %s %s", req.Method, req.Path)
		}
	}
	if _, err := os.Stat(l.env["MULTIHOST_FLAG_IDENTITY_FILE"]); err == nil {
		t.Error("it made a key")
	}

	// The workers accept the key, but this machine has never reached them.
	l.type_(t, "multihost doctor --fix --tpu-prefix=t")
	homes, err := filepath.Glob(filepath.Join(l.dir, "sim/workers/*/home/*"))
	if err != nil || len(homes) == 0 {
		t.Fatalf("homes %q, %v", homes, err)
	}
	state := filepath.Join(l.dir, ".local/state/multihost")
	kits := 0
	for _, home := range homes {
		if _, err := os.Stat(filepath.Join(home, ".multihost/kit")); err == nil {
			kits++
		}
		testkit.Must(t, os.RemoveAll(filepath.Join(home, ".multihost")))
	}
	if _, err := os.Stat(filepath.Join(state, "hostkeys.json")); err != nil || kits == 0 {
		t.Fatalf("what is written by --fix is not where this looks: %v, %d kits in %q", err, kits, homes)
	}
	testkit.Must(t, os.RemoveAll(state))
	r, status = l.examine(t, "--tpu-prefix=t")
	if status != 0 || r.Errors+r.Unknown > 0 {
		t.Errorf("exit status %d\n%s", status, r)
	}
	if _, err := os.Lstat(state); err == nil {
		t.Errorf("it made %s", state)
	}
	for _, home := range homes {
		if _, err := os.Lstat(filepath.Join(home, ".multihost")); err == nil {
			t.Errorf("it made .multihost in %s", home)
		}
	}
}

// Without any settings, doctor says what to set and then does its other checks.
func TestDoctorWithoutAProject(t *testing.T) {
	l := &troubleLab{dir: t.TempDir(), env: map[string]string{"USER": "ann"}}
	r, status := l.examine(t)
	if status != exitConfig || troubleOf(r, doctor.CheckProject) == nil || troubleOf(r, doctor.CheckZone) == nil || troubleOf(r, doctor.CheckKey) == nil {
		t.Errorf("exit status %d\n%s", status, r)
	}
}

func TestDoctorOnRealNetworks(t *testing.T) {
	besideOthers(t)
	if testkit.RaceDetector {
		t.Skip("what is raced here is raced with the process backend")
	}
	l := newLab(t, "netns", twoSmallSlices)
	args := []string{"--tpu-prefix=t"}
	r, status := l.examine(t, append(args, "--fix")...)
	if status != 0 {
		t.Fatalf("exit status %d\n%s", status, r)
	}
	for _, check := range []string{doctor.CheckPacket, doctor.CheckPorts, doctor.CheckSSH, doctor.CheckDevices} {
		if f := troubleOf(r, check); f != nil {
			t.Errorf("a healthy network: %+v", *f)
		}
	}
	onWorker := func(worker, script string) func(*testing.T, *troubleLab) {
		script = `d=$(ip -o -4 route show default | sed -n "s/.* dev \([^ ]*\).*/\1/p;q"); ` + script
		return typing("multihost exec --tpu-prefix=t --workers=" + worker + " --sudo -- bash -c '" + script + "'")
	}
	for _, a := range []ailment{{
		story: "what is kept to send less fills a disk", args: args,
		plant: func(t *testing.T, l *troubleLab) {
			withFault("worker-disk-space node=t-1 worker=0 bytes=40000000")(t, l)
			typing(`multihost exec --tpu-prefix=t --workers=s1w0 "--command=mkdir -p ~/.multihost/store; head -c 38000000 /dev/zero >~/.multihost/store/fill"`)(t, l)
		},
		check: doctor.CheckDisk, level: doctor.Warning, says: "^s1w0 the disk of the home is more than nine tenths full",
		cure: `multihost exec --tpu-prefix=t --workers=s1w0 -- bash -c '?.*rm -rf ~/\.multihost/store.*`,
	}, {
		story: "an interface has smaller packets than its network", plant: onWorker("s1w0", `ip link set dev $d mtu 1400`), args: args, status: 76,
		check: doctor.CheckPacket, level: doctor.Error, says: "^s1w0 .* has mtu 1400, its network 8896", cure: `multihost exec --tpu-prefix=t --workers=s1w0 --sudo -- ip link set dev \S+ mtu 8896`,
	}, {
		// A routing rule before the machine's rule for its own addresses drops the same
		// packets as a packet filter would. Not every kernel has a packet filter.
		story: "a worker drops what is for the coordinator", args: args, status: 69, cured: onWorker("s0w0", "ip rule del pref 1"),
		plant: onWorker("s0w0", `ip rule add pref 5 lookup local; ip rule add pref 1 iif $d ipproto tcp dport 8482 blackhole; ip rule del pref 0`),
		check: doctor.CheckPorts, level: doctor.Error, says: `^s1w0 packets to tcp:8482 of s0w0 are dropped`, cure: `multihost exec --tpu-prefix=t --workers=s0w0 --sudo -- bash -c .*ip rule.*`,
	}} {
		t.Run(a.story, func(t *testing.T) { l.treat(t, a) })
	}
}
