// Package cost says in words what slices cost an hour.
package cost

import (
	"fmt"
	"time"

	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// ListPrice formats an hourly price with the date of the price list.
func ListPrice(usd float64) string {
	return fmt.Sprintf("list price %s an hour (%s)", event.Dollars(usd), tpu.PriceDate)
}

// PriceOf formats an hourly price with the tier and the zone. If hourly is nil, it returns
// NoPrice.
func PriceOf(hourly *float64, accelerator, tier, zone string) string {
	if hourly == nil {
		return NoPrice(accelerator, tier, zone)
	}
	return fmt.Sprintf("list price %s an hour, %s, in %s (%s)", event.Dollars(*hourly), TierWords(tier), zone, tpu.PriceDate)
}

// NoPrice says for what the price list has no price: the tier, the generation or the zone.
func NoPrice(accelerator, tier, zone string) string {
	_, ok := tpu.HourlyPrice(accelerator, zone, OnDemand)
	t, err := tpu.ParseType(accelerator)
	switch {
	case ok:
		return "price unknown for " + TierWords(tier) + " in " + zone
	case err == nil && !tpu.Priced(t.Generation):
		return "price unknown for " + t.Generation.Name
	}
	return "price unknown for " + zone
}

// TierWords returns a tier's name for people.
func TierWords(tier string) string {
	switch provision.Tier(tier) {
	case provision.OnDemand:
		return "on demand"
	case provision.BestEffort:
		return "best effort"
	}
	return tier
}

// Hourly returns what the slices of a resource cost now, or nil if a price is not known. It
// skips slices whose VMs are all stopped or were taken away: at most their disks cost
// money.
func Hourly(res provision.Resource, zone string) *float64 {
	total := 0.0
	for _, s := range res.Slices {
		if s.Billed.IsZero() && (s.Condition == tpu.Halted || s.Condition == tpu.Taken) {
			continue
		}
		usd, ok := tpu.HourlyPrice(res.Type, zone, string(res.Tier))
		if !ok {
			return nil
		}
		total += usd
	}
	return &total
}

// SoFar returns the cost of a resource's slices since their bill began, or nil if a price
// is not known.
func SoFar(res provision.Resource, zone string, now time.Time) *float64 {
	total := 0.0
	for _, s := range res.Slices {
		usd, ok := tpu.HourlyPrice(res.Type, zone, string(res.Tier))
		if !ok {
			return nil
		}
		if !s.Billed.IsZero() {
			total += usd * max(0, now.Sub(s.Billed).Hours())
		}
	}
	return &total
}

// Running says what the slices of a resource have cost so far, and what they cost an hour.
func Running(res provision.Resource, zone string, now time.Time) string {
	sum := SoFar(res, zone, now)
	if sum == nil {
		return NoPrice(res.Type, string(res.Tier), zone)
	}
	return event.Dollars(*sum) + " so far, " + ListPrice(*Hourly(res, zone))
}

// Price formats an hourly price in US dollars. It returns "unknown" for nil.
func Price(hourly *float64) string {
	if hourly == nil {
		return "unknown"
	}
	return event.Dollars(*hourly)
}

// OnDemand is the tier to assume if the tier is unknown. No other tier costs more.
const OnDemand = string(provision.OnDemand)
