package sim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

// A gcloud is an unmodified gcloud for one simulator, with a configuration and a home of
// its own.
type gcloud struct {
	t    *testing.T
	file string
	home string
	sim  *sim.Server
	env  []string // besides
}

// gcloudFor also skips the test if gcloud is not installed.
func gcloudFor(t *testing.T, s *sim.Server) *gcloud {
	t.Helper()
	return &gcloud{t: t, file: testkit.NeedGcloud(t), home: t.TempDir(), sim: s}
}

// gcloudLimit ends a call that hangs or retries without success.
const gcloudLimit = 5 * time.Minute

// try runs gcloud, and returns its standard output, status and standard error.
func (g *gcloud) try(args ...string) (out string, status int, errs string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), gcloudLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.file, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.home}
	for k, v := range g.sim.Env() {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Env = append(cmd.Env, g.env...)
	cmd.WaitDelay = time.Second // its ssh may keep the pipes open
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || !exit.Exited()) {
		g.t.Fatalf("gcloud %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), cmd.ProcessState.ExitCode(), stderr.String()
}

// run is try for commands that must succeed. line has the arguments, separated by spaces.
func (g *gcloud) run(line string) string {
	g.t.Helper()
	out, status, errs := g.try(strings.Fields(line)...)
	if status != 0 {
		g.t.Fatalf("gcloud %s: exit status %d\n%s", line, status, errs)
	}
	return out
}

// table runs a list and returns the words of its lines.
func (g *gcloud) table(line string) [][]string {
	g.t.Helper()
	var rows [][]string
	for row := range strings.Lines(g.run(line)) {
		rows = append(rows, strings.Fields(row))
	}
	return rows
}

// describe runs a command that shows one resource, and compares the output with the
// simulator's resource at path. gcloud adds fields whose names begin with x_gcloud.
func (g *gcloud) describe(line, path string) {
	g.t.Helper()
	resp, err := http.Get(g.sim.URL() + path)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	var want, got map[string]any
	if err := json.Unmarshal(b, &want); err != nil {
		g.t.Fatalf("%s: %v", path, err)
	}
	if err := json.Unmarshal([]byte(g.run(line+" --format=json")), &got); err != nil {
		g.t.Fatalf("gcloud %s: %v", line, err)
	}
	for name := range got {
		if strings.HasPrefix(name, "x_gcloud") {
			delete(got, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		g.t.Errorf("gcloud %s (-simulator +gcloud):\n%s", line, diff)
	}
}

func (g *gcloud) wantTable(line string, want [][]string) {
	g.t.Helper()
	if diff := cmp.Diff(want, g.table(line)); diff != "" {
		g.t.Errorf("gcloud %s (-want +got):\n%s", line, diff)
	}
}

func TestGcloudShowsAndDeletesTPUs(t *testing.T) {
	t.Parallel()
	testkit.NeedGcloud(t)
	s, _ := start(t)
	g := gcloudFor(t, s)
	if _, err := alpha(t, s).QueuedResources.Create(parent, request(2, "v4-16")).QueuedResourceId("q").Do(); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, "q", "ACTIVE")
	const zone = sim.DefaultZone

	g.wantTable("alpha compute tpus queued-resources list --zone="+zone, [][]string{
		{"NAME", "ZONE", "NODE_COUNT", "ACCELERATOR_TYPE", "TYPE", "TOPOLOGY", "STATE"},
		{"q", zone, "1", "v4-16", "ACTIVE"}, // one specification, not one node
	})
	g.describe("alpha compute tpus queued-resources describe q --zone="+zone, "/v2alpha1/"+parent+"/queuedResources/q")
	g.wantTable("compute tpus tpu-vm list --zone="+zone, [][]string{
		{"NAME", "ZONE", "ACCELERATOR_TYPE", "TYPE", "TOPOLOGY", "NETWORK", "RANGE", "STATUS"},
		{"q-0", zone, "v4-16", "V4", "2x2x2", "default", "READY"},
		{"q-1", zone, "v4-16", "V4", "2x2x2", "default", "READY"},
	})
	g.describe("compute tpus tpu-vm describe q-1 --zone="+zone, "/v2/"+parent+"/nodes/q-1")
	g.run("alpha compute tpus queued-resources delete q --force --quiet --zone=" + zone)
	if st := s.Status(); len(st.Queued)+len(st.Nodes) != 0 {
		t.Errorf("after the deletion there are %+v and %+v", st.Queued, st.Nodes)
	}
}

func TestGcloudShowsAndDeletesNetworks(t *testing.T) {
	t.Parallel()
	testkit.NeedGcloud(t)
	s, _ := start(t)
	g := gcloudFor(t, s)
	c := newCompute(t, s)
	op, err := c.networks.Insert(t.Context(), jumbo())
	if err != nil {
		t.Fatal(err)
	}
	c.finish(t, op)
	if op, err = c.firewalls.Insert(t.Context(), rule("mtu9kfw")); err != nil {
		t.Fatal(err)
	}
	c.finish(t, op)
	const global = "/compute/v1/projects/" + sim.DefaultProject + "/global/"

	g.wantTable("compute networks list", [][]string{
		{"NAME", "SUBNET_MODE", "BGP_ROUTING_MODE", "IPV4_RANGE", "GATEWAY_IPV4", "INTERNAL_IPV6_RANGE"},
		{"default", "AUTO", "REGIONAL"}, {"mtu9k", "AUTO", "REGIONAL"},
	})
	g.describe("compute networks describe mtu9k", global+"networks/mtu9k")
	g.wantTable("compute firewall-rules list --filter=network:mtu9k", [][]string{
		{"NAME", "NETWORK", "DIRECTION", "PRIORITY", "ALLOW", "DENY", "DISABLED"},
		{"mtu9kfw", "mtu9k", "INGRESS", "1000", "tcp:22,icmp", "False"},
	})
	g.describe("compute firewall-rules describe mtu9kfw", global+"firewalls/mtu9kfw")
	g.run("compute firewall-rules delete mtu9kfw --quiet")
	g.run("compute networks delete mtu9k --quiet")
	if st := s.Status(); slices.Contains(st.Networks, "mtu9k") || slices.Contains(st.Rules, "mtu9kfw") {
		t.Errorf("after the deletion there are %v and %v", st.Networks, st.Rules)
	}
}

// gcloud makes a key, puts it into the node's metadata, copies a file to a
// worker and runs a command there.
func TestGcloudReachesWorkers(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"process", "netns"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			testkit.NeedGcloud(t)
			testkit.Need(t, "ssh", "scp", "ssh-keygen")
			s := startBackend(t, backend)
			port := strconv.Itoa(s.SSHPort()) // gcloud knows only port 22
			ssh, scp := []string{"--ssh-flag=-p" + port}, []string{"--scp-flag=-P" + port}
			if backend == "process" {
				ssh, scp = append(ssh, "--internal-ip"), append(scp, "--internal-ip") // on this backend the internal addresses can be reached
			}
			testGcloudReachesWorkers(t, s, ssh, scp)
		})
	}
}

// startBackend runs a simulator with a slice of two workers.
func startBackend(t *testing.T, backend string) *sim.Server {
	t.Helper()
	if backend == "netns" {
		simworker.NeedNetns(t)
	}
	s, err := sim.Start(t.Context(), sim.Config{
		Dir: t.TempDir(), Step: time.Millisecond, Backend: backend,
		Slices: []sim.SliceSpec{{Name: "t", Count: 1, Type: "v4-16"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testGcloudReachesWorkers(t *testing.T, s *sim.Server, ssh, scp []string) {
	t.Helper()
	g := gcloudFor(t, s)
	const text = "to worker 1, in bytes: \x00\xff\n"
	file := filepath.Join(g.home, "a file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	call := func(verb string, args ...string) (out string, status int, errs string) {
		t.Helper()
		return g.try(append([]string{"compute", "tpus", "tpu-vm", verb, "--zone=" + sim.DefaultZone, "--worker=1", "--quiet"}, args...)...)
	}
	if _, status, errs := call("scp", append(scp, file, "ann@t:b")...); status != 0 {
		t.Fatalf("scp: exit status %d\n%s", status, errs)
	}
	out, status, errs := call("ssh", append(ssh, "ann@t", "--command=cat b; hostname; id -un; exit 7")...)
	if want := text + s.Status().Nodes[0].Workers[1].Hostname + "\nann\n"; out != want || status != 7 {
		t.Errorf("ssh: exit status %d, want 7, and output %q, want %q\n%s", status, out, want, errs)
	}
}

// gcloud uploads a whole object, in chunks, and in parts that it composes. It downloads in
// slices, and lists, moves and removes objects.
func TestGcloudKeepsObjects(t *testing.T) {
	t.Parallel()
	testkit.NeedGcloud(t)
	s, _ := start(t)
	g := gcloudFor(t, s)
	dir := filepath.Join(g.home, "run")
	large := bytes.Repeat([]byte("0123456789abcdef"), 576<<10) // 9 MiB, more than gcloud sends at once
	files := map[string][]byte{"empty": nil, "small file": []byte("hello\n"), "sub/large": large}
	for name, data := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const bucket = "gs://" + sim.DefaultBucket
	names := func() (all []string) {
		for _, o := range s.Objects(sim.DefaultBucket) {
			all = append(all, o.Name)
		}
		return all
	}
	call := func(args ...string) string {
		t.Helper()
		out, status, errs := g.try(append([]string{"storage"}, args...)...)
		if status != 0 {
			for _, r := range s.Requests() {
				if r.Code >= 400 {
					t.Logf("%d for %s %s", r.Code, r.Method, r.Path)
				}
			}
			t.Fatalf("gcloud storage %s: exit status %d\n%s", strings.Join(args, " "), status, errs)
		}
		return out
	}

	call("cp", "-r", dir, bucket+"/a")
	for _, o := range s.Objects(sim.DefaultBucket) {
		if want := files[strings.TrimPrefix(o.Name, "a/")]; !bytes.Equal(o.Data, want) {
			t.Errorf("%s: got %d bytes, want %d", o.Name, len(o.Data), len(want))
		}
	}
	if diff := cmp.Diff([]string{"a/empty", "a/small file", "a/sub/large"}, names()); diff != "" {
		t.Errorf("after cp -r (-want +got):\n%s", diff)
	}
	if got, want := call("ls", bucket+"/a"), bucket+"/a/empty\n"+bucket+"/a/small file\n"+bucket+"/a/sub/\n"; got != want {
		t.Errorf("ls: got %q, want %q", got, want)
	}
	if got := call("cat", "--range=1-3", bucket+"/a/small*"); got != "ell" {
		t.Errorf("cat: got %q", got)
	}
	call("mv", bucket+"/a/small file", bucket+"/a/sub/large", bucket+"/b/")
	if diff := cmp.Diff([]string{"a/empty", "b/large", "b/small file"}, names()); diff != "" {
		t.Errorf("after mv (-want +got):\n%s", diff)
	}
	// gcloud copies in parts in both directions. It removes only parts that it has uploaded
	// in chunks.
	g.env = []string{
		"CLOUDSDK_STORAGE_PARALLEL_COMPOSITE_UPLOAD_ENABLED=True", "CLOUDSDK_STORAGE_PARALLEL_COMPOSITE_UPLOAD_THRESHOLD=1M",
		"CLOUDSDK_STORAGE_PARALLEL_COMPOSITE_UPLOAD_COMPONENT_SIZE=4M", "CLOUDSDK_STORAGE_RESUMABLE_THRESHOLD=1M",
		"CLOUDSDK_STORAGE_SLICED_OBJECT_DOWNLOAD_THRESHOLD=1M",
		"CLOUDSDK_STORAGE_SLICED_OBJECT_DOWNLOAD_COMPONENT_SIZE=4M", "CLOUDSDK_STORAGE_CHECK_HASHES=always",
	}
	call("cp", filepath.Join(dir, "sub/large"), bucket+"/b/composed")
	back := filepath.Join(g.home, "back")
	call("cp", bucket+"/b/composed", back)
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, large) {
		t.Errorf("downloaded %d bytes of %d, %v", len(got), len(large), err)
	}
	composed := 0
	for _, r := range s.Requests() {
		if strings.Contains(r.Path, "/compose") {
			composed++
		}
	}
	if composed != 1 {
		t.Errorf("%d times composed, want once", composed)
	}
	call("rm", "-r", bucket+"/b")
	if diff := cmp.Diff([]string{"a/empty"}, names()); diff != "" {
		t.Errorf("after rm -r (-want +got):\n%s", diff)
	}
}

// gcloud makes a slice of a managed instance group, from the policy on, and deletes all
// parts. The size policy needs an alpha command.
func TestGcloudMakesASliceOnComputeEngine(t *testing.T) {
	t.Parallel()
	testkit.NeedGcloud(t)
	s, _ := start(t)
	g := gcloudFor(t, s)
	t.Cleanup(func() {
		for _, r := range s.Requests() {
			if t.Failed() && r.Code >= 400 {
				t.Logf("%d for %s %s %s", r.Code, r.Method, r.Path, r.Body)
			}
		}
	})
	const (
		zone   = sim.DefaultZone
		region = "us-central2"
		home   = "/compute/v1/projects/" + sim.DefaultProject
	)
	g.run("compute resource-policies create workload-policy p --type=high-throughput --accelerator-topology=2x2x2 --region=" + region)
	g.describe("compute resource-policies describe p --region="+region, home+"/regions/"+region+"/resourcePolicies/p")
	g.run("beta compute instance-templates create t --instance-template-region=" + region + " --machine-type=tpu7x-standard-4t" +
		" --image-project=ubuntu-os-accelerator-images --image-family=ubuntu-accel-2404-amd64-tpu-tpu7x --boot-disk-size=200GB --boot-disk-type=hyperdisk-balanced" +
		" --network-interface=network=default,nic-type=GVNIC --maintenance-policy=TERMINATE --provisioning-model=FLEX_START --max-run-duration=4h" +
		" --instance-termination-action=DELETE --reservation-affinity=none --no-shielded-secure-boot --scopes=cloud-platform" +
		" --metadata=enable-guest-attributes=TRUE --labels=multihost-job=t")
	g.describe("compute instance-templates describe t --region="+region, home+"/regions/"+region+"/instanceTemplates/t")
	g.run("alpha compute instance-groups managed create g --zone=" + zone + " --size=2 --base-instance-name=vm" +
		" --template=projects/" + sim.DefaultProject + "/regions/" + region + "/instanceTemplates/t --target-size-policy-mode=bulk" +
		" --workload-policy=projects/" + sim.DefaultProject + "/regions/" + region + "/resourcePolicies/p --default-action-on-vm-failure=do-nothing")
	g.run("compute instance-groups managed wait-until g --stable --zone=" + zone + " --timeout=60")
	g.describe("compute instance-groups managed describe g --zone="+zone, home+"/zones/"+zone+"/instanceGroupManagers/g")
	vms := s.Status().Groups[0].VMs
	g.wantTable("compute instance-groups managed list-instances g --zone="+zone+" --format=csv[no-heading](name,instanceStatus,currentAction)", [][]string{
		{vms[0].Name + ",RUNNING,NONE"}, {vms[1].Name + ",RUNNING,NONE"},
	})
	g.wantTable("compute instance-groups managed list", [][]string{
		{"NAME", "LOCATION", "SCOPE", "BASE_INSTANCE_NAME", "SIZE", "TARGET_SIZE", "INSTANCE_TEMPLATE", "AUTOSCALED"},
		{"g", zone, "zone", "vm", "2", "2", "t", "no"},
	})
	g.wantTable("compute instance-groups managed list-errors g --zone="+zone+" --format=csv[no-heading](error.code)", nil)
	g.wantTable("compute resource-policies list --format=csv[no-heading](name,region.basename())", [][]string{{"p," + region}})
	g.wantTable("compute machine-types list --zones="+zone+" --filter=name=tpu7x-standard-4t --format=csv[no-heading](name,zone,guestCpus)", [][]string{{"tpu7x-standard-4t," + zone + ",224"}})
	g.run("compute reservations create r --zone=" + zone + " --vm-count=4 --machine-type=tpu7x-standard-4t --require-specific-reservation")
	g.describe("compute reservations describe r --zone="+zone, home+"/zones/"+zone+"/reservations/r")
	g.wantTable("compute reservations list", [][]string{{"NAME", "IN_USE_COUNT", "COUNT", "ZONE", "SHARE_TYPE"}, {"r", "0", "4", zone, "LOCAL"}})
	g.run("compute reservations delete r --quiet --zone=" + zone)
	instance := " " + vms[0].Name + " --zone=" + zone
	g.describe("compute instances describe"+instance, home+"/zones/"+zone+"/instances/"+vms[0].Name)
	g.wantTable("compute instances get-guest-attributes"+instance+" --query-path=hostkeys/ --format=csv[no-heading](namespace,key)", [][]string{{"hostkeys,ssh-ed25519"}})
	g.run("compute instances add-metadata" + instance + " --metadata=greeting=hello")
	if out := g.run("compute instances get-serial-port-output" + instance); !strings.Contains(out, vms[0].Name+" login:") {
		t.Errorf("serial port: %q", out)
	}
	g.run("compute instance-groups managed resize g --size=0 --zone=" + zone)
	g.run("compute instance-groups managed delete g --quiet --zone=" + zone)
	g.run("compute instance-templates delete t --quiet --region=" + region)
	g.run("compute resource-policies delete p --quiet --region=" + region)
	if st := s.Status(); len(st.Groups) != 0 {
		t.Errorf("after the deletion there are %+v", st.Groups)
	}
}

// If Compute Engine refuses something, gcloud shows the text of the API.
func TestGcloudShowsRefusalsOfComputeEngine(t *testing.T) {
	t.Parallel()
	testkit.NeedGcloud(t)
	s, _, r := withParts(t)
	g := gcloudFor(t, s)
	_, status, errs := g.try(strings.Fields("compute instance-groups managed create g --zone=" + sim.DefaultZone + " --size=2 --template=projects/" + sim.DefaultProject +
		inRegion + "/instanceTemplates/t --workload-policy=projects/" + sim.DefaultProject + inRegion + "/resourcePolicies/p --default-action-on-vm-failure=do-nothing")...)
	if status == 0 || !strings.Contains(errs, "MIGs with TPU accelerator topology require BULK mode in target size policy") {
		t.Errorf("exit status %d: %s", status, errs)
	}
	inject(t, s, "no-capacity group=g")
	r.must("POST", groupsPath, groupOf("g", 2))
	_, status, errs = g.try(strings.Fields("compute instance-groups managed wait-until g --stable --timeout=1 --zone=" + sim.DefaultZone)...)
	if status == 0 || !strings.Contains(errs, "Timeout while waiting for group to become stable") {
		t.Errorf("exit status %d: %s", status, errs)
	}
}

// gcloud compute ssh takes a VM's host key from its guest attributes, and reaches the VM at
// its address.
func TestGcloudReachesVMs(t *testing.T) {
	t.Parallel()
	testkit.NeedGcloud(t)
	testkit.Need(t, "ssh", "ssh-keygen")
	s := begin(t, sim.Config{Dir: t.TempDir(), Step: time.Millisecond})
	r := newRest(t, s.URL())
	r.must("POST", inRegion+"/instanceTemplates", template(t, "t"))
	r.must("POST", inRegion+"/resourcePolicies", `{"name":"p","workloadPolicy":{"type":"HIGH_THROUGHPUT","acceleratorTopology":"2x2x2"}}`)
	names := r.running(s)
	g := gcloudFor(t, s)
	out, status, errs := g.try("compute", "ssh", "ann@"+names[1], "--zone="+sim.DefaultZone, "--quiet", "--internal-ip",
		fmt.Sprintf("--ssh-flag=-p%d", s.SSHPort()), "--command=hostname; id -un; exit 7")
	if want := names[1] + "\nann\n"; !strings.HasSuffix(out, want) || status != 7 { // ssh-keygen first prints something about its key
		t.Errorf("exit status %d, want 7, and output %q, want %q\n%s", status, out, want, errs)
	}
	known, err := os.ReadFile(filepath.Join(g.home, ".ssh", "google_compute_known_hosts"))
	if err != nil || !strings.Contains(string(known), "compute.") {
		t.Errorf("known hosts %q, %v", known, err)
	}
}
