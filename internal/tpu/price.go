package tpu

import (
	_ "embed"
	"strconv"
	"strings"
)

// prices has one line for each generation and region: the family, the region, and two
// prices in US dollars per chip and hour, on demand and spot. "-" means that the source has
// no price. The file names its source.
//
//go:embed prices.txt
var prices string

const (
	// PriceDate is the day on which the prices of HourlyPrice were read.
	PriceDate = "2026-11-28"
	// PriceSource names the source of these prices.
	PriceSource = "list prices of SkyPilot's catalog, revision 006059e0, read " + PriceDate + "; spot prices change monthly"
)

// HourlyPrice returns the list price of one slice of an accelerator type in a zone, in US dollars
// per hour, before discounts. ok is false if the list has no price. The list has only the tiers
// "on-demand" and "spot".
func HourlyPrice(accelerator, zone, tier string) (usd float64, ok bool) {
	column, ok := map[string]int{"on-demand": 2, "spot": 3}[tier]
	if !ok {
		return 0, false
	}
	t, err := ParseType(accelerator)
	i := strings.LastIndexByte(zone, '-')
	if err != nil || i < 0 {
		return 0, false
	}
	for line := range strings.Lines(prices) {
		f := strings.Fields(line)
		if len(f) != 4 || f[0] != t.Generation.Family || f[1] != zone[:i] {
			continue
		}
		chip, err := strconv.ParseFloat(f[column], 64)
		return chip * float64(t.Chips), err == nil
	}
	return 0, false
}

// Priced reports whether the list has a price for a generation in any region.
func Priced(g Generation) bool { return strings.Contains("\n"+prices, "\n"+g.Family+" ") }
