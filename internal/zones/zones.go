// Package zones finds the zones that have Cloud TPU, and those that offer an accelerator type.
// It adds this information to refusals of the API. It keeps no state.
package zones

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/tpu"

	"golang.org/x/sync/errgroup"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

const (
	// explainLimit limits the time of the calls that explain a refusal.
	explainLimit = 20 * time.Second
	// maxNamed limits the zones that one sentence names.
	maxNamed = 4
)

// refusedType matches the API's text for a type that a zone does not offer. The API also
// uses the second form for a zone that does not exist.
var refusedType = regexp.MustCompile(`(?i)zonal accelerator configurations|requested zone "?[a-z0-9-]*"? is not supported`)

// Refused reports whether the API's text of a refusal or a failure says that the zone does
// not offer the accelerator type.
func Refused(text string) bool { return refusedType.MatchString(text) }

// Name returns intro and the names of zones, at most four of them, or "" if there are none.
func Name(zones []string, intro string) string {
	if len(zones) == 0 {
		return ""
	}
	named, more := zones, ""
	if len(named) > maxNamed {
		named, more = named[:maxNamed], fmt.Sprintf(" and %d more", len(named)-maxNamed)
	}
	return intro + strings.Join(named, ", ") + more
}

// list returns the zones with Cloud TPU.
func list(ctx context.Context, c *gcp.Client) (zones []string, err error) {
	svc, err := c.TPU(ctx)
	if err != nil {
		return nil, err
	}
	err = c.Do(ctx, "list zones", func(ctx context.Context) error {
		zones = nil
		return svc.Projects.Locations.List("projects/"+c.Project()).PageSize(gcp.PageSize).Pages(ctx, func(page *tpuapi.ListLocationsResponse) error {
			for _, l := range page.Locations {
				zones = append(zones, l.LocationId)
			}
			return nil
		})
	})
	return zones, err
}

// Explain returns a *NoZoneError if the API refused a call because the client's zone does
// not exist, and any other error unchanged. It waits at most 20 seconds for the API.
func Explain(ctx context.Context, c *gcp.Client, err error) error {
	var told *NoZoneError
	if !gcp.NoZone(err) || errors.As(err, &told) {
		return err
	}
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), explainLimit)
	defer cancel()
	zones, failed := list(ctx, c)
	if failed != nil || slices.Contains(zones, c.Zone()) {
		return err
	}
	return &NoZoneError{Zone: c.Zone(), Near: near(c.Zone(), zones), Err: err}
}

// near returns the zones of the same region. If there are none, it returns the zone with the
// most similar name and the other zones of its region, or nil.
func near(zone string, zones []string) (near []string) {
	region := gcp.Region(zone)
	if !slices.ContainsFunc(zones, func(z string) bool { return gcp.Region(z) == region }) {
		best := tpu.Suggest(zone, zones)
		if best == "" {
			return nil
		}
		near, region = append(near, best), gcp.Region(best)
	}
	for _, z := range slices.Sorted(slices.Values(zones)) {
		if gcp.Region(z) == region && !slices.Contains(near, z) {
			near = append(near, z)
		}
	}
	return near
}

// An Offer says where an accelerator type is offered.
type Offer struct {
	Known bool     // the API answered for the client's zone, so Here is certain
	Here  bool     // the client's zone offers the type
	Zones []string // other zones that offer the type, those of the same region first; nil also if none answered
}

// Offering asks the API which zones offer an accelerator type. If a call for a zone fails, the
// answer for the zone is unknown. ctx limits the time.
func Offering(ctx context.Context, c *gcp.Client, accelerator string) Offer {
	svc, err := c.TPU(ctx)
	if err != nil {
		return Offer{}
	}
	zones, err := list(ctx, c)
	if err != nil || !slices.Contains(zones, c.Zone()) {
		zones = append(zones, c.Zone())
	}
	slices.Sort(zones)
	errs := make([]error, len(zones))
	var group errgroup.Group
	group.SetLimit(8)
	for i, zone := range zones {
		group.Go(func() error {
			errs[i] = c.Do(ctx, "read accelerator type", func(ctx context.Context) error {
				_, err := svc.Projects.Locations.AcceleratorTypes.Get(gcp.Location(c.Project(), zone) + "/acceleratorTypes/" + accelerator).Context(ctx).Do()
				return err
			})
			return nil
		})
	}
	_ = group.Wait() // the goroutines return nil
	return offerOf(c.Zone(), zones, errs)
}

// offerOf makes an Offer from the API's answers. errs[i] is the answer about zones[i].
func offerOf(here string, zones []string, errs []error) (o Offer) {
	// Zones of the same region first, because storage and network are close to them.
	var far []string
	for i, zone := range zones {
		switch {
		case zone == here:
			o.Here = errs[i] == nil
			o.Known = o.Here || gcp.ClassOf(errs[i]) == gcp.NotFound
		case errs[i] != nil:
		case gcp.Region(zone) == gcp.Region(here):
			o.Zones = append(o.Zones, zone)
		default:
			far = append(far, zone)
		}
	}
	o.Zones = append(o.Zones, far...)
	return o
}
