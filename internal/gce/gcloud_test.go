package gce_test

import (
	"encoding/json"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/gce"
	"multihost/internal/provision"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simcloud"
)

// Our requests for the three parts of a slice equal gcloud's, field by field, with the
// differences in this list.
func TestGcloudAsksForTheSameParts(t *testing.T) {
	testkit.NeedGcloud(t)
	c := simcloud.Start(t, sim.Config{})
	s, p := c.Sim, gce.New(c.GCP, "")
	theirs, err := sim.Start(t.Context(), sim.Config{Dir: t.TempDir(), Step: time.Millisecond, Backend: "none"})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, theirs.Close()) })
	r := request(t)
	r.NodeCount, r.Nodes, r.Tier, r.MaxRunDuration = 1, []string{"m-0"}, provision.FlexStart, 4*time.Hour
	_, _, err = p.Create(t.Context(), r)
	testkit.Must(t, err)
	template := insertOf(t, s, "instanceTemplates")

	// gcloud reads texts of several lines from files.
	dir := t.TempDir()
	var metadata []string
	for key, value := range itemsOf(t, template) {
		file := filepath.Join(dir, key)
		testkit.Must(t, os.WriteFile(file, []byte(value), 0o600))
		metadata = append(metadata, key+"="+file)
	}
	const (
		region  = "us-central2"
		about   = "'multihost m multihost-run=m'"
		regions = "projects/" + sim.DefaultProject + "/regions/" + region
	)
	for _, command := range []string{
		"gcloud compute resource-policies create workload-policy m-b --type=high-throughput --accelerator-topology=2x2x2 --region=" + region + " --description='multihost m multihost-run=m multihost-user=ann'",
		"gcloud beta compute instance-templates create m-b --instance-template-region=" + region + " --description=" + about + " --machine-type=tpu7x-standard-4t" +
			" --image-project=ubuntu-os-accelerator-images --image-family=ubuntu-accel-2404-amd64-tpu-tpu7x --boot-disk-size=200GB --boot-disk-type=hyperdisk-balanced" +
			" --network-interface=network=default,nic-type=GVNIC --maintenance-policy=TERMINATE --provisioning-model=FLEX_START --max-run-duration=4h" +
			" --instance-termination-action=DELETE --reservation-affinity=none --no-shielded-secure-boot --scopes=cloud-platform" +
			" --metadata-from-file=" + strings.Join(metadata, ",") + " --labels=multihost-run=m,multihost-tool=multihost,multihost-user=ann",
		"gcloud alpha compute instance-groups managed create m-0 --zone=" + sim.DefaultZone + " --size=2 --base-instance-name=m-0 --description=" + about +
			" --template=" + regions + "/instanceTemplates/m-b --target-size-policy-mode=bulk --workload-policy=" + regions + "/resourcePolicies/m-b" +
			" --default-action-on-vm-failure=do-nothing --update-policy-type=opportunistic",
	} {
		testkit.RunGcloud(t, theirs.Env(), command)
	}

	if diff := cmp.Diff(itemsOf(t, insertOf(t, theirs, "instanceTemplates")), itemsOf(t, template)); diff != "" {
		t.Errorf("metadata (-gcloud +ours):\n%s", diff)
	}
	always := []testkit.Difference{
		testkit.Differ("query requestId", "UUID", "", "a request that is repeated after a lost answer must not make a second part; gcloud does not repeat"),
		testkit.Differ("query alt", "", "json", "the API's default"),
	}
	const root = "SIMULATOR/compute/v1/"
	inRegion := testkit.Differ("region", "", region, "it is in the path")
	for kind, want := range map[string][]testkit.Difference{
		"resourcePolicies": {inRegion},
		"instanceTemplates": {
			inRegion,
			testkit.Differ("properties.canIpForward", "", "false", "the API's default"),
			testkit.Differ("properties.disks.0.initializeParams.sourceImage", "projects/ubuntu-os-accelerator-images/global/images/ubuntu-accel-2404-amd64-tpu-tpu7x-v20261112",
				root+"projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2404-amd64-tpu-tpu7x", "all slices of a request boot one build, and it can be seen which"),
			testkit.Differ("properties.disks.0.mode", "", "READ_WRITE", "the API's default"),
			testkit.Differ("properties.disks.0.type", "", "PERSISTENT", "the API's default"),
			testkit.Differ("properties.networkInterfaces.0.accessConfigs.0.name", "External NAT", "external-nat", "any name will do"),
			testkit.Differ("properties.networkInterfaces.0.network", "projects/"+sim.DefaultProject+"/global/networks/default", root+"projects/"+sim.DefaultProject+"/global/networks/default", "a partial URL means the same"),
			testkit.Differ("properties.scheduling.automaticRestart", "", "true", "the API's default"),
		},
		"instanceGroupManagers": {
			testkit.Differ("zone", "", sim.DefaultZone, "it is in the path"),
			testkit.Differ("instanceTemplate", regions+"/instanceTemplates/m-b", root+regions+"/instanceTemplates/m-b", "a partial URL means the same"),
		},
	} {
		t.Run(kind, func(t *testing.T) {
			fields := func(s *sim.Server) map[string]string {
				request := insertOf(t, s, kind)
				all := testkit.RequestFields(t, s.URL(), request.Path, request.Body)
				maps.DeleteFunc(all, func(field, _ string) bool { return strings.HasPrefix(field, "properties.metadata.") })
				return all
			}
			testkit.CheckDifferences(t, append(want, always...), fields(s), fields(theirs))
		})
	}
}

// insertOf returns the request that made a resource of a kind.
func insertOf(t *testing.T, s *sim.Server, kind string) sim.Request {
	t.Helper()
	all := s.Requests()
	i := slices.IndexFunc(all, func(r sim.Request) bool {
		u, err := url.Parse(r.Path)
		return err == nil && r.Method == "POST" && path.Base(u.Path) == kind
	})
	if i < 0 {
		t.Fatalf("no request made one of %s", kind)
	}
	return all[i]
}

func itemsOf(t *testing.T, r sim.Request) map[string]string {
	t.Helper()
	var body struct {
		Properties struct {
			Metadata struct {
				Items []struct{ Key, Value string }
			}
		}
	}
	testkit.Must(t, json.Unmarshal([]byte(r.Body), &body))
	all := map[string]string{}
	for _, item := range body.Properties.Metadata.Items {
		all[item.Key] = item.Value
	}
	return all
}
