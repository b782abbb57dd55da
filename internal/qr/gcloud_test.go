package qr_test

import (
	"maps"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"

	"multihost/internal/nodes"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simcloud"
)

// The test runs the command of MaxText's documents and the one that --dry-run prints. With
// both, gcloud sends what we send, except for the differences listed here.
//
// The documents write --accelerator_type and --runtime_version. gcloud itself refuses these
// spellings as unrecognized. multihost accepts both.
func TestGcloudSendsTheSameRequest(t *testing.T) {
	t.Parallel()
	testkit.NeedGcloud(t)
	const node = "tpu.nodeSpec.0.node."
	always := []testkit.Difference{
		testkit.Differ("query requestId", "UUID", "", "a request that is repeated after a lost answer must not make a second resource; gcloud does not repeat"),
		testkit.Differ("query prettyPrint", "false", "", "Google's Go client asks for short answers"),
		testkit.Differ(node+"autocheckpointEnabled", "", "false", "the API's default"),
	}
	standard := testkit.Differ("provisioningModel", "", "STANDARD", "the API's default, which gcloud sends with every tier")
	noAccount := testkit.Differ(node+"serviceAccount", "", "map[]", "means the default account, as no field does")
	noMetadata := testkit.Differ(node+"metadata", "", "map[]", "as no field")
	key, err := nodes.KeyEntry("ada", "ssh-ed25519 "+simcloud.WireKey("ssh-ed25519", "of ada"))
	if err != nil {
		t.Fatal(err)
	}
	all := goldenRequests(t)
	soon := time.Now().Add(time.Hour).Truncate(time.Second)
	full := all["single-slice-full"]
	full.Subnetwork = "mtu9k" // a network that the simulator has
	full.ValidAfterTime, full.ValidUntilTime = soon, soon.Add(time.Hour)

	for _, test := range []struct {
		name    string
		command string
		request qr.Request
		flags   string // flags that replace both
		refused string // the API's error for gcloud; "": the API accepts the request
		want    []testkit.Difference
	}{
		{
			name: "the documents' command",
			command: "gcloud alpha compute tpus queued-resources create ${QR_ID} --node-prefix=${TPU_NAME} --node-count=${NUM_SLICES}" +
				" --accelerator-type=${ACCELERATOR_TYPE} --runtime-version=${RUNTIME_VERSION} --network=mtu9k --project=${PROJECT} --zone=${ZONE}",
			request: request(t, func(r *qr.Request) {
				r.RuntimeVersion = "tpu-ubuntu2204-base"
				r.Metadata = map[string]string{"ssh-keys": key}
			}),
			want: []testkit.Difference{
				testkit.Differ(node+"labels.multihost-tool", "multihost", "", "marks what multihost may delete"),
				testkit.Differ(node+"labels.multihost-run", "q7", "", "says which run it belongs to"),
				testkit.Differ(node+"labels.multihost-user", "ada", "", "says whose it is"),
				testkit.Differ(node+"metadata.ssh-keys", key, "", "lets us in from the first boot; gcloud writes it later, when it connects"),
				standard, noAccount, noMetadata,
			},
		},
		{
			name: "a plan, spot", command: all["spot"].Gcloud(sim.DefaultProject, testZone), request: all["spot"],
			want: []testkit.Difference{standard, noAccount, noMetadata},
		},
		// --node-id is the documents' way to ask for one slice. This row has every flag.
		{name: "a plan, one slice, everything", command: full.Gcloud(sim.DefaultProject, testZone), request: full, want: []testkit.Difference{standard}},
		// The same flags as a person types them, for gcloud and for multihost.
		{
			name: "typed, several slices by topology",
			flags: "--node-count=2 --node-prefix=t --workload-type=AVAILABILITY_OPTIMIZED --type=v4 --topology=2x2x1 --runtime-version=tpu-ubuntu2204-base --network=mtu9k" +
				" --reserved --min-duration=3600s --reservation-host-project=" + sim.DefaultProject + " --valid-after-time=" + soon.Format(time.RFC3339) +
				" --boot-disk=kms-key=projects/p/locations/l/keyRings/r/cryptoKeys/k,confidential-compute=True --shielded-secure-boot --range=192.168.0.0/29",
			want: []testkit.Difference{standard, noAccount, noMetadata},
		},
		{
			name: "typed, flex-start",
			flags: "--node-id=n --accelerator-type=V5LITEPOD-8 --runtime-version=v2-alpha-tpuv5-lite --network=mtu9k --internal-ips" +
				" --provisioning-model=flex-start --max-run-duration=1.5h --valid-until-duration=PT90M --metadata='^;^a=1,2;b=3' --labels=x=y",
			want: []testkit.Difference{noAccount},
		},
		{
			name: "typed, guaranteed for an interval",
			flags: "--node-id=n --accelerator-type=v4-8 --runtime-version=tpu-ubuntu2204-base --network=mtu9k --guaranteed --no-autocheckpoint-enabled --tags=a,b" +
				" --valid-after-time='" + soon.UTC().Format("2006-01-02 15:04:05 UTC") + "' --valid-until-time=" + soon.Add(time.Hour).UTC().Format("20060102T150405Z"),
			want: []testkit.Difference{standard, noAccount, noMetadata},
		},
		{
			name: "typed, two interfaces",
			flags: "--node-id=n --accelerator-type=v4-8 --runtime-version=tpu-ubuntu2204-base --network-config=network=mtu9k,external-ips=true" +
				" --network-config=network=mtu9k,subnetwork=mtu9k,external-ips=true",
			refused: "only one of network_config and network_configs",
			want: []testkit.Difference{
				testkit.Differ(node+"networkConfig.enableExternalIps", "", "true", "the API excludes it beside networkConfigs, so gcloud's request is refused"),
				testkit.Differ(node+"networkConfig.network", "", "default", "as above"),
				standard, noAccount, noMetadata,
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			ours, theirs := start(t, sim.Config{}), startPlain(t)
			if test.flags != "" {
				test.command = "gcloud alpha compute tpus queued-resources create q7 --project=${PROJECT} --zone=${ZONE} " + test.flags
				test.request = qr.Request{ID: "q7", NodeCount: 1}
				if strings.Contains(test.flags, "--node-count") {
					test.request.NodeCount = 0
				}
				if err := extra(test.flags, &test.request); err != nil {
					t.Fatal(err)
				}
			}
			ours.create(test.request)

			env := map[string]string{
				"PROJECT": sim.DefaultProject, "ZONE": testZone,
				"QR_ID": "q7", "TPU_NAME": "t", "NUM_SLICES": "2", "ACCELERATOR_TYPE": "v4-16", "RUNTIME_VERSION": "tpu-ubuntu2204-base",
			}
			maps.Copy(env, theirs.Env())
			if test.refused != "" {
				test.command += " 2>&1 | grep -q '" + test.refused + "'"
			}
			testkit.RunGcloud(t, env, test.command)
			testkit.CheckDifferences(t, append(test.want, always...), creation(t, ours.Sim), creation(t, theirs))
		})
	}
}

// startPlain runs a simulator for clients that are not ours.
func startPlain(t *testing.T) *sim.Server {
	t.Helper()
	s, err := sim.Start(t.Context(), sim.Config{
		Dir: t.TempDir(), Step: 5 * time.Millisecond, Workers: &simcloud.Backend{},
		Slices: []sim.SliceSpec{{Name: "other", Count: 1, Type: "v4-8", Network: "mtu9k", Foreign: true}},
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

// creation returns the fields of the request that made a queued resource.
func creation(t *testing.T, s *sim.Server) map[string]string {
	t.Helper()
	for _, r := range s.Requests() {
		u, err := url.Parse(r.Path)
		if err != nil {
			t.Fatal(err)
		}
		if r.Method != "POST" || path.Base(u.Path) != "queuedResources" {
			continue
		}
		return testkit.RequestFields(t, s.URL(), r.Path, r.Body)
	}
	t.Fatal("no request made a queued resource")
	return nil
}
