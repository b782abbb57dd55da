package workloads

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"multihost/internal/event"
	"multihost/internal/workload"
)

// Table formats workloads for people.
func Table(rows []Row, now time.Time) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tSLICES\tWORKERS\tNODES\tPRIORITY\tAHEAD\tRESTARTS\tAGE\tUSER")
	for _, r := range rows {
		ahead := "-"
		if r.Ahead != nil {
			ahead = fmt.Sprint(*r.Ahead)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%d\t%s\t%s\n", r.Name, r.State, r.Slices, r.Workers, dash(r.Nodes), dash(r.Priority), ahead, r.Restarts, event.Age(now.Sub(r.Created)), dash(r.User))
	}
	w.Flush()
	return b.String()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// String formats a status for people.
func (s Status) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "workload %s: %s", s.Name, s.State)
	if s.Message != "" && s.State == workload.Failed {
		b.WriteString(", " + s.Message)
	}
	b.WriteByte('\n')
	if s.Wait != nil {
		fmt.Fprintf(&b, "it waits: %s\n", s.Wait.Why)
		if !s.Wait.Normal {
			fmt.Fprintf(&b, "type: %s\n", s.Wait.Command)
		}
	}
	for _, a := range s.Attempts {
		fmt.Fprintf(&b, "attempt %d", a.Number)
		if a.Failure != "" {
			b.WriteString(" failed: " + a.Failure)
		}
		b.WriteByte('\n')
		if a.Replaced != "" {
			fmt.Fprintf(&b, "  the cluster has replaced the pod of %s, and the other workers may wait for the one that is gone\n", a.Replaced)
		}
		w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		for _, p := range a.Pods {
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", p.Worker, p.Text, dash(p.Node), p.Name)
		}
		w.Flush()
	}
	return b.String()
}
