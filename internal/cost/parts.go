package cost

import (
	"fmt"
	"strings"

	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A Part is one part of a resource, with its price.
type Part struct {
	provision.Item
	Hourly *float64 `json:"usd_per_hour"` // list price; null: not known
	Text   string   `json:"text"`
}

// Parts returns the parts of a resource with their prices. accelerator and tier are those of
// its slices, or "" if not known.
func Parts(items []provision.Item, accelerator, tier, zone string) []Part {
	all := make([]Part, len(items))
	free := 0.0
	for i, item := range items {
		p := Part{Item: item, Hourly: &free, Text: fmt.Sprintf("%s %s: free", item.Kind, item.Name)}
		vms := event.Count(item.VMs, "VM")
		switch {
		case item.VMs == 0:
		case item.Running == 0:
			p.Hourly, p.Text = nil, fmt.Sprintf("%s %s: %s, stopped; the price of their boot disks is unknown", item.Kind, item.Name, vms)
		default:
			p.Hourly = nil
			price := NoPrice(accelerator, tier, zone)
			if usd, ok := tpu.HourlyPrice(accelerator, zone, tier); ok {
				p.Hourly, price = &usd, ListPrice(usd)
			}
			p.Text = fmt.Sprintf("%s %s: %s with boot disks, %s, %s", item.Kind, item.Name, vms, event.Count(item.Chips, "chip"), price)
		}
		all[i] = p
	}
	return all
}

// PartLines returns a line for each part, indented by two spaces.
func PartLines(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("  " + p.Text + "\n")
	}
	return b.String()
}
