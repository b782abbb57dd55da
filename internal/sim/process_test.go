package sim_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// begin runs a simulator until the end of the test.
func begin(t *testing.T, cfg sim.Config) *sim.Server {
	t.Helper()
	s, err := sim.Start(t.Context(), cfg)
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

// A key in the node's metadata can log in to every worker, another key cannot. A worker's
// host key is the one in its guest attributes.
func TestWorkersAnswerSSHToMetadataKeysOnly(t *testing.T) {
	t.Parallel()
	s := begin(t, sim.Config{Dir: t.TempDir(), Step: time.Millisecond, Slices: []sim.SliceSpec{{Name: "t", Count: 2, Type: "v4-16"}}})
	svc := alpha(t, s)
	signer, line := newKey(t)
	other, _ := newKey(t)
	for _, name := range []string{"t-0", "t-1"} {
		patch := &tpualpha.Node{Metadata: map[string]string{"ssh-keys": "user:" + line}}
		if _, err := svc.Nodes.Patch(parent+"/nodes/"+name, patch).UpdateMask("metadata").Do(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "metadata", func() bool {
			n, err := svc.Nodes.Get(parent + "/nodes/" + name).Do()
			return err == nil && n.Metadata["ssh-keys"] != ""
		})
		n, err := svc.Nodes.Get(parent + "/nodes/" + name).Do()
		if err != nil || len(n.NetworkEndpoints) != 2 {
			t.Fatalf("got %+v, %v", n, err)
		}
		for i, e := range n.NetworkEndpoints {
			hostKey, hostname := guestAttributes(t, svc, n.Name, i)
			addr := net.JoinHostPort(e.IpAddress, fmt.Sprint(s.SSHPort()))
			out, err := sshRun(addr, hostKey, signer, "hostname")
			if err != nil || strings.TrimSpace(out) != hostname {
				t.Errorf("%s worker %d: got %q, %v, want %q", name, i, out, err, hostname)
			}
			if _, err := sshRun(addr, hostKey, other, "true"); err == nil {
				t.Errorf("%s worker %d let a foreign key in", name, i)
			}
		}
	}
}

func newKey(t *testing.T) (ssh.Signer, string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))) + " user"
}

func guestAttributes(t *testing.T, svc *tpualpha.ProjectsLocationsService, node string, i int) (key ssh.PublicKey, hostname string) {
	t.Helper()
	reply, err := svc.Nodes.GetGuestAttributes(node, &tpualpha.GetGuestAttributesRequest{QueryPath: "hostkeys/", WorkerIds: []string{fmt.Sprint(i)}}).Do()
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range reply.GuestAttributes[0].QueryValue.Items {
		switch item.Key {
		case "hostname":
			hostname = item.Value
		case "ssh-ed25519":
			b, err := base64.StdEncoding.DecodeString(item.Value)
			if err == nil {
				key, err = ssh.ParsePublicKey(b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return key, hostname
}

func sshRun(addr string, hostKey ssh.PublicKey, signer ssh.Signer, command string) (string, error) {
	client, err := ssh.Dial("tcp", addr, &ssh.ClientConfig{
		User: "user", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, Timeout: 2 * time.Minute,
		HostKeyCallback: ssh.FixedHostKey(hostKey), HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
	})
	if err != nil {
		return "", err
	}
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return "", err
	}
	defer session.Close()
	out, err := session.CombinedOutput(command)
	return string(out), err
}

// Not parallel, because it counts goroutines.
func TestCloseLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	dir := t.TempDir()
	s, err := sim.Start(t.Context(), sim.Config{Dir: dir, Step: time.Hour, Workers: &fakeWorkers{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alpha(t, s).QueuedResources.Create(parent, request(2, "v4-8")).QueuedResourceId("q").Do(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
	if _, err := os.Stat(filepath.Join(dir, "sim.json")); !os.IsNotExist(err) {
		t.Errorf("the state file is left: %v", err)
	}
}
