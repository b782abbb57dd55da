// Package complete lists what the user can type for multihost's flags and arguments. It knows
// accelerator types, zones and presets. It reads this machine's runs and gcloud's
// configurations. It asks the API for names and keeps them for a minute. If it gets no answer,
// it returns no candidates.
//
// # Decisions
//
//   - A request to the API uses the flags and defaults of the line that the user types, and
//     takes at most 2 seconds.
//   - A test fails for a flag or argument that is neither completed nor in the test's list
//     of free texts.
package complete

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/metrics"
	"multihost/internal/record"
	"multihost/internal/tpu"
	"multihost/internal/xla"
)

// Sources are sources of candidates.
type Sources struct {
	Lookup config.Lookup
	Home   string
	Faults []Fault // of the simulator
	// Ask returns the API's names for a command line. It takes no longer than a user waits
	// after pressing Tab.
	Ask func(q *cmdline.Query) Names
}

// A Fault is a fault of the simulator.
type Fault struct {
	Name string
	What string
	Args []string
}

// Rules returns the rules of completion. dirs are the flags that name directories.
func (s Sources) Rules(dirs []string) cmdline.CompleteRules {
	return cmdline.CompleteRules{
		Values: map[string]cmdline.Source{
			"tpu-prefix":      s.prefixes,
			"prefix":          s.prefixes,
			"tpu-type":        types,
			"machine-type":    machines,
			"runtime-version": runtimes,
			"type":            chips,
			"topology":        topologies,
			"zone":            zones,
			"project":         s.projects,
			"configuration":   s.configurations,
			"profile":         cmdline.Profiles,
			"xla-preset":      presets,
			"host-maintenance-interval": func(*cmdline.Query) []cmdline.Candidate {
				return cmdline.Plain([]string{"AS_NEEDED", "PERIODIC"})
			},
			"xla-flag":        xlaFlags,
			"compare":         func(*cmdline.Query) []cmdline.Candidate { return cmdline.Plain(metrics.Published()) },
			"worker":          s.workers,
			"workers":         s.workers,
			"exclude-workers": s.workers,
			"run-name":        s.runs,
			"sim-fault":       s.faults,
			"fault":           s.faults,
		},
		Words: map[string]cmdline.Source{
			"attach":         first(s.runs),
			"logs":           first(s.runs),
			"stop":           first(s.runs),
			"report":         first(s.runs),
			"top":            first(s.runs),
			"metrics":        first(s.runs),
			"dump":           first(s.runs),
			"qr show":        first(s.queued),
			"qr wait":        first(s.queued),
			"qr delete":      first(s.queued),
			"qr reset":       first(s.queued),
			"slices wait":    first(s.queued),
			"slices delete":  first(s.queued),
			"hostkey forget": s.workers,
			"ssh":            s.workers,
			"xla flags":      flagNames,
			"xla presets":    presets,
			"xla check":      xlaFlags,
			"config show":    cmdline.CommandNames,
			"completion":     func(*cmdline.Query) []cmdline.Candidate { return cmdline.Plain([]string{"bash", "zsh", "fish"}) },
			"sim fault":      s.faultWords,
			"preflight": func(*cmdline.Query) []cmdline.Candidate {
				return cmdline.Plain([]string{"PLATFORM=gce", "PLATFORM=gke"})
			},
		},
		Files:  map[string]cmdline.Kind{"cp": cmdline.Files, "manual": cmdline.Dirs},
		Dirs:   dirs,
		Commas: []string{"xla-preset", "workers", "exclude-workers"},
	}
}

// first returns a source for commands with one argument. It has no candidates for further
// arguments.
func first(of cmdline.Source) cmdline.Source {
	return func(q *cmdline.Query) []cmdline.Candidate {
		if len(q.Words) > 0 {
			return nil
		}
		return of(q)
	}
}

// stateDir returns the directory of the runs' records.
func (s Sources) stateDir(q *cmdline.Query) string {
	return cmp.Or(q.Setting("state-dir"), config.StateDir(s.Lookup, s.Home))
}

// runs returns the runs in this machine's records, the newest first.
func (s Sources) runs(q *cmdline.Query) []cmdline.Candidate {
	dir := s.stateDir(q)
	entries, _ := os.ReadDir(filepath.Join(dir, "runs"))
	type found struct {
		name string
		when time.Time
	}
	var all []found
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() {
			all = append(all, found{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b found) int { return b.when.Compare(a.when) })
	list := make([]cmdline.Candidate, 0, len(all))
	for _, f := range all {
		list = append(list, cmdline.Candidate{Text: f.name, About: event.Age(time.Since(f.when)) + " ago"})
	}
	return list
}

// machines returns Compute Engine's machine types with TPU chips.
func machines(*cmdline.Query) []cmdline.Candidate {
	var list []cmdline.Candidate
	for _, m := range tpu.Machines() {
		list = append(list, cmdline.Candidate{Text: m.Name, About: fmt.Sprintf("%s, %s", m.Generation, event.Count(m.Chips, "chip"))})
	}
	return list
}

// chips returns the kinds of chip for --type.
func chips(q *cmdline.Query) []cmdline.Candidate {
	var list []cmdline.Candidate
	for _, g := range tpu.Generations() {
		if g.CloudAPI {
			list = append(list, cmdline.Candidate{Text: g.Family, About: ""})
		}
	}
	return list
}

// topologies returns the topologies for the value of --type, or all topologies.
func topologies(q *cmdline.Query) []cmdline.Candidate {
	kind := q.Setting("type")
	var list []cmdline.Candidate
	for _, t := range tpu.Types() {
		if kind == "" || t.Generation.Family == kind {
			list = append(list, cmdline.Candidate{Text: t.Topology, About: t.Name})
		}
	}
	return list
}

func types(q *cmdline.Query) []cmdline.Candidate {
	var list []cmdline.Candidate
	for _, t := range tpu.Types() {
		list = append(list, cmdline.Candidate{Text: t.Name, About: fmt.Sprintf("%s, %s", event.Count(t.Chips, "chip"), event.Count(t.Workers, "worker"))})
	}
	return list
}

func runtimes(q *cmdline.Query) []cmdline.Candidate {
	wanted := q.Setting("tpu-type")
	var list []cmdline.Candidate
	for _, g := range tpu.Generations() {
		if g.RuntimeVersion == "" || wanted != "" && !strings.HasPrefix(wanted, g.Family) {
			continue
		}
		if i := slices.IndexFunc(list, func(c cmdline.Candidate) bool { return c.Text == g.RuntimeVersion }); i >= 0 {
			list[i].About += ", " + g.Name
			continue
		}
		list = append(list, cmdline.Candidate{Text: g.RuntimeVersion, About: g.Name})
	}
	return list
}

// zones returns the zones with TPUs in Google's documents, and their generations. The user can
// also type other zones.
func zones(*cmdline.Query) (list []cmdline.Candidate) {
	for _, z := range [][2]string{
		{"asia-east1-c", "v2"}, {"asia-northeast1-b", "v6e"}, {"europe-west4-a", "v2, v3, v6e"}, {"europe-west4-b", "v5e, v5p"},
		{"southamerica-west1-a", "v6e"}, {"us-central1-a", "v2, v3, v5e, v5p"}, {"us-central1-b", "v2, v3, v6e"}, {"us-central1-c", "v2"},
		{"us-central2-b", "v4"}, {"us-east1-d", "v6e"}, {"us-east5-a", "v5p, v6e"}, {"us-east5-b", "v6e"},
		{"us-south1-a", "v5e"}, {"us-west1-c", "v5e"}, {"us-west4-a", "v5e"},
	} {
		list = append(list, cmdline.Candidate{Text: z[0], About: z[1]})
	}
	return list
}

// gcloudFor returns the gcloud configuration of that name, or the active one for "". It only
// reads files.
func (s Sources) gcloudFor(name string) config.Gcloud {
	g, _ := config.LoadGcloud(s.Lookup, s.Home, name)
	return g
}

func (s Sources) configurations(q *cmdline.Query) []cmdline.Candidate {
	var list []cmdline.Candidate
	for _, name := range config.GcloudConfigurations(s.Lookup, s.Home) {
		list = append(list, cmdline.Candidate{Text: name, About: s.gcloudFor(name).Project})
	}
	return list
}

func (s Sources) projects(q *cmdline.Query) []cmdline.Candidate {
	var names []string
	for _, c := range s.configurations(q) {
		names = append(names, c.About)
	}
	names = append(names, s.gcloudFor("").Project)
	slices.Sort(names)
	return cmdline.Plain(slices.DeleteFunc(slices.Compact(names), func(s string) bool { return s == "" }))
}

func presets(q *cmdline.Query) []cmdline.Candidate {
	catalogue := xla.Load()
	generation, _ := catalogue.Generation(q.Setting("tpu-type"))
	var list []cmdline.Candidate
	for _, g := range catalogue.Groups() {
		if !g.Historical && (generation == "" || g.Fits(generation)) {
			name := g.Name
			if g.Parameter && !strings.Contains(name, "=") {
				name += "="
			}
			list = append(list, cmdline.Candidate{Text: name, About: g.About})
		}
	}
	for _, p := range catalogue.Presets() {
		if generation == "" || p.Generation == generation {
			list = append(list, cmdline.Candidate{Text: p.Name, About: p.Model})
		}
	}
	return list
}

func xlaFlags(q *cmdline.Query) []cmdline.Candidate {
	dashes := q.Current[:len(q.Current)-len(strings.TrimLeft(q.Current, "-"))]
	if strings.HasPrefix(q.Current, "--xla-flag=") {
		dashes = ""
	}
	var list []cmdline.Candidate
	for _, f := range xla.Load().Flags() {
		list = append(list, cmdline.Candidate{Text: dashes + f.Name + "=", About: f.Meaning})
	}
	return list
}

func flagNames(q *cmdline.Query) []cmdline.Candidate {
	var list []cmdline.Candidate
	for _, f := range xla.Load().Flags() {
		list = append(list, cmdline.Candidate{Text: f.Name, About: f.Meaning})
	}
	return list
}

func (s Sources) faults(q *cmdline.Query) []cmdline.Candidate {
	var list []cmdline.Candidate
	for _, f := range s.Faults {
		list = append(list, cmdline.Candidate{Text: f.Name, About: f.What})
	}
	return list
}

// faultWords returns the names of faults, then the arguments of the named fault.
func (s Sources) faultWords(q *cmdline.Query) []cmdline.Candidate {
	if len(q.Words) == 0 {
		return append(s.faults(q), cmdline.Candidate{Text: "clear", About: "take faults back"})
	}
	var list []cmdline.Candidate
	for _, f := range s.Faults {
		if f.Name == q.Words[0] {
			for _, arg := range f.Args {
				list = append(list, cmdline.Candidate{Text: arg + "=", About: ""})
			}
		}
	}
	return list
}

// prefixes returns values for --tpu-prefix: names of slices, and common beginnings of
// several names.
func (s Sources) prefixes(q *cmdline.Query) []cmdline.Candidate {
	slicesOf := map[string]int{}
	names := s.Ask(q).Slices
	for name := range names {
		if i := strings.LastIndexByte(name, '-'); i >= 0 && strings.Trim(name[i+1:], "0123456789") == "" {
			slicesOf[name[:i]]++
		}
	}
	var list []cmdline.Candidate
	for base, n := range slicesOf {
		if _, single := names[base]; !single {
			list = append(list, cmdline.Candidate{Text: base, About: event.Count(n, "slice")})
		}
	}
	for name, workers := range names {
		list = append(list, cmdline.Candidate{Text: name, About: event.Count(workers, "worker")})
	}
	slices.SortFunc(list, func(a, b cmdline.Candidate) int { return strings.Compare(a.Text, b.Text) })
	return list
}

func (s Sources) queued(q *cmdline.Query) []cmdline.Candidate { return cmdline.Plain(s.Ask(q).Queued) }

// workers returns the workers of the run that the command line names, or of the slices of
// --tpu-prefix.
func (s Sources) workers(q *cmdline.Query) []cmdline.Candidate {
	var counts []int
	if len(q.Words) > 0 {
		counts, _ = record.Workers(s.stateDir(q), q.Words[0])
	}
	if prefix := q.Setting("tpu-prefix"); counts == nil && prefix != "" {
		names := s.Ask(q).Slices
		if n, ok := names[prefix]; ok {
			counts = []int{n}
		}
		for i := 0; ; i++ {
			n, ok := names[fmt.Sprintf("%s-%d", prefix, i)]
			if !ok {
				break
			}
			counts = append(counts, n)
		}
	}
	var list []cmdline.Candidate
	for s, n := range counts {
		for w := range n {
			list = append(list, cmdline.Candidate{Text: tpu.WorkerID{Slice: s, Worker: w}.String()})
		}
	}
	return list
}
