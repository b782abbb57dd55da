package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"multihost/internal/tpu"
)

// Fold returns one line about the results of the settings on all workers. reports[i] is the
// report of workers[i]. Examples:
//
//	12/12 settings on s[0-1]w[0-3]
//	12/12 settings on s0w[0-3],s1w[0-1,3]; rto_min failed on s1w2: Operation not permitted
//
// Settings that failed on one worker for the same reason share a clause.
//
// A skipped setting counts as done, because the worker does not have it.
func Fold(workers []tpu.WorkerID, reports []Report) string {
	var parts []string
	counts := group(workers, reports, func(r Report) []string {
		return []string{fmt.Sprintf("%d/%d settings", len(r.Results)-len(r.Failures()), len(r.Results))}
	})
	for _, g := range counts {
		parts = append(parts, fmt.Sprintf("%s on %s", g.key, tpu.Fold(g.workers)))
	}
	failures := group(workers, reports, func(r Report) []string {
		var keys []string
		at := map[string]int{} // by reason
		for _, f := range r.Failures() {
			i, ok := at[f.Reason]
			if !ok {
				at[f.Reason] = len(keys)
				keys = append(keys, f.Setting+"\x00"+f.Reason)
				continue
			}
			keys[i] = strings.Replace(keys[i], "\x00", ", "+f.Setting+"\x00", 1)
		}
		return keys
	})
	for _, g := range failures {
		settings, reason, _ := strings.Cut(g.key, "\x00")
		parts = append(parts, fmt.Sprintf("%s failed on %s: %s", settings, tpu.Fold(g.workers), reason))
	}
	return strings.Join(parts, "; ")
}

// Table writes one row for each setting and each different result of it, with the workers
// that have this result.
func Table(workers []tpu.WorkerID, reports []Report) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "SETTING\tWANT\tBEFORE\tAFTER\tOUTCOME\tWORKERS\tREASON")
	for _, r := range Rows(workers, reports) {
		fmt.Fprintln(w, strings.Join([]string{r.Setting, cell(r.Want), cell(r.Before), cell(r.After), string(r.Outcome), r.Workers, r.Reason}, "\t"))
	}
	w.Flush()
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// cell returns value, or a dash for an empty value.
func cell(value string) string {
	if value == "" {
		return "-"
	}
	return value
}

// A Row is one result of one setting, with the workers that have it.
type Row struct {
	Setting string  `json:"setting"`
	Want    string  `json:"want"`
	Before  string  `json:"before"`
	After   string  `json:"after"`
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"`
	Workers string  `json:"workers"` // folded
}

// Rows folds the reports of all workers into one row for each setting and each different
// result of it, in the order of Settings. reports[i] is that of workers[i].
func Rows(workers []tpu.WorkerID, reports []Report) []Row {
	type key struct {
		at int
		Row
	}
	where := map[key][]tpu.WorkerID{}
	order := map[string]int{}
	for i, s := range Settings() {
		order[s.Name] = i
	}
	var keys []key
	for i, r := range reports {
		for _, res := range r.Results {
			k := key{order[res.Setting], Row{Setting: res.Setting, Want: res.Want, Before: res.Before, After: res.After, Outcome: res.Outcome, Reason: res.Reason}}
			if where[k] == nil {
				keys = append(keys, k)
			}
			where[k] = append(where[k], workers[i])
		}
	}
	slices.SortStableFunc(keys, func(a, b key) int { return cmp.Compare(a.at, b.at) })
	rows := make([]Row, len(keys))
	for i, k := range keys {
		rows[i] = k.Row
		rows[i].Workers = tpu.Fold(where[k])
	}
	return rows
}

type grouped struct {
	key     string
	workers []tpu.WorkerID
}

// group collects the workers of each key. The keys are in the order in which they first
// occur.
func group(workers []tpu.WorkerID, reports []Report, keys func(Report) []string) []grouped {
	var groups []grouped
	index := map[string]int{}
	for i, r := range reports {
		for _, key := range keys(r) {
			at, ok := index[key]
			if !ok {
				at = len(groups)
				index[key] = at
				groups = append(groups, grouped{key: key})
			}
			groups[at].workers = append(groups[at].workers, workers[i])
		}
	}
	return groups
}
