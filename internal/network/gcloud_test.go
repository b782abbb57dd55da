package network_test

import (
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"testing"

	"multihost/internal/network"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// The test runs gcloud with the commands of MaxText's documents and with one that a Plan prints.
// gcloud sends the same requests as multihost, except for the listed differences.
func TestGcloudSendsTheSameRequests(t *testing.T) {
	t.Parallel()
	testkit.NeedGcloud(t)
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

	idempotent := testkit.Differ("query requestId", "UUID", "", "a request that is repeated after a lost answer must not fail as a duplicate; gcloud does not repeat")
	format := testkit.Differ("query alt", "", "json", "the API's default")
	for _, test := range []struct {
		command, resource, name string
		want                    []testkit.Difference
	}{
		{
			"gcloud compute networks create mtu9k --mtu=8896 --project=${PROJECT} --subnet-mode=auto --bgp-routing-mode=regional",
			"networks", "mtu9k",
			[]testkit.Difference{idempotent, format, testkit.Differ(
				"description", "made by multihost; remove with: multihost network delete mtu9k", "", "marks what multihost may delete",
			)},
		},
		{
			"gcloud compute firewall-rules create mtu9kfw --network mtu9k --allow tcp,icmp,udp --project=${PROJECT}",
			"firewalls", "mtu9kfw",
			[]testkit.Difference{idempotent, format, networkLink(), testkit.Differ(
				"description", "made by multihost for network mtu9k", "", "marks what multihost may delete",
			)},
		},
		{
			plan.Actions[planned].Gcloud, "firewalls", "mtu9k-ssh",
			[]testkit.Difference{idempotent, format, networkLink()},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			env := theirs.Env()
			env["PROJECT"] = sim.DefaultProject
			testkit.RunGcloud(t, env, test.command)
			testkit.CheckDifferences(t, test.want, insertion(t, s, test.resource, test.name), insertion(t, theirs, test.resource, test.name))
		})
	}
}

func networkLink() testkit.Difference {
	const name = "/compute/v1/projects/" + sim.DefaultProject + "/global/networks/mtu9k"
	return testkit.Differ(
		"network", "https://www.googleapis.com"+name, "SIMULATOR"+name,
		"gcloud builds links from the endpoint that it is pointed at; any link to the network will do",
	)
}

// insertion returns the request that made a resource, by field.
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
		return testkit.RequestFields(t, s.URL(), r.Path, r.Body)
	}
	t.Fatalf("no request made %s %s", resource, name)
	return nil
}
