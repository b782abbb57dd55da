package createflags_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/qr"
	"multihost/internal/qr/createflags"
	"multihost/internal/tpu"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var sameRequest = cmpopts.IgnoreUnexported(qr.Request{})

// now is when tests make requests.
var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func v4(t *testing.T) tpu.Type {
	t.Helper()
	v4, err := tpu.ParseType("v4-8")
	if err != nil {
		t.Fatal(err)
	}
	return v4
}

// extra adds flags of gcloud to r, or leaves r unchanged and returns an error.
func extra(args string, r *qr.Request) error {
	flags := createflags.NewReader(*r, now)
	if err := flags.Extra(args); err != nil {
		return err
	}
	got, wrong := flags.Request()
	if len(wrong) > 0 {
		return wrong[0]
	}
	*r = got
	return nil
}

func TestGcloudFlagsBecomeTheRequest(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "start up.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := func() qr.Request { return qr.Request{ID: "q", NodeCount: 2, Type: v4(t)} }
	tests := map[string]struct {
		args string
		want func(*qr.Request)
	}{
		"nothing":         {"", func(*qr.Request) {}},
		"the seeds' flag": {"--network=mtu9k", func(r *qr.Request) { r.Network = "mtu9k" }},
		"the seeds' request": {"--node-prefix=t --node-count=2 --accelerator_type=v4-8 --runtime_version=tpu-vm-v4-base --network=mtu9k",
			func(r *qr.Request) { r.NodePrefix, r.RuntimeVersion, r.Network = "t", "tpu-vm-v4-base", "mtu9k" }},
		"space form, underscores, booleans": {"--service_account a@b.c --internal-ips --no-shielded-secure-boot --autocheckpoint_enabled=True",
			func(r *qr.Request) { r.ServiceAccount, r.InternalIPs, r.Autocheckpoint = "a@b.c", true, true }},
		"shell quoting": {`--description='two words' --labels team="a",x=y`,
			func(r *qr.Request) {
				r.Description, r.Labels = "two words", map[string]string{"team": "a", "x": "y"}
			}},
		"other separator": {`--metadata=^;^a=1,2;b=3`, func(r *qr.Request) { r.Metadata = map[string]string{"a": "1,2", "b": "3"} }},
		"file": {"--metadata-from-file=startup-script='" + script + "'",
			func(r *qr.Request) { r.Metadata = map[string]string{"startup-script": "#!/bin/sh\n"} }},
		"spot until":                           {"--spot --valid-until-duration=6h", func(r *qr.Request) { r.Tier, r.ValidUntilDuration = qr.Spot, 6*time.Hour }},
		"flex":                                 {"--provisioning-model=FLEX_START --max-run-duration=2d", func(r *qr.Request) { r.Tier, r.MaxRunDuration = qr.FlexStart, 48*time.Hour }},
		"standard":                             {"--provisioning-model=standard", func(r *qr.Request) { r.Tier = qr.OnDemand }},
		"reserved host":                        {"--reserved --reservation-host-folder=7", func(r *qr.Request) { r.Tier, r.Reservation = qr.Reserved, "folders/7/reservations/-" }},
		"reserved is guaranteed, and standard": {"--guaranteed --provisioning-model=standard --reserved", func(r *qr.Request) { r.Tier = qr.Reserved }},
		"min-duration is guaranteed":           {"--min-duration=3600s", func(r *qr.Request) { r.Tier, r.MinDuration = qr.Guaranteed, time.Hour }},
		"no tier, in words":                    {"--no-spot --guaranteed=false", func(*qr.Request) {}},
		"both ends": {"--valid-after-time=+1h --valid-until-time=2026-01-03T12:00:00+02:00",
			func(r *qr.Request) {
				r.ValidAfterTime, r.ValidUntilTime = now.Add(time.Hour), time.Date(2026, 1, 3, 10, 0, 0, 0, time.UTC)
			}},
		"interfaces": {"--network-config network=a,external-ips=True --network-config=subnetwork=b", func(r *qr.Request) {
			r.Interfaces = []qr.Interface{{Network: "a", ExternalIPs: true}, {Subnetwork: "b"}}
		}},
		"boot disk": {"--boot-disk=kms-key=k,confidential-compute=true", func(r *qr.Request) { r.BootDisk = qr.BootDisk{KMSKey: "k", Confidential: true} }},
		"workload":  {"--workload-type=availability-optimized", func(r *qr.Request) { r.WorkloadType = "AVAILABILITY_OPTIMIZED" }},
		"disks": {"--data-disk source=projects/p/zones/z/disks/a,mode=read-only --data-disk=source=projects/p/zones/z/disks/b",
			func(r *qr.Request) {
				r.DataDisks = []qr.DataDisk{{Source: "projects/p/zones/z/disks/a", ReadOnly: true}, {Source: "projects/p/zones/z/disks/b"}}
			}},
		"chip-based type":  {"--type=v4 --topology=2x2x1", func(r *qr.Request) { r.ByTopology = true }},
		"same value again": {"--tags=a,b --tags=a,b --async --quiet", func(r *qr.Request) { r.Tags = []string{"a", "b"} }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, want := base(), base()
			tt.want(&want)
			if err := extra(tt.args, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, sameRequest, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("request differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGcloudFlagsThatAreRefusedAreNamed(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ args, want string }{
		"unknown":                  {"--netwrok=x", "unknown flag --netwrok: did you mean --network?"},
		"far from any":             {"--frobnicate", "unknown flag --frobnicate"},
		"positional":               {"q7 --spot", `"q7" is not a flag`},
		"no value":                 {"--network", "--network needs a value"},
		"flag as value":            {"--network --spot", "--network needs a value"},
		"other type":               {"--accelerator-type=v4-16", "--accelerator-type=v4-16 contradicts --tpu-type, which is v4-8"},
		"other count":              {"--node-count=3", "--node-count=3 contradicts the number of slices, which is 2"},
		"two tiers":                {"--spot --best-effort", "--spot and --best-effort exclude each other"},
		"model and tier":           {"--spot --provisioning-model=standard", "--spot and --provisioning-model=standard exclude each other"},
		"given twice":              {"--network=a --network=b", `--network is given twice, as "a" and "b"`},
		"boolean":                  {"--spot=yes", "--spot=yes: write true or false"},
		"no- with value":           {"--no-internal-ips=true", "takes no value"},
		"project":                  {"--project=p", "give it to multihost itself, as --project"},
		"ours":                     {"--labels=multihost-run=x", "multihost-run is set by multihost itself"},
		"label set already":        {"--labels=mine=b", "--labels sets mine, which is set already"},
		"dict":                     {"--metadata=a", `"a" is not KEY=VALUE`},
		"missing file":             {"--metadata-from-file=a=/nonexistent/x", "no such file"},
		"bad duration":             {"--max-run-duration=3", "--max-run-duration: parse duration"},
		"bad time":                 {"--valid-until-time=tomorrow", `--valid-until-time: parse time "tomorrow"`},
		"unknown type":             {"--accelerator-type=v9-8", "no such type"},
		"topology without type":    {"--topology=2x2x1", "belong together"},
		"interfaces and network":   {"--network-config=network=a --internal-ips", "--network-config and --internal-ips exclude each other"},
		"interface":                {"--network-config=net=a", `unknown key "net": use external-ips, network, subnetwork`},
		"boot disk without key":    {"--boot-disk=confidential-compute=true", "it has no kms-key="},
		"time and duration":        {"--valid-until-time=+1h --valid-until-duration=1h", "--valid-until-duration and --valid-until-time exclude each other"},
		"two hosts":                {"--reservation-host-project=a --reservation-host-folder=b", "--reservation-host-project and --reservation-host-folder exclude each other"},
		"host and reservation":     {"--reservation=a --reservation-host-folder=b", "--reservation and --reservation-host-folder exclude each other"},
		"host, then reservation":   {"--reservation-host-folder=b --reservation=a", "--reservation and --reservation-host-folder exclude each other"},
		"type twice":               {"--type=v4 --topology=2x2x1 --accelerator-type=v4-8", "--accelerator-type and --type exclude each other"},
		"unknown topology":         {"--type=v4 --topology=9x9x9", "no accelerator type has this topology: use one of 2x2x1, "},
		"unknown chip":             {"--type=v9 --topology=2x2", "no such type of chip"},
		"gcloud's own":             {"--format=json", "--format of gcloud is not supported"},
		"open quote":               {"--network='a", `parse "--network='a"`},
		"tier against the request": {"--reserved", "--spot and --reserved exclude each other"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			make := func() qr.Request {
				return qr.Request{ID: "q", NodeCount: 2, Type: v4(t), Labels: map[string]string{"mine": "a"}}
			}
			got := make()
			if strings.HasPrefix(name, "tier against") {
				got.Tier = qr.Spot
			}
			before := got
			err := extra(tt.args, &got)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if diff := cmp.Diff(before, got, sameRequest); diff != "" {
				t.Errorf("the request was changed:\n%s", diff)
			}
		})
	}
}
