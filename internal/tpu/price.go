package tpu

import (
	_ "embed"
	"strconv"
	"strings"
)

// prices has one line a generation and region: family, region, US dollars for a
// chip and an hour on demand and on spot; "-" where the source has none. Where
// the numbers are from is written in the file itself.
//
//go:embed prices.txt
var prices string

// PriceSource says where HourlyPrice has its numbers from.
const PriceSource = "list prices of SkyPilot's catalog, revision 006059e0, read 2026-11-28; spot prices change monthly"

// HourlyPrice estimates what one slice of an accelerator type costs in a zone,
// in US dollars an hour, before discounts. ok is false where no price is known.
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
