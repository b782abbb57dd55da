package network_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"multihost/internal/network"
	"multihost/internal/sim"
)

// A difference between what we send and what gcloud sends. An empty value
// means that the field is not there.
type difference struct {
	field, ours, gcloud string
	reason              string // for the reader
}

// The commands of MaxText's documents, and one that our own plan prints, make
// gcloud send what we send, but for the differences listed.
func TestGcloudSendsTheSameRequests(t *testing.T) {
	t.Parallel()
	gcloud := lookGcloud(t)
	ours, _, s, _ := startSim(t)
	_, _, theirs, _ := startSim(t)

	plan, err := ours.Plan(t.Context(), network.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := ours.Apply(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	seed := network.FirewallRule{Name: "mtu9kfw", Network: "mtu9k", Allow: []string{"tcp", "icmp", "udp"}}
	if _, err := ours.CreateFirewall(t.Context(), seed); err != nil {
		t.Fatal(err)
	}
	planned := slices.IndexFunc(plan.Actions, func(a network.Action) bool { return a.Name == "mtu9k-ssh" })

	idempotent := difference{"query requestId", "UUID", "", "a request that is repeated after a lost answer must not fail as a duplicate; gcloud does not repeat"}
	format := difference{"query alt", "", "json", "the API's default"}
	for _, test := range []struct {
		command, resource, name string
		want                    []difference
	}{
		{
			"gcloud compute networks create mtu9k --mtu=8896 --project=${PROJECT} --subnet-mode=auto --bgp-routing-mode=regional",
			"networks", "mtu9k",
			[]difference{idempotent, format, {
				"description", "made by multihost; remove with: multihost network delete mtu9k", "", "marks what multihost may delete",
			}},
		},
		{
			"gcloud compute firewall-rules create mtu9kfw --network mtu9k --allow tcp,icmp,udp --project=${PROJECT}",
			"firewalls", "mtu9kfw",
			[]difference{idempotent, format, networkLink(), {
				"description", "made by multihost for network mtu9k", "", "marks what multihost may delete",
			}},
		},
		{
			plan.Actions[planned].Gcloud, "firewalls", "mtu9k-ssh",
			[]difference{idempotent, format, networkLink()},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			runGcloud(t, gcloud, theirs, test.command)
			got := compareFields(insertion(t, s, test.resource, test.name), insertion(t, theirs, test.resource, test.name))
			checkDifferences(t, test.want, got)
		})
	}
}

func networkLink() difference {
	const name = "/compute/v1/projects/" + sim.DefaultProject + "/global/networks/mtu9k"
	return difference{
		"network", "https://www.googleapis.com" + name, "SIMULATOR" + name,
		"gcloud builds links from the endpoint that it is pointed at; any link to the network will do",
	}
}

func lookGcloud(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped by -short: a gcloud call takes about 2 s of CPU")
	}
	file, err := exec.LookPath("gcloud")
	if err != nil {
		t.Skip("gcloud is not installed: what it sends is not compared with what we send")
	}
	return file
}

// runGcloud runs a command line that begins with gcloud against s, with a
// configuration and a home of its own.
func runGcloud(t *testing.T, gcloud string, s *sim.Server, line string) {
	t.Helper()
	line = strings.Replace(line, "gcloud", gcloud, 1)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "PROJECT=" + sim.DefaultProject}
	for k, v := range s.Env() {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// insertion returns, by field, the request that made a resource.
func insertion(t *testing.T, s *sim.Server, resource, name string) map[string]string {
	t.Helper()
	for _, r := range s.Requests() {
		u, err := url.Parse(r.Path)
		if err != nil {
			t.Fatal(err)
		}
		var body map[string]any
		if r.Method != "POST" || path.Base(u.Path) != resource || json.Unmarshal([]byte(r.Body), &body) != nil || body["name"] != name {
			continue
		}
		fields := map[string]string{"path": u.Path}
		for k, v := range u.Query() {
			fields["query "+k] = uuids.ReplaceAllString(strings.Join(v, ","), "UUID")
		}
		flatten("", body, s.URL(), fields)
		return fields
	}
	t.Fatalf("no request made %s %s", resource, name)
	return nil
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// flatten puts every value below v into fields, by its path. Empty objects and
// lists count as values.
func flatten(name string, v any, endpoint string, fields map[string]string) {
	below := func(key string, v any) { flatten(strings.TrimPrefix(name+"."+key, "."), v, endpoint, fields) }
	switch v := v.(type) {
	case map[string]any:
		for k, item := range v {
			below(k, item)
		}
		if len(v) > 0 {
			return
		}
	case []any:
		for i, item := range v {
			below(fmt.Sprint(i), item)
		}
		if len(v) > 0 {
			return
		}
	}
	fields[name] = strings.ReplaceAll(fmt.Sprint(v), endpoint, "SIMULATOR")
}

func compareFields(ours, gcloud map[string]string) map[string]difference {
	all := maps.Clone(ours)
	maps.Copy(all, gcloud)
	found := map[string]difference{}
	for field := range all {
		if ours[field] != gcloud[field] {
			found[field] = difference{field: field, ours: ours[field], gcloud: gcloud[field]}
		}
	}
	return found
}

// checkDifferences requires that those that were found are those listed.
func checkDifferences(t *testing.T, want []difference, found map[string]difference) {
	t.Helper()
	for _, d := range want {
		got, ok := found[d.field]
		delete(found, d.field)
		switch {
		case !ok:
			t.Errorf("%s: listed as a difference, and is none", d.field)
		case got.ours != d.ours || got.gcloud != d.gcloud:
			t.Errorf("%s: we send %q, gcloud %q; listed as %q and %q", d.field, got.ours, got.gcloud, d.ours, d.gcloud)
		}
	}
	for field, d := range found {
		t.Errorf("%s: we send %q, gcloud %q, and the difference is not listed", field, d.ours, d.gcloud)
	}
}
