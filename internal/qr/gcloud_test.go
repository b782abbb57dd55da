package qr_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"

	"multihost/internal/qr"
	"multihost/internal/sim"
)

// A difference between what we send and what gcloud sends. An empty value
// means that the field is not there.
type difference struct {
	field, ours, gcloud string
	reason              string // for the reader
}

// gcloud sends what we send when it is given the command of MaxText's documents
// or the one that --dry-run prints, but for the differences listed.
//
// The documents write --accelerator_type and --runtime_version, which gcloud
// itself refuses as unrecognized; multihost takes both spellings.
func TestGcloudSendsTheSameRequest(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped by -short: a gcloud call takes about 2 s of CPU")
	}
	gcloud, err := exec.LookPath("gcloud")
	if err != nil {
		t.Skip("gcloud is not installed: what it sends is not compared with what we send")
	}
	const node = "tpu.nodeSpec.0.node."
	always := []difference{
		{"query requestId", "UUID", "", "a request that is repeated after a lost answer must not make a second resource; gcloud does not repeat"},
		{"query prettyPrint", "false", "", "Google's Go client asks for short answers"},
		{"provisioningModel", "", "STANDARD", "the API's default, which gcloud sends with every tier"},
		{node + "autocheckpointEnabled", "", "false", "the API's default"},
	}
	noAccount := difference{node + "serviceAccount", "", "map[]", "means the default account, as no field does"}
	noMetadata := difference{node + "metadata", "", "map[]", "as no field"}
	key, err := qr.KeyEntry("ada", "ssh-ed25519 "+wireKey("ssh-ed25519", "of ada"))
	if err != nil {
		t.Fatal(err)
	}
	all := goldenRequests(t)
	soon := time.Now().Add(time.Hour).Truncate(time.Second)
	full := all["single-slice-full"]
	full.Subnetwork = "mtu9k" // one that the simulator has
	full.ValidAfterTime, full.ValidUntilTime = soon, soon.Add(time.Hour)

	for _, test := range []struct {
		name    string
		command string
		request qr.Request
		want    []difference
	}{
		{
			name: "the documents' command",
			command: "gcloud alpha compute tpus queued-resources create ${QR_ID} --node-prefix=${TPU_NAME} --node-count=${NUM_SLICES}" +
				" --accelerator-type=${ACCELERATOR_TYPE} --runtime-version=${RUNTIME_VERSION} --network=mtu9k --project=${PROJECT} --zone=${ZONE}",
			request: request(t, func(r *qr.Request) {
				r.RuntimeVersion = "tpu-ubuntu2204-base"
				r.Metadata = map[string]string{"ssh-keys": key}
			}),
			want: []difference{
				{node + "labels.multihost-tool", "multihost", "", "marks what multihost may delete"},
				{node + "labels.multihost-run", "q7", "", "says which run it belongs to"},
				{node + "labels.multihost-user", "ada", "", "says whose it is"},
				{node + "metadata.ssh-keys", key, "", "lets us in from the first boot; gcloud writes it later, when it connects"},
				noAccount, noMetadata,
			},
		},
		{
			name: "a plan, spot", command: all["spot"].Gcloud(sim.DefaultProject, testZone), request: all["spot"],
			want: []difference{noAccount, noMetadata},
		},
		// The documents' way to ask for one slice, --node-id, with every flag
		// that we know.
		{name: "a plan, one slice, everything", command: full.Gcloud(sim.DefaultProject, testZone), request: full},
	} {
		t.Run(test.name, func(t *testing.T) {
			ours, theirs := start(t, sim.Config{}), startPlain(t)
			ours.create(test.request)

			cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(test.command, "gcloud", gcloud, 1))
			cmd.Env = []string{
				"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "PROJECT=" + sim.DefaultProject, "ZONE=" + testZone,
				"QR_ID=q7", "TPU_NAME=t", "NUM_SLICES=2", "ACCELERATOR_TYPE=v4-16", "RUNTIME_VERSION=tpu-ubuntu2204-base",
			}
			for k, v := range theirs.Env() {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", test.command, err, out)
			}
			found := compareFields(creation(t, ours.sim), creation(t, theirs))
			checkDifferences(t, append(test.want, always...), found)
		})
	}
}

// startPlain runs a simulator for other clients than ours.
func startPlain(t *testing.T) *sim.Server {
	t.Helper()
	s, err := sim.Start(t.Context(), sim.Config{
		Dir: t.TempDir(), Step: 5 * time.Millisecond, Workers: &fakeBackend{},
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

// creation returns, by field, the request that made a queued resource.
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
		var body any
		if err := json.Unmarshal([]byte(r.Body), &body); err != nil {
			t.Fatal(err)
		}
		fields := map[string]string{"path": u.Path}
		for k, v := range u.Query() {
			fields["query "+k] = uuids.ReplaceAllString(strings.Join(v, ","), "UUID")
		}
		flatten("", body, fields)
		return fields
	}
	t.Fatal("no request made a queued resource")
	return nil
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// flatten puts every value below v into fields, by its path. Empty objects and
// lists count as values.
func flatten(name string, v any, fields map[string]string) {
	below := func(key string, v any) { flatten(strings.TrimPrefix(name+"."+key, "."), v, fields) }
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
	fields[name] = fmt.Sprint(v)
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
