package tpu

import (
	_ "embed"
	"strconv"
	"strings"
)

// prices has one line for each generation and region: family, region, and the price in
// US dollars per chip and hour, on demand and on spot; "-" if the source has no price.
// The file itself names the source of the numbers.
//
//go:embed prices.txt
var prices string

// PriceSource names the source of HourlyPrice's numbers.
const PriceSource = "list prices of SkyPilot's catalog, revision 006059e0, read 2026-11-28; spot prices change monthly"

// HourlyPrice estimates the price of one slice of an accelerator type in a zone, in US
// dollars per hour before discounts. ok is false if no price is known.
func HourlyPrice(accelerator, zone string, spot bool) (usd float64, ok bool) {
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
		text := f[2]
		if spot {
			text = f[3]
		}
		chip, err := strconv.ParseFloat(text, 64)
		return chip * float64(t.Chips), err == nil
	}
	return 0, false
}
