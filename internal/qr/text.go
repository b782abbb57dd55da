package qr

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"multihost/internal/event"
	"multihost/internal/provision"
)

// Table returns a table of queued resources for people, or "" for an empty list.
func Table(list []Resource, now time.Time) string {
	if len(list) == 0 {
		return ""
	}
	return tabulate(func(row func(...string)) {
		row("ID", "STATE", "TYPE", "TIER", "READY", "AGE", "OWNER")
		for _, r := range list {
			row(r.ID, r.State, r.Type, string(r.Tier), fmt.Sprintf("%d/%d", r.ReadySlices(), r.NodeCount), age(r.CreateTime, now), r.shortOwner())
		}
	})
}

// shortOwner returns the user's name for a table, or the run's name if no label has the
// user, or "-".
func (r Resource) shortOwner() string {
	if r.Labels[LabelTool] != provision.ToolName {
		return "-"
	}
	return cmp.Or(r.Labels[LabelUser], r.Labels[LabelRun], "-")
}

// Detail describes one queued resource, for people.
func Detail(r Resource, now time.Time) string {
	head := tabulate(func(row func(...string)) {
		line := func(key, value string) {
			if value != "" {
				row(key+":", value)
			}
		}
		line("queued resource", r.ID)
		line("state", r.State+initiatedBy(r))
		line("failure", r.Failure)
		line("type", fmt.Sprintf("%d x %s", r.NodeCount, r.Type))
		line("tier", string(r.Tier))
		line("reservation", r.Reservation)
		line("runtime version", r.RuntimeVersion)
		line("network", cmp.Or(r.Network, "default"))
		line("subnetwork", r.Subnetwork)
		line("owner", r.Owner())
		if !r.CreateTime.IsZero() {
			line("created", r.CreateTime.UTC().Format(time.RFC3339)+" ("+age(r.CreateTime, now)+" ago)")
		}
		line("slices ready", fmt.Sprintf("%d/%d", r.ReadySlices(), r.NodeCount))
	})
	if len(r.Slices) == 0 {
		return head
	}
	return head + "\n" + tabulate(func(row func(...string)) {
		row("SLICE", "STATE", "HEALTH", "WORKERS")
		for _, s := range r.Slices {
			row(s.Name, s.State, cmp.Or(s.Health, "-"), fmt.Sprint(s.Workers))
		}
	})
}

func initiatedBy(r Resource) string {
	switch r.StateInitiator {
	case "SERVICE":
		return " (by Google)"
	case "USER":
		return " (by a user)"
	}
	return ""
}

func age(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return event.Age(now.Sub(t))
}

// tabulate aligns the cells of the rows in columns.
func tabulate(write func(row func(cells ...string))) string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	write(func(cells ...string) {
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	})
	table.Flush() // a strings.Builder cannot fail
	return b.String()
}
