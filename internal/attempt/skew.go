package attempt

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// SkewMode says what happens if workers have different versions or code.
type SkewMode string

// Modes. The zero value compares nothing, like SkewOff.
const (
	SkewCheck SkewMode = "check" // start nothing
	SkewWarn  SkewMode = "warn"
	SkewOff   SkewMode = "off"
)

// A Skew is one difference between workers.
type Skew struct {
	What   string      `json:"what"` // python, jax, jaxlib, libtpu, code
	Values []SkewValue `json:"values"`
}

// SkewValue is a value and its workers. In a Skew, the most frequent value comes first.
type SkewValue struct {
	Value   string `json:"value"`
	Workers string `json:"workers"` // folded
	Count   int    `json:"count"`
}

// checkSkew compares the reports of the armed workers. It skips values that a worker could
// not report.
func (r *start) checkSkew(armed []*launch.Armed) error {
	if r.O.Skew != SkewCheck && r.O.Skew != SkewWarn {
		return nil
	}
	found := make([]map[string]string, len(armed))
	for i, a := range armed {
		found[i] = a.Versions()
	}
	if text := oldJAX(r.workers.Slices, len(armed), found[0]["jax"]); text != "" {
		event.Notef(r.Sink, event.Warn, "multihost exec "+r.Flag(r.O.Prefix)+" -- "+remote.Quote(r.pythonFromHome(), "-m", "pip", "install", "--upgrade", "jax"), "%s", text)
	}
	skews := findSkews(r.workers.IDs, found)
	if len(skews) == 0 {
		return nil
	}
	r.Sink.Emit(event.Result{Name: "skew", Data: skews})
	text := "the workers differ in what the command will meet:\n" + skewTable(skews)
	advice := "more of it: multihost exec " + r.Flag(r.O.Prefix) + " -- " + remote.Quote(r.pythonFromHome(), "-m", "pip", "freeze")
	if len(skews) == 1 && skews[0].What == "code" {
		advice = "ship the directory again: without --use-existing-folder"
	}
	if r.O.Skew == SkewCheck {
		return &stage.Error{Stage: stage.Skew, Text: text, Advice: advice + "; to start all the same: --skew=warn"}
	}
	event.Notef(r.Sink, event.Warn, advice+"; to stop here instead: --skew=check", "%s", text)
	return nil
}

// oldJAX returns a warning if this version of JAX cannot connect the VMs of these slices by
// their bare names. Otherwise, and for an unknown version, it returns "". JAX understands
// bare names from 0.10.0 on. Older versions expect host:port:address and take its third
// part.
func oldJAX(all []tpu.Slice, workers int, version string) string {
	if workers < 2 || !slices.ContainsFunc(all, func(s tpu.Slice) bool { return s.BareNames }) {
		return ""
	}
	major, minor := 0, 0
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 || major > 0 || minor >= 10 {
		return ""
	}
	return "jax " + version + " does not understand the bare names by which these VMs know each other, and its processes may fail to connect; jax understands them from 0.10.0 on"
}

// pythonFromHome returns the interpreter as a path from the home directory.
func (r *start) pythonFromHome() string {
	python := pythonOf(r.O.Argv, r.O.Script)
	if strings.Contains(python, "/") && !strings.HasPrefix(python, "/") && !strings.HasPrefix(python, "~/") {
		python = path.Join(r.O.Run, python)
	}
	if r.O.Venv && !strings.Contains(python, "/") {
		python = launch.VenvDir(r.O.Run) + "/bin/" + python
	}
	return strings.TrimPrefix(python, "~/")
}

func findSkews(ids []tpu.WorkerID, found []map[string]string) (skews []Skew) {
	for _, what := range []string{"python", "jax", "jaxlib", "libtpu", "code"} {
		var order []string
		who := map[string][]tpu.WorkerID{}
		for i, versions := range found {
			v, known := versions[what]
			if !known {
				continue
			}
			if who[v] == nil {
				order = append(order, v)
			}
			who[v] = append(who[v], ids[i])
		}
		if len(order) < 2 {
			continue
		}
		slices.SortStableFunc(order, func(a, b string) int { return len(who[b]) - len(who[a]) })
		s := Skew{What: what}
		for _, v := range order {
			s.Values = append(s.Values, SkewValue{Value: v, Workers: tpu.Fold(who[v]), Count: len(who[v])})
		}
		skews = append(skews, s)
	}
	return skews
}

// mostValues limits the values of one thing in a message.
const mostValues = 6

func skewTable(skews []Skew) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, s := range skews {
		for i, v := range s.Values {
			what := s.What
			if i > 0 {
				what = ""
			}
			if i == mostValues {
				fmt.Fprintf(w, "\t… and %d others\t\n", len(s.Values)-i)
				break
			}
			fmt.Fprintf(w, "%s\t%s\t%s (%d)\n", what, v.Value, v.Workers, v.Count)
		}
	}
	w.Flush()
	return b.String()
}

var (
	pythonName = regexp.MustCompile(`^python[0-9.]*$`)
	activated  = regexp.MustCompile(`(?:^|[\s;&|(])(?:source|\.)\s+["']?([^\s;&|'"()$]+)/bin/activate\b`)
	named      = regexp.MustCompile(`(?:^|[\s;&|("'=])((?:[^\s;&|'"()$=]*/)?python[0-9.]*)(?:[\s;&|)"']|$)`)
)

// pythonOf returns the interpreter of a command, from its text: an interpreter that the
// text calls, the interpreter of an environment that it activates, or python3.
func pythonOf(argv []string, script string) string {
	if len(argv) > 0 {
		for _, w := range argv {
			if pythonName.MatchString(path.Base(w)) {
				return w
			}
			if !strings.Contains(w, "=") && w != "env" && w != "exec" {
				break
			}
		}
		script = strings.Join(argv, "\n") // as with bash -c
	}
	script = strings.NewReplacer("${HOME}/", "~/", "$HOME/", "~/").Replace(script)
	if m := activated.FindStringSubmatch(script); m != nil {
		return m[1] + "/bin/python"
	}
	if m := named.FindStringSubmatch(script); m != nil {
		return m[1]
	}
	return "python3"
}
