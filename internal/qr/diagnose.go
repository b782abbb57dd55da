package qr

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/tpu"
	"multihost/internal/zones"
)

// A predicament holds what is known about a queued resource that does not become
// ready.
type predicament struct {
	res    Resource
	zone   string
	waited time.Duration
	dead   []Resource // those in others that are FAILED or SUSPENDED
	others []Resource // other resources of the zone; nil if unknown
	offer  zones.Offer
}

// diagnose returns the probable reason in one sentence, and what to type. Both are "" if
// only the state is known.
func (p predicament) diagnose() (text, command string) {
	r := p.res
	failed := r.State == "FAILED"
	class := gcp.ClassOf(&gcp.OperationError{Code: 8, Message: r.Failure}) // RESOURCE_EXHAUSTED if the text has that code
	quota := class == gcp.Quota && strings.Contains(strings.ToLower(r.Failure), "quota")
	switch {
	case p.offer.Known && !p.offer.Here, zones.Refused(r.Failure):
		return fmt.Sprintf("zone %s does not offer %s%s", p.zone, r.Type, zones.Name(p.offer.Zones, "; zones that do: ")), p.moveTo()
	case failed && quota:
		return p.quota()
	case failed && class == gcp.Capacity:
		return fmt.Sprintf("zone %s has no free machines for %d x %s, %s, now%s", p.zone, r.NodeCount, r.Type, r.Tier, zones.Name(p.offer.Zones, "; zones that offer the type too: ")), p.moveTo()
	case failed && strings.Contains(r.Failure, "valid-until"):
		return "there was no capacity before its --valid-until-duration had passed", "ask again, for longer, once it is deleted: multihost qr delete " + r.ID + " --force"
	case failed, r.State == "SUSPENDED":
		return "", ""
	case len(p.dead) > 0:
		return fmt.Sprintf("%d FAILED or SUSPENDED ones exist (%s), which may hold the quota that it needs", len(p.dead), p.deadNames()), p.clear()
	case r.State != "WAITING_FOR_RESOURCES":
		return "the service has not begun to look for capacity", "see: multihost qr show " + r.ID
	case r.Tier == Reserved || r.Tier == ReservationBound:
		return fmt.Sprintf("the reservation has no free room for %d x %s in this zone, or is not for this project", r.NodeCount, r.Type),
			"see what is reserved: gcloud alpha compute tpus reservations list --zone=" + p.zone
	}
	return fmt.Sprintf("there is no free capacity for %d x %s, %s yet", r.NodeCount, r.Type, r.Tier) + zones.Name(p.offer.Zones, "; zones that offer the type too: "), p.wait()
}

// quota returns which quota is too small, what uses it, and what to type.
func (p predicament) quota() (text, command string) {
	text = "a quota of the project is used up"
	if metric, limit, where, ok := gcp.QuotaOf(p.res.Failure); ok {
		text = fmt.Sprintf("the quota %s allows %s %s", metric, limit, where)
	}
	if n := units(p.res); n > 0 {
		text += fmt.Sprintf(", and this asks for %d of it", n)
	}
	const more = "; or ask for more: https://console.cloud.google.com/iam-admin/quotas"
	if held, holders, dead := p.holders(); held > 0 {
		text += fmt.Sprintf("; other queued resources have %d: %s", held, holders)
		if dead {
			return text, p.clear()
		}
		return text, "delete what nobody needs: multihost qr delete NAME --force" + more
	}
	if len(p.dead) == 0 {
		return text, "see what else of yours holds some: multihost gc --look" + more
	}
	return text + fmt.Sprintf("; FAILED or SUSPENDED ones hold some of it: %s", p.deadNames()), p.clear()
}

// holders names the other resources that use the same quota. They have the same generation,
// and are preemptible exactly if this one is. held is how much they use. dead reports whether
// some of them are FAILED or SUSPENDED.
func (p predicament) holders() (held int, names string, dead bool) {
	asked, err := tpu.ParseType(p.res.Type)
	if err != nil {
		return 0, "", false
	}
	var holders []Resource
	for _, r := range p.others {
		t, err := tpu.ParseType(r.Type)
		if err == nil && t.Generation == asked.Generation && preemptible(r.Tier) == preemptible(p.res.Tier) && r.State != "DELETING" {
			holders = append(holders, r)
			held += units(r)
			dead = dead || r.Dead()
		}
	}
	slices.SortStableFunc(holders, func(a, b Resource) int { return units(b) - units(a) })
	texts := make([]string, len(holders))
	for i, r := range holders {
		texts[i] = fmt.Sprintf("%s (%d, %s)", r.ID, units(r), r.State)
	}
	return held, few(texts), dead
}

// maxNamed limits the resources that one sentence names.
const maxNamed = 3

// few joins the texts about resources, at most maxNamed of them.
func few(texts []string) string {
	if len(texts) <= maxNamed {
		return strings.Join(texts, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(texts[:maxNamed], "; "), len(texts)-maxNamed)
}

// preemptible reports whether the tier uses the separate quota of preemptible capacity.
func preemptible(t Tier) bool { return t == Spot || t == BestEffort }

// units returns how much of its quota a request uses, in the unit of its accelerator type:
// TensorCores or chips.
func units(r Resource) int {
	t, err := tpu.ParseType(r.Type)
	if err != nil {
		return 0
	}
	per := t.Chips
	if t.Generation.CountsCores {
		per *= 2
	}
	return per * max(r.NodeCount, 1)
}

func (p predicament) deadNames() string {
	names := make([]string, len(p.dead))
	for i, r := range p.dead {
		names[i] = r.ID
	}
	return few(names)
}

// clear returns the hint that removes the dead resources. If all belong to the user of this
// one, one command deletes them. Otherwise the hint names the first one of another owner.
func (p predicament) clear() string {
	_, me, _ := p.res.Made()
	for _, r := range p.dead {
		if _, user, ours := r.Made(); !ours || user != me {
			return "if nobody needs it, delete it: multihost qr delete " + r.ID + " --force"
		}
	}
	return "delete them: multihost gc --delete"
}

// moveTo returns the hint to request the resource in another zone.
func (p predicament) moveTo() string {
	remove := "multihost qr delete " + p.res.ID + " --force"
	if len(p.offer.Zones) == 0 {
		return "delete it, and ask in another zone: " + remove
	}
	return "delete it, and repeat the command with --zone=" + p.offer.Zones[0] + ": " + remove
}

// repeat returns how to request the resource again after its deletion, or "" if the
// diagnosis names no other zones.
func (p predicament) repeat() string {
	text, _ := p.diagnose()
	if others := zones.Name(p.offer.Zones, ""); others == "" || !strings.Contains(text, others) {
		return ""
	}
	return "repeat the command with --zone=" + p.offer.Zones[0]
}

func (p predicament) wait() string {
	if p.res.Tier == OnDemand {
		return "another zone, or --spot, --reserved or --flex-start, may get it sooner; it costs nothing while it waits: multihost qr wait " + p.res.ID
	}
	return "another zone or tier may get it sooner; it costs nothing while it waits: multihost qr wait " + p.res.ID
}

// inquiryLimit limits the time of all calls for one diagnosis together. A command can do
// without a diagnosis.
const inquiryLimit = 20 * time.Second

// inquire reads what a diagnosis needs. If a call fails, its part stays unknown.
func (c *Client) inquire(ctx context.Context, res Resource, waited time.Duration) predicament {
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), inquiryLimit)
	defer cancel()
	p := predicament{res: res, zone: c.gcp.Zone(), waited: waited, offer: zones.Offering(ctx, c.gcp, res.Type)}
	p.others, p.dead = c.others(ctx, res.ID)
	return p
}

// others lists the other queued resources, and as dead those that are FAILED or SUSPENDED.
// It returns none if the call fails.
func (c *Client) others(ctx context.Context, id string) (others, dead []Resource) {
	all, err := c.listResources(ctx, gcp.PageSize)
	if err != nil {
		return nil, nil
	}
	for _, r := range all {
		if r.ID == id {
			continue
		}
		others = append(others, r)
		if r.Dead() {
			dead = append(dead, r)
		}
	}
	return others, dead
}
