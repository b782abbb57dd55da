package provider

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"multihost/internal/cost"
	"multihost/internal/event"
	"multihost/internal/provision"
)

// A Listed is a resource of any provider, for lists.
type Listed struct {
	ID         string            `json:"id"`
	Kind       string            `json:"kind"`  // the provider's word for the resource: "queued resource"
	State      string            `json:"state"` // the provider's word
	Life       provision.Life    `json:"life"`
	Failure    string            `json:"failure,omitempty"`
	Type       string            `json:"accelerator_type"`
	Tier       provision.Tier    `json:"tier"`
	SliceCount int               `json:"slice_count"`
	Ready      int               `json:"ready"` // number of slices that are ready for a run
	Slices     []string          `json:"slices"`
	Labels     map[string]string `json:"labels,omitempty"`
	CreateTime time.Time         `json:"create_time"`
	Until      *time.Time        `json:"until,omitempty"`   // when the provider takes the slices back, if that is known
	Missing    []string          `json:"missing,omitempty"` // slices that do not exist yet while others do
	Hourly     *float64          `json:"usd_per_hour"`      // list price of the slices that exist; null: unknown
	SoFar      *float64          `json:"usd_so_far"`        // what these slices have cost so far; null: unknown
}

// A Plan is the result of a dry run of a command that makes or deletes slices.
type Plan struct {
	ID      string          `json:"id"`
	Exists  bool            `json:"exists"`            // the requested resource exists already
	Creates bool            `json:"creates"`           // the command would make the resource
	Deletes bool            `json:"deletes"`           // the command would delete the resource
	Slices  []string        `json:"slices"`            // slices to delete
	Request json.RawMessage `json:"request,omitempty"` // the request to send
	Gcloud  string          `json:"gcloud,omitempty"`  // the gcloud command that does the same, if there is one
	Parts   []cost.Part     `json:"parts,omitempty"`   // the parts to make or delete, if the resource has several
}

// Text says, for people, what the command would make. name is the resource's name in
// messages.
func (p Plan) Text(name string) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "would create %s", name)
	if len(p.Request) > 0 {
		b.WriteString(":\n")
		_ = json.Indent(&b, p.Request, "", "  ") // the provider has encoded it, so it is valid
	}
	b.WriteString("\n")
	if p.Gcloud != "" {
		b.WriteString("\nthe same with gcloud:\n" + p.Gcloud + "\n")
	}
	if len(p.Parts) > 0 {
		b.WriteString("\nthe parts, once their VMs run:\n" + cost.PartLines(p.Parts))
	}
	return b.String()
}

// List returns the resources of a zone in the form for lists.
func List(all []provision.Resource, zone string, now time.Time) []Listed {
	list := make([]Listed, len(all))
	for i, r := range all {
		list[i] = Listed{
			ID: r.ID, Kind: r.Commands.Kind, State: r.State, Life: r.Life, Failure: r.Failure, Type: r.Type, Tier: r.Tier,
			SliceCount: r.NodeCount, Ready: r.ReadySlices(), Slices: append([]string{}, r.Nodes...), Labels: r.Labels, CreateTime: r.CreateTime,
			Hourly: cost.Hourly(r, zone), SoFar: cost.SoFar(r, zone, now),
		}
		for _, m := range r.Missing {
			list[i].Missing = append(list[i].Missing, m.Name)
		}
		if !r.Until.IsZero() {
			list[i].Until = &r.Until
		}
	}
	return list
}

// Table returns a list for people, or "" for an empty list.
func Table(list []Listed, now time.Time) string {
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }
	row("ID", "KIND", "STATE", "TYPE", "TIER", "READY", "AGE", "PER HOUR", "SO FAR", "ENDS IN", "OWNER")
	for _, r := range list {
		age, ends, owner := "-", "-", "-"
		if !r.CreateTime.IsZero() {
			age = event.Age(now.Sub(r.CreateTime))
		}
		if r.Until != nil {
			ends = event.Age(r.Until.Sub(now))
		}
		if r.Labels[provision.LabelTool] == provision.ToolName {
			owner = cmp.Or(r.Labels[provision.LabelUser], r.Labels[provision.LabelRun], "-")
		}
		row(r.ID, r.Kind, r.State, cmp.Or(r.Type, "-"), cmp.Or(string(r.Tier), "-"), fmt.Sprintf("%d/%d", r.Ready, r.SliceCount), age, cost.Price(r.Hourly), cost.Price(r.SoFar), ends, owner)
	}
	_ = w.Flush() // a strings.Builder returns no error
	return b.String()
}
