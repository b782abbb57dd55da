package zones

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simcloud"
)

func TestNearZones(t *testing.T) {
	t.Parallel()
	zones := []string{"us-east5-b", "europe-west4-b", "us-east5-a", "us-central2-b", "europe-west4-a"}
	for zone, want := range map[string]string{
		"us-central2-z":  "us-central2-b",
		"us-centrl2-b":   "us-central2-b",
		"us-east5-c":     "us-east5-a us-east5-b",
		"europe-wset4-b": "europe-west4-b europe-west4-a",
		"mars-north1-a":  "",
	} {
		if got := strings.Join(near(zone, zones), " "); got != want {
			t.Errorf("%s: got %q, want %q", zone, got, want)
		}
	}
}

func TestNameOfZones(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		zones []string
		want  string
	}{
		{nil, ""},
		{[]string{"a"}, "in a"},
		{[]string{"a", "b", "c", "d"}, "in a, b, c, d"},
		{[]string{"a", "b", "c", "d", "e", "f"}, "in a, b, c, d and 2 more"},
	} {
		if got := Name(tt.zones, "in "); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.zones, got, tt.want)
		}
	}
}

func TestRefusalsOfAType(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`accelerator "v9" could not be found in the Zonal accelerator configurations`: true,
		`requested zone "us-west1-a" is not supported`:                                true,
		"no more capacity in the zone":                                                false,
	} {
		if Refused(text) != want {
			t.Errorf("%q: %t, want %t", text, !want, want)
		}
	}
}

func TestOfferOfZones(t *testing.T) {
	t.Parallel()
	const here = "us-east5-a"
	zones := []string{"asia-east1-c", "us-east5-a", "us-east5-b"}
	none, away := &gcp.Error{Class: gcp.NotFound}, errors.New("no answer")
	for _, tt := range []struct {
		story string
		errs  []error
		want  Offer
	}{
		{"everywhere, near zones first", []error{nil, nil, nil}, Offer{Known: true, Here: true, Zones: []string{"us-east5-b", "asia-east1-c"}}},
		{"not here", []error{nil, none, none}, Offer{Known: true, Zones: []string{"asia-east1-c"}}},
		{"no answer about this zone", []error{none, away, none}, Offer{}},
	} {
		if got := offerOf(here, zones, tt.errs); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.story, got, tt.want)
		}
	}
}

func TestTheAPIIsAsked(t *testing.T) {
	c := simcloud.Start(t, sim.Config{})
	if o := Offering(t.Context(), c.GCP, "v4-8"); !o.Known || !o.Here {
		t.Errorf("v4-8 in %s: %+v", simcloud.Zone, o)
	}
	if o := Offering(t.Context(), c.GCP, "v9-8"); !o.Known || o.Here || len(o.Zones) > 0 {
		t.Errorf("a type that does not exist: %+v", o)
	}
	other := errors.New("another error")
	if err := Explain(t.Context(), c.GCP, other); err != other {
		t.Errorf("%v became %v", other, err)
	}
	wrong := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: "us-centrl2-b", DisableAuth: true, TPUEndpoint: c.Sim.URL() + "/", Clock: testkit.NewFastClock(), Sink: c.Log})
	svc, err := wrong.TPU(t.Context())
	testkit.Must(t, err)
	err = wrong.Do(t.Context(), "list TPU slices", func(ctx context.Context) error {
		_, err := svc.Projects.Locations.Nodes.List(gcp.Location(sim.DefaultProject, "us-centrl2-b")).Context(ctx).Do()
		return err
	})
	told := Explain(t.Context(), wrong, err)
	var unknown *NoZoneError
	if !errors.As(told, &unknown) || unknown.Hint() != "repeat the command with --zone="+simcloud.Zone || unknown.Fault() == fault.Unknown || !errors.Is(told, err) {
		t.Errorf("%v became %v", err, told)
	}
	if again := Explain(t.Context(), wrong, told); again != told {
		t.Errorf("it is explained twice: %v", again)
	}
}

func TestErrorsSayWhereElseToAsk(t *testing.T) {
	t.Parallel()
	refusal := &gcp.Error{Class: gcp.Invalid}
	for _, tt := range []struct {
		err interface {
			error
			Hint() string
			Fault() fault.Kind
		}
		says, hint string
	}{
		{&NoTypeError{Type: "v4-8", Zone: "a-b-c", Zones: []string{"x", "y"}, Err: refusal}, "; zones that offer v4-8: x, y", "repeat the command with --zone=x"},
		{&NoTypeError{Type: "v4-8", Zone: "a-b-c", Err: refusal}, "", "accelerator-types list --zone=a-b-c"},
		{&NoZoneError{Zone: "a-b-c", Near: []string{"a-b-d"}, Err: refusal}, `zone "a-b-c" does not exist or has no Cloud TPU; zones of like names: a-b-d: `, "repeat the command with --zone=a-b-d"},
		{&NoZoneError{Zone: "a-b-c", Err: refusal}, `zone "a-b-c" does not exist`, "locations list"},
	} {
		if !strings.Contains(tt.err.Error(), tt.says) || !strings.Contains(tt.err.Hint(), tt.hint) || !errors.Is(tt.err, error(refusal)) || tt.err.Fault() != gcp.FaultOf(refusal) {
			t.Errorf("%v (%s)", tt.err, tt.err.Hint())
		}
	}
}
