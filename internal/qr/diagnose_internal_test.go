package qr

import (
	"strings"
	"testing"

	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/zones"
)

func TestDiagnosis(t *testing.T) {
	at := func(state string, tier Tier, failure string) Resource {
		return Resource{ID: "q7", State: state, Type: "v5p-16", Tier: tier, NodeCount: 2, Failure: failure, Labels: provision.OwnerLabels("q7", "ann")}
	}
	dead := []Resource{{ID: "old", State: "FAILED", Labels: provision.OwnerLabels("old", "ann")}}
	foreign := append(dead, Resource{ID: "theirs", State: "SUSPENDED"})
	here := zones.Offer{Known: true, Here: true, Zones: []string{"us-east5-b", "a-1-a", "b-1-a", "c-1-a", "d-1-a"}}
	for _, tt := range []struct {
		story         string
		p             predicament
		says, command string
	}{
		{"another zone has the type", predicament{res: at("WAITING_FOR_RESOURCES", OnDemand, ""), offer: zones.Offer{Known: true, Zones: []string{"us-east5-a"}}},
			"zone z-1-b does not offer v5p-16; zones that do: us-east5-a", "--zone=us-east5-a: multihost qr delete q7 --force"},
		{"no zone is known to have it", predicament{res: at("ACCEPTED", OnDemand, ""), offer: zones.Offer{Known: true}},
			"zone z-1-b does not offer v5p-16", "ask in another zone: multihost qr delete q7 --force"},
		{"the API says so itself", predicament{res: at("FAILED", OnDemand, `accelerator "v5p-16" could not be found in the zonal accelerator configurations`)},
			"zone z-1-b does not offer v5p-16", "multihost qr delete q7 --force"},
		{"quota, held by the dead", predicament{res: at("FAILED", OnDemand, "Quota 'TPUV5PPerProjectPerZoneForTPUAPI' exhausted. Limit 16 in zone z-1-b"), dead: dead, offer: here},
			"the quota TPUV5PPerProjectPerZoneForTPUAPI allows 16 in zone z-1-b, and this asks for 32 of it; FAILED or SUSPENDED ones hold some of it: old", "multihost gc --delete"},
		{"quota, held by others", predicament{res: at("FAILED", OnDemand, "Quota 'Q' exhausted. Limit 24 in zone z-1-b"), others: []Resource{
			{ID: "small", State: "ACTIVE", Type: "v5p-16", Tier: OnDemand, NodeCount: 1}, {ID: "large", State: "ACTIVE", Type: "v5p-8", Tier: OnDemand, NodeCount: 3},
			{ID: "spot", State: "ACTIVE", Type: "v5p-16", Tier: Spot, NodeCount: 1}, {ID: "old-chip", State: "ACTIVE", Type: "v4-16", Tier: OnDemand, NodeCount: 1},
			{ID: "going", State: "DELETING", Type: "v5p-16", Tier: OnDemand, NodeCount: 1}}, offer: here},
			"the quota Q allows 24 in zone z-1-b, and this asks for 32 of it; other queued resources have 40: large (24, ACTIVE); small (16, ACTIVE)", "delete what nobody needs: "},
		{"quota, in words not known", predicament{res: at("FAILED", OnDemand, "Quota limit reached")},
			"a quota of the project is used up, and this asks for 32 of it", "multihost gc --look"},
		{"stockout", predicament{res: at("FAILED", Spot, `There is no more capacity in the zone "z-1-b"; you can try in another zone`), offer: here},
			"zone z-1-b has no free machines for 2 x v5p-16, spot, now; zones that offer the type too: us-east5-b, a-1-a, b-1-a, c-1-a and 1 more", "--zone=us-east5-b"},
		{"its own deadline", predicament{res: at("FAILED", OnDemand, "The request could not be provisioned before its valid-until time")},
			"--valid-until-duration had passed", "multihost qr delete q7 --force"},
		{"a failure that says all", predicament{res: at("FAILED", OnDemand, "an internal error has occurred")}, "", ""},
		{"dead ones of ours", predicament{res: at("WAITING_FOR_RESOURCES", OnDemand, ""), dead: dead, offer: here},
			"1 FAILED or SUSPENDED ones exist (old), which may hold the quota", "multihost gc --delete"},
		{"dead ones of others", predicament{res: at("WAITING_FOR_RESOURCES", OnDemand, ""), dead: foreign, offer: here},
			"2 FAILED or SUSPENDED ones exist (old; theirs)", "multihost qr delete theirs --force"},
		{"not begun", predicament{res: at("ACCEPTED", OnDemand, ""), offer: here}, "has not begun to look", "multihost qr show q7"},
		{"reservation", predicament{res: at("WAITING_FOR_RESOURCES", Reserved, ""), offer: here}, "no free room for 2 x v5p-16", "reservations list --zone=z-1-b"},
		{"no capacity yet", predicament{res: at("WAITING_FOR_RESOURCES", OnDemand, ""), offer: here}, "no free capacity for 2 x v5p-16, on-demand yet; zones that offer the type too: us-east5-b", "--flex-start"},
		{"no capacity and nothing known", predicament{res: at("WAITING_FOR_RESOURCES", Spot, "")}, "no free capacity for 2 x v5p-16, spot yet", "multihost qr wait q7"},
	} {
		tt.p.zone = "z-1-b"
		text, command := tt.p.diagnose()
		if !strings.Contains(text, tt.says) || !strings.Contains(command, tt.command) || (tt.says == "") != (text == "") {
			t.Errorf("%s:\n got %q, %q\nwant %q, %q", tt.story, text, command, tt.says, tt.command)
		}
		if again := tt.p.repeat(); (again != "") != strings.Contains(text, "zones that") || strings.Contains(again, "delete") {
			t.Errorf("%s: once it is deleted %q is to be typed", tt.story, again)
		}
		if strings.Contains(text, "\n") || strings.Count(command, "multihost ") > 1 {
			t.Errorf("%s: more than one sentence and one command: %q, %q", tt.story, text, command)
		}
	}
}

// Only users who have asked neither for spot nor for a reservation get the advice to use
// spot.
func TestOtherCapacityIsAdvisedWhereItHelps(t *testing.T) {
	refusal := &gcp.OperationError{Code: 8, Message: `There is no more capacity in the zone "z-1-b"`}
	for _, tier := range Tiers() {
		err := error(&capacityError{tier: tier, error: refusal})
		hint := gcp.Hint(err)
		reserved := tier == Reserved || tier == ReservationBound
		if strings.Contains(hint, "--spot") != (tier == OnDemand) || strings.Contains(hint, "reservations list") != reserved || gcp.ClassOf(err) != gcp.Capacity {
			t.Errorf("%s: %s (%v)", tier, hint, gcp.ClassOf(err))
		}
	}
}
