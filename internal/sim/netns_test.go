//go:build linux

package sim_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

// Workers of the netns backend have the addresses, the MTU and the metadata that the API
// and the instance metadata server show.
func TestNetnsWorkers(t *testing.T) {
	simworker.NeedNetns(t)
	signer, line := newKey(t)
	s := begin(t, sim.Config{
		Dir: t.TempDir(), Backend: "netns", Step: time.Millisecond,
		Slices:          []sim.SliceSpec{{Name: "t", Count: 2, Type: "v5litepod-16", Network: "mtu9k"}},
		ProjectMetadata: map[string]string{"ssh-keys": "ann:" + line},
	})
	svc := alpha(t, s)
	var nodes []*tpualpha.Node
	for _, id := range []string{"t-0", "t-1"} {
		n, err := svc.Nodes.Get(parent + "/nodes/" + id).Do()
		if err != nil || len(n.NetworkEndpoints) != 4 {
			t.Fatalf("got %+v, %v", n, err)
		}
		nodes = append(nodes, n)
	}
	ask := func(n *tpualpha.Node, i int, command string) string {
		t.Helper()
		hostKey, _ := guestAttributes(t, svc, n.Name, i)
		addr := net.JoinHostPort(n.NetworkEndpoints[i].AccessConfig.ExternalIp, fmt.Sprint(s.SSHPort()))
		return sshAs(t, addr, "ann", hostKey, signer, command)
	}
	const metadata = "get() { curl -s -H 'Metadata-Flavor: Google' http://metadata.google.internal/computeMetadata/v1/$1; echo; }\n"
	first, last := nodes[0].NetworkEndpoints[0].IpAddress, nodes[1].NetworkEndpoints[3].IpAddress
	var endpoints []string
	for _, e := range nodes[1].NetworkEndpoints {
		endpoints = append(endpoints, "unknown:unknown:"+e.IpAddress)
	}
	_, hostname := guestAttributes(t, svc, nodes[1].Name, 3)
	want := strings.Join([]string{
		hostname, hostname, "8896", "3", "3", "v5litepod-16", strings.Join(endpoints, ","), last,
		sim.DefaultProject, "projects/123456789012/zones/" + sim.DefaultZone,
		`{"access_token":"ya29.simulated-t-1-3-ID","expires_in":SECONDS,"token_type":"Bearer"}`,
		"https://www.googleapis.com/auth/cloud-platform", "", "123456789012-compute@developer.gserviceaccount.com", "",
	}, "\n")
	got := ask(nodes[1], 3, metadata+`hostname; get instance/name; cat /sys/class/net/ens8/mtu
for a in agent-worker-number worker-id accelerator-type worker-network-endpoints; do get instance/attributes/$a; done
get instance/network-interfaces/0/ip; get project/project-id; get instance/zone
get instance/service-accounts/default/token; get instance/service-accounts/default/scopes; get instance/service-accounts/default/email`)
	got = regexp.MustCompile(`-[0-9a-f]+","expires_in":\d+`).ReplaceAllString(got, `-ID","expires_in":SECONDS`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	env := ask(nodes[1], 3, metadata+"get instance/attributes/tpu-env")
	for _, line := range []string{
		"ACCELERATOR_TYPE: 'v5litepod-16'", "TOPOLOGY: '4x4'", "WORKER_ID: '3'", "NODE_ID: 't-1'", "HOST_BOUNDS: '2,2,1'", "CHIPS_PER_HOST_BOUNDS: '2,2,1'",
		"MEGASCALE_NUM_SLICES: '2'", "MEGASCALE_SLICE_ID: '1'", "MEGASCALE_COORDINATOR_ADDRESS: '" + first + ":8080'",
	} {
		if !strings.Contains(env, line+"\n") {
			t.Errorf("tpu-env has no line %q:\n%s", line, env)
		}
	}
	// The way between slices, the refusal of a request without the header, and directories.
	got = ask(nodes[1], 3, metadata+"ping -q -c1 -W20 "+first+` >/dev/null && echo reached
curl -s -o /dev/null -w '%{http_code}\n' http://metadata.google.internal/computeMetadata/v1/instance/name
curl -s -o /dev/null -w '%{http_code}\n' -H 'Metadata-Flavor: Google' http://metadata.google.internal/computeMetadata/v1/instance/none
get instance/service-accounts/; get 'project/?recursive=true' | tr , '\n' | head -1`)
	want = "reached\n403\n404\n123456789012-compute@developer.gserviceaccount.com/\ndefault/\n\n" + `{"attributes":{"ssh-keys":`
	if !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// sshAs runs one command.
func sshAs(t *testing.T, addr, login string, hostKey ssh.PublicKey, signer ssh.Signer, command string) string {
	t.Helper()
	client, err := ssh.Dial("tcp", addr, &ssh.ClientConfig{
		User: login, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, Timeout: 2 * time.Minute,
		HostKeyCallback: ssh.FixedHostKey(hostKey), HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	out, err := session.Output(command)
	if err != nil {
		t.Errorf("run %q: %v", command, err)
	}
	return string(out)
}

// The next command removes all that a killed simulator has left, even if another process
// has its process id now.
func TestNetnsKilledSimulator(t *testing.T) {
	simworker.NeedNetns(t)
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "SIM_TEST_HOLD="+dir)
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
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Errorf("simulator says %q, %v", line, err)
	}
	client, err := sim.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the simulator to be a zombie", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") Z ")
	})
	if _, err := sim.Open(dir); !errors.Is(err, sim.ErrNotRunning) {
		t.Errorf("open: got %v", err)
	}
	_ = cmd.Wait() // killed
	if _, err := os.Stat(filepath.Join(dir, "sim.json")); err == nil {
		t.Error("state file is left")
	}
	if left, err := os.ReadDir(filepath.Join(dir, "workers")); err != nil || len(left) > 0 {
		t.Errorf("files of workers are left: %v, %v", left, err)
	}
	cmdlines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, path := range cmdlines {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), dir) {
			t.Errorf("process left: %q", text)
		}
	}
	if err := client.Down(t.Context()); err != nil {
		t.Errorf("down of a dead simulator: %v", err)
	}
}

// The real machine has one route to an address, so simulators that run at the same time
// must not share any, not even for port 22, on which a worker's own sshd listens.
func TestSimulatorsBesideEachOtherHaveAddressesOfTheirOwn(t *testing.T) {
	simworker.NeedNetns(t)
	signer, line := newKey(t)
	seen := map[string]bool{}
	for _, backend := range []string{"netns", "process", "netns", "process"} {
		s := begin(t, sim.Config{
			Dir: t.TempDir(), Backend: backend, Step: time.Millisecond, SSHPort: 22,
			Slices:          []sim.SliceSpec{{Name: "t", Count: 1, Type: "v4-16"}},
			ProjectMetadata: map[string]string{"ssh-keys": "ann:" + line},
		})
		svc := alpha(t, s)
		n, err := svc.Nodes.Get(parent + "/nodes/t").Do()
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range n.NetworkEndpoints {
			hostKey, _ := guestAttributes(t, svc, n.Name, i)
			here := map[string]bool{e.IpAddress: true, e.AccessConfig.ExternalIp: true}
			for addr := range here {
				if seen[addr] {
					t.Errorf("%s, worker %d: %s is another simulator's", backend, i, addr)
				}
				seen[addr] = true
				want := s.Status().Nodes[0].Workers[i].Hostname
				if got := strings.TrimSpace(sshAs(t, net.JoinHostPort(addr, "22"), "ann", hostKey, signer, "hostname")); got != want {
					t.Errorf("%s, worker %d at %s: got %q, want %q", backend, i, addr, got, want)
				}
			}
		}
	}
}
