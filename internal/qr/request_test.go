package qr_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/tpu"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func mustType(t *testing.T, name string) tpu.Type {
	t.Helper()
	typ, err := tpu.ParseType(name)
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

// request returns a legal request for several slices, after change.
func request(t *testing.T, change func(*qr.Request)) qr.Request {
	t.Helper()
	r := qr.Request{ID: "q7", NodeCount: 2, NodePrefix: "t", Type: mustType(t, "v4-16"), Network: "mtu9k"}
	r.Mark("q7", "ada")
	if change != nil {
		change(&r)
	}
	return r
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); rewrite with -update:\n%s", path, diff)
	}
}

// goldenRequests returns a request for every capacity tier, and one with everything else.
func goldenRequests(t *testing.T) map[string]qr.Request {
	tier := func(tier qr.Tier, more func(*qr.Request)) qr.Request {
		return request(t, func(r *qr.Request) {
			r.Tier = tier
			if more != nil {
				more(r)
			}
		})
	}
	return map[string]qr.Request{
		"default":   tier("", nil),
		"on-demand": tier(qr.OnDemand, nil),
		"spot":      tier(qr.Spot, func(r *qr.Request) { r.ValidUntilDuration = 6 * time.Hour }),
		"best-effort": tier(qr.BestEffort, func(r *qr.Request) {
			r.Autocheckpoint = true
		}),
		"guaranteed": tier(qr.Guaranteed, func(r *qr.Request) { r.MinDuration = 90 * time.Minute }),
		"reserved":   tier(qr.Reserved, nil),
		"reservation": tier("", func(r *qr.Request) {
			r.Reservation = "big-one"
		}),
		"reservation-bound": tier(qr.ReservationBound, func(r *qr.Request) {
			r.Reservation = "projects/other/reservations/big-one"
		}),
		"flex-start": tier(qr.FlexStart, func(r *qr.Request) {
			r.Type = mustType(t, "v6e-16")
			r.MaxRunDuration = qr.MaxFlexStart
		}),
		"topology": tier(qr.Reserved, func(r *qr.Request) {
			r.Type, r.ByTopology, r.RuntimeVersion = mustType(t, "v5litepod-16"), true, "v2-alpha-tpuv5-lite"
			r.Network, r.MinDuration = "", time.Hour
			r.Interfaces = []qr.Interface{{Network: "mtu9k", ExternalIPs: true}, {Network: "mtu9k", Subnetwork: "mtu9k"}}
			r.BootDisk = qr.BootDisk{KMSKey: "projects/p/locations/l/keyRings/r/cryptoKeys/k", Confidential: true}
			r.WorkloadType = "AVAILABILITY_OPTIMIZED"
			r.ValidAfterDuration, r.ValidUntilDuration = time.Hour, 6*time.Hour
		}),
		"single-slice-full": {
			ID: "q8", NodeCount: 1, Type: mustType(t, "v5litepod-8"), RuntimeVersion: "v2-alpha-tpuv5-lite",
			Description: "it's mine", Network: "mtu9k", Subnetwork: "mtu9k-sub", InternalIPs: true,
			ServiceAccount: "trainer@p.iam.gserviceaccount.com", Scopes: []string{"cloud-platform", "storage-ro"},
			Labels:         map[string]string{"team": "vision", "cost": "a_1"},
			Metadata:       map[string]string{"startup-script": "#!/bin/bash\necho \"a, b; c\"\n", "ssh-keys": "ada:ssh-ed25519 AAAA ada"},
			Tags:           []string{"tpu", "train"},
			DataDisks:      []qr.DataDisk{{Source: "projects/p/zones/z/disks/d1"}, {Source: "projects/p/zones/z/disks/d2", ReadOnly: true}},
			SecureBoot:     true,
			ValidAfterTime: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), ValidUntilTime: time.Date(2026, 1, 3, 3, 4, 5, 0, time.UTC),
		},
	}
}

func TestBodyAndGcloudLineOfEveryTier(t *testing.T) {
	t.Parallel()
	for name, r := range goldenRequests(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := r.Validate(); err != nil {
				t.Fatal(err)
			}
			body, err := json.MarshalIndent(r.Body("p", "us-central2-b", testNow), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".golden", r.Gcloud("p", "us-central2-b")+"\n"+string(body)+"\n")
		})
	}
}

func TestValidateNamesWhatIsWrongBeforeAnyCall(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 62)
	tests := map[string]struct {
		change func(*qr.Request)
		want   string // part of the message
	}{
		"no name":                   {func(r *qr.Request) { r.ID = "" }, "queued resource name is empty"},
		"capital in the name":       {func(r *qr.Request) { r.ID = "Q7" }, `"Q7" is not legal`},
		"dash at the end":           {func(r *qr.Request) { r.ID = "q-" }, `"q-" is not legal`},
		"name too long":             {func(r *qr.Request) { r.ID = long + "bb" }, "64 characters"},
		"slices without end":        {func(r *qr.Request) { r.NodeCount = 100_000_000 }, "at most 4096 slices"},
		"no slices":                 {func(r *qr.Request) { r.NodeCount = 0 }, "at least 1 slice"},
		"prefix too long":           {func(r *qr.Request) { r.NodePrefix = long }, "the last slice would be"},
		"prefix long for 11 slices": {func(r *qr.Request) { r.NodePrefix, r.NodeCount = long[:61], 11 }, "64 characters"},
		"id as prefix too long":     {func(r *qr.Request) { r.ID, r.NodePrefix = long, "" }, "the last slice would be"},
		"node id for two slices":    {func(r *qr.Request) { r.NodeID = "n" }, `node id "n" with 2 slices`},
		"prefix for one slice":      {func(r *qr.Request) { r.NodeCount = 1 }, "node prefix"},
		"no type":                   {func(r *qr.Request) { r.Type = tpu.Type{} }, "no accelerator type"},
		"unknown type":              {func(r *qr.Request) { r.Type.Name = "v4-17" }, `"v4-17": no such type`},
		"not in the API":            {func(r *qr.Request) { r.Type = mustType(t, "tpu7x-8"); r.RuntimeVersion = "x" }, `the Cloud TPU API does not make tpu7x; only Compute Engine does`},
		"a machine type":            {func(r *qr.Request) { r.Type = mustType(t, "ct6e-standard-4t:2x4") }, "its types of this generation are called v6e-N"},
		"v3 cannot multi-slice":     {func(r *qr.Request) { r.Type = mustType(t, "v3-8") }, "v3 cannot do multi-slice"},
		"unknown tier":              {func(r *qr.Request) { r.Tier = "cheap" }, `tier "cheap" is unknown`},
		"reservation and spot":      {func(r *qr.Request) { r.Tier, r.Reservation = qr.Spot, "r" }, `reservation "r" and --spot exclude each other`},
		"reservation name":          {func(r *qr.Request) { r.Reservation = "a/b" }, `reservation "a/b" is not legal`},
		"bound to nothing":          {func(r *qr.Request) { r.Tier = qr.ReservationBound }, "needs a reservation"},
		"flex without duration":     {func(r *qr.Request) { r.Tier = qr.FlexStart }, "needs a max run duration"},
		"flex for 8 days":           {func(r *qr.Request) { r.Tier, r.MaxRunDuration = qr.FlexStart, 8*24*time.Hour }, "at most 7 days"},
		"negative duration":         {func(r *qr.Request) { r.ValidUntilDuration = -time.Second }, "valid-until duration -1s is negative"},
		"min duration on spot":      {func(r *qr.Request) { r.Tier, r.MinDuration = qr.Spot, time.Hour }, "needs the guaranteed or the reserved tier"},
		"ends in the wrong order":   {func(r *qr.Request) { r.ValidAfterDuration, r.ValidUntilDuration = 2e9, 2e9 }, "is not longer than valid-after duration"},
		"interfaces and a network":  {func(r *qr.Request) { r.Network, r.Interfaces = "a", []qr.Interface{{Network: "b"}} }, "excludes network"},
		"interface":                 {func(r *qr.Request) { r.Network, r.Interfaces = "", []qr.Interface{{Network: "My Net"}} }, `network "My Net"`},
		"key of the boot disk":      {func(r *qr.Request) { r.BootDisk.KMSKey = "k" }, `key "k" of the boot disk`},
		"network":                   {func(r *qr.Request) { r.Network = "My Net" }, `network "My Net"`},
		"range":                     {func(r *qr.Request) { r.CIDRBlock = "10.0.0.0/24" }, "/29"},
		"service account":           {func(r *qr.Request) { r.ServiceAccount = "me" }, `"me" is not an email`},
		"scope":                     {func(r *qr.Request) { r.Scopes = []string{"cloud-platfrom"} }, "did you mean cloud-platform?"},
		"label key":                 {func(r *qr.Request) { r.Labels = map[string]string{"Team": "x"} }, `label key "Team"`},
		"label value":               {func(r *qr.Request) { r.Labels = map[string]string{"team": "X y"} }, `value "X y" of label "team"`},
		"metadata key":              {func(r *qr.Request) { r.Metadata = map[string]string{"a b": ""} }, `metadata key "a b"`},
		"metadata value":            {func(r *qr.Request) { r.Metadata = map[string]string{"a": strings.Repeat("x", 262145)} }, "at most 262144"},
		"tag":                       {func(r *qr.Request) { r.Tags = []string{"T1"} }, `tag "T1"`},
		"disk source":               {func(r *qr.Request) { r.DataDisks = []qr.DataDisk{{Source: "d", ReadOnly: true}} }, "projects/P/zones/Z/disks/NAME"},
		"disk for many workers":     {func(r *qr.Request) { r.DataDisks = []qr.DataDisk{{Source: "projects/p/zones/z/disks/d"}} }, "mode=read-only"},
		"description":               {func(r *qr.Request) { r.Description = strings.Repeat("x", 513) }, "at most 512"},
		"workload type":             {func(r *qr.Request) { r.WorkloadType = "FAST" }, `workload type "FAST"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := request(t, tt.change).Validate()
			var invalid *qr.InvalidError
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an *InvalidError with %q", err, tt.want)
			}
		})
	}
}

func TestValidateTellsEverythingAtOnceAndHints(t *testing.T) {
	t.Parallel()
	err := request(t, func(r *qr.Request) { r.ID, r.NodeCount, r.Type.Name = "Q", 0, "v4-17" }).Validate()
	var invalid *qr.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) != 3 {
		t.Fatalf("got %v, want three problems", err)
	}
	if want := "did you mean v4-16 or v4-32?"; invalid.Hint() != want {
		t.Errorf("hint %q, want %q", invalid.Hint(), want)
	}
}

func TestLongestNamesAreLegal(t *testing.T) {
	t.Parallel()
	r := request(t, func(r *qr.Request) {
		r.ID, r.NodePrefix, r.NodeCount = strings.Repeat("a", 63), strings.Repeat("b", 61), 10
	})
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
}

func TestLabelValueIsAlwaysLegal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"Ada.Lovelace@example.com": "ada-lovelace-example-com",
		"Q_7-a":                    "q_7-a",
		"größe":                    "gr--e",
		strings.Repeat("X", 70):    strings.Repeat("x", 63),
		"":                         "",
	} {
		if got := provision.LabelValue(in); got != want {
			t.Errorf("LabelValue(%q) = %q, want %q", in, got, want)
		}
	}
}

// testNow is the time at which tests send requests.
var testNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestParseDataDisk(t *testing.T) {
	t.Parallel()
	got, err := qr.ParseDataDisk("source=https://www.googleapis.com/compute/v1/projects/p/zones/z/disks/d,mode=read-only")
	want := qr.DataDisk{Source: "projects/p/zones/z/disks/d", ReadOnly: true}
	if err != nil || got != want {
		t.Errorf("got %v, %v", got, err)
	}
	for _, in := range []string{"", "mode=read-only", "source=d,mode=rw", "source=d,size=3"} {
		if _, err := qr.ParseDataDisk(in); err == nil {
			t.Errorf("ParseDataDisk(%q): no error", in)
		}
	}
}

func bodyText(t *testing.T, r qr.Request) string {
	t.Helper()
	text, err := json.MarshalIndent(r.Body("p", "us-central2-b", testNow), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// If only Compute Engine makes the type, that is the only problem of the request, and the
// hint has the command.
func TestATypeOfComputeEngineOnly(t *testing.T) {
	t.Parallel()
	err := qr.Request{ID: "m", NodeCount: 1, Type: mustType(t, "tpu7x-16")}.Validate()
	var hinted interface{ Hint() string }
	const want = `check queued resource "m": accelerator type "tpu7x-16": the Cloud TPU API does not make tpu7x; only Compute Engine does`
	if err == nil || err.Error() != want || !errors.As(err, &hinted) || !strings.HasSuffix(hinted.Hint(), "multihost slices create m --tpu-type=tpu7x-16") {
		t.Errorf("got %v, %v", err, hinted)
	}
}
