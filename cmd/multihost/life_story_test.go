package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"pgregory.net/rapid"

	"multihost/internal/stage"
)

// A lifeStory is what happens to one job after its first command.
type lifeStory struct {
	lease, ttl            time.Duration
	keep                  string // "", "keep", "on failure" or "on failure 10m"
	restarts, preemptions int
	workers               int           // number of workers of each of the two slices; 0 means 1
	lasts                 time.Duration // how long the command runs
	fails                 int           // the attempt that fails on a worker; 0: none
	steps                 []lifeDeed

	onGCE bool // Compute Engine makes the slices; otherwise they belong to a queued resource
	bound bool // with onGCE: the slices are on demand with a maximum run duration; otherwise they are spot
}

// A workerFate is how the command runs on one worker.
type workerFate struct {
	lasts time.Duration
	code  int
}

func (s lifeStory) fate(node string, attempt int) workerFate {
	if attempt == s.fails && strings.HasSuffix(node, "-1") {
		return workerFate{s.lasts / 2, 3}
	}
	return workerFate{lasts: s.lasts}
}

func (s lifeStory) perSlice() int { return max(1, s.workers) }

// needs reports whether a step of the story is of the kind what.
func (s lifeStory) needs(what string) bool {
	return slices.ContainsFunc(s.steps, func(d lifeDeed) bool { return d.what == what })
}

// A lifeDeed is one thing that happens in a story, and the time that passes after it.
type lifeDeed struct {
	what    string
	machine int           // for a kind with onMachine: the index of the machine
	worker  int           // for a kind with onWorker: the worker's number; first come the workers 0 of all slices, then the workers 1
	lasts   time.Duration // how long the fault lasts
	then    time.Duration
}

func (d lifeDeed) String() string {
	deed := lifeDeeds()[d.what]
	text := d.what
	switch deed.on {
	case onMachine:
		text += " on " + []string{"the laptop", "the desk"}[d.machine]
	case onWorker:
		text += fmt.Sprintf(" m-%d", d.worker%lifeSlices)
		if d.worker >= lifeSlices {
			text += fmt.Sprintf(", worker %d", d.worker/lifeSlices)
		}
	}
	if deed.lasts {
		text += " for " + d.lasts.String()
	}
	return fmt.Sprintf("%-60s then %s", text, d.then)
}

func (s lifeStory) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "job of 2 × %d with --lease=%s --ttl=%s, keep: %q, --max-restarts=%d --max-preemptions=%d; its command takes %s", s.perSlice(), s.lease, s.ttl, s.keep, s.restarts, s.preemptions, s.lasts)
	if s.onGCE {
		fmt.Fprintf(&b, "; on Compute Engine, on demand: %v", s.bound)
	}
	if s.fails > 0 {
		fmt.Fprintf(&b, " and fails on m-1 in attempt %d", s.fails)
	}
	b.WriteString("\n")
	for i, d := range s.steps {
		fmt.Fprintf(&b, "%3d. %s\n", i+1, d)
	}
	return b.String()
}

// The targets of deeds.
const (
	onCloud = iota
	onMachine
	onWorker
)

// A lifeDeedKind is one kind of deed.
type lifeDeedKind struct {
	on    int
	lasts bool // the deed lasts for a time
	often int  // weight in the random choice of deeds
	wide  int  // additional weight if lifeDraw.wide is set
	loss  bool // the deed may cost the run an attempt
	onGCE bool // only slices of Compute Engine have this deed
	do    func(w *lifeWorld, d lifeDeed)
}

func lifeDeeds() map[string]lifeDeedKind {
	typing := func(verb string, asks bool) func(w *lifeWorld, d lifeDeed) {
		return func(w *lifeWorld, d lifeDeed) {
			if m := w.machines[d.machine]; len(m.running()) < 2 {
				m.start(verb, asks)
			}
		}
	}
	signal := func(sig syscall.Signal) func(w *lifeWorld, d lifeDeed) {
		return func(w *lifeWorld, d lifeDeed) {
			if p := w.machines[d.machine].newest(); p != nil {
				p.signal(sig)
			}
		}
	}
	answer := func(a stage.Answer) func(w *lifeWorld, d lifeDeed) {
		return func(w *lifeWorld, d lifeDeed) {
			if p := w.machines[d.machine].newest(); p != nil {
				p.signal(syscall.SIGINT)
				select {
				case p.keys <- a:
				default:
				}
			}
		}
	}
	api := func(code int) func(w *lifeWorld, d lifeDeed) {
		return func(w *lifeWorld, d lifeDeed) {
			w.mu.Lock()
			w.apiCode, w.apiUntil = code, time.Now().Add(d.lasts)
			w.mu.Unlock()
		}
	}
	// fault returns a function that sets a fault of the simulator: tpu for a queued resource,
	// compute for slices that Compute Engine makes. The cloud may have nothing that the
	// fault affects.
	fault := func(tpu, compute string) func(w *lifeWorld, d lifeDeed) {
		return func(w *lifeWorld, d lifeDeed) {
			if w.story.onGCE {
				tpu = compute
			}
			if w.story.bound { // no provider preempts such VMs
				tpu = strings.Replace(tpu, "group-preempt", "group-host-error", 1)
			}
			_ = w.hit(tpu, d)
		}
	}
	onGCE := func(k lifeDeedKind, text string) lifeDeedKind {
		k.onGCE, k.do = true, fault("", text)
		return k
	}
	away := func(how string) func(w *lifeWorld, d lifeDeed) {
		return func(w *lifeWorld, d lifeDeed) { w.awayFor(d.worker, how, d.lasts) }
	}
	return map[string]lifeDeedKind{
		"type job":                       {on: onMachine, often: 8, do: typing("job", false)},
		"type job at a terminal":         {on: onMachine, often: 4, do: typing("job", true)},
		"type attach":                    {on: onMachine, often: 2, do: typing("attach", false)},
		"type attach at a terminal":      {on: onMachine, often: 1, do: typing("attach", true)},
		"type stop":                      {on: onMachine, often: 1, do: typing("stop", false)},
		"type job --detach":              {on: onMachine, often: 2, do: typing("detach", false)},
		"type run --detach":              {on: onMachine, often: 1, do: typing("leave", false)},
		"type run":                       {on: onMachine, often: 1, do: typing("run", false)},
		"type gc --delete":               {on: onMachine, often: 1, do: typing("gc", false)},
		"Ctrl-C":                         {on: onMachine, often: 3, do: signal(syscall.SIGINT)},
		"Ctrl-C and the answer stop":     {on: onMachine, often: 1, do: answer(stage.Stop)},
		"Ctrl-C and the answer detach":   {on: onMachine, often: 1, do: answer(stage.Detach)},
		"Ctrl-C and the answer continue": {on: onMachine, often: 1, do: answer(stage.Continue)},
		"SIGTERM":                        {on: onMachine, often: 2, do: signal(syscall.SIGTERM)},
		"SIGHUP":                         {on: onMachine, often: 2, do: signal(syscall.SIGHUP)},
		"kill -9":                        {on: onMachine, often: 8, do: func(w *lifeWorld, d lifeDeed) { w.machines[d.machine].switchOff() }},
		"no network":                     {on: onMachine, lasts: true, often: 2, do: func(w *lifeWorld, d lifeDeed) { w.offlineFor(d.machine, d.lasts) }},
		"the API answers 503":            {lasts: true, often: 2, do: api(503)},
		"the API answers 429":            {lasts: true, often: 1, do: api(429)},
		"the API takes 30s to answer":    {lasts: true, often: 1, do: func(w *lifeWorld, d lifeDeed) { w.slowFor(d.lasts) }},
		fullDisk:                         {on: onMachine, lasts: true, often: 2, do: func(w *lifeWorld, d lifeDeed) { w.fillFor(d.machine, d.lasts) }},
		"the next 3 calls are done and not answered": {often: 1, do: func(w *lifeWorld, _ lifeDeed) { w.mu.Lock(); w.drops = 3; w.mu.Unlock() }},
		"no capacity":                      {lasts: true, often: 1, do: func(w *lifeWorld, d lifeDeed) { w.starveFor(d.lasts) }},
		"the queued resource fails":        {often: 1, loss: true, do: fault("qr-failed qr=m message='an internal error has occurred'", "group-error group=m-1 n=1")},
		"the queued resource is suspended": {often: 2, loss: true, do: fault("qr-suspended qr=m", "group-preempt group=m-*")},
		"preempted is":                     {on: onWorker, often: 2, loss: true, do: fault("preempt node=m-%d", "group-preempt group=m-%d")},
		"maintenance of":                   {on: onWorker, often: 1, loss: true, do: fault("maintenance node=m-%d", "group-maintenance group=m-%d")},
		"a reboot of":                      {on: onWorker, often: 2, loss: true, do: fault("worker-reboot node=m-%d", "worker-reboot node=m-%d")},
		"no answer from":                   {on: onWorker, lasts: true, often: 4, do: away("hang")},
		nobodyAnswers:                      {lasts: true, often: 1, do: func(w *lifeWorld, d lifeDeed) { w.allAwayFor(d.lasts) }},
		"connections are refused by":       {on: onWorker, lasts: true, often: 2, do: away("refuse")},
		"new host keys of":                 {on: onWorker, often: 1, do: func(w *lifeWorld, d lifeDeed) { w.rotate(d.worker) }},
		"the command fails on":             {on: onWorker, often: 2, do: func(w *lifeWorld, d lifeDeed) { w.fails(d.worker) }},
		"logs cannot be read on":           {on: onWorker, lasts: true, often: 1, do: func(w *lifeWorld, d lifeDeed) { w.unreadFor(d.worker, d.lasts) }},
		"nothing":                          {often: 2, do: func(*lifeWorld, lifeDeed) {}},

		"the API answers 403":                                  {lasts: true, wide: 2, do: api(403)},
		"the API answers 500":                                  {lasts: true, wide: 1, do: api(500)},
		"the next 3 calls are not done":                        {wide: 2, do: func(w *lifeWorld, _ lifeDeed) { w.mu.Lock(); w.losses = 3; w.mu.Unlock() }},
		"changes of a state take 1m more":                      {lasts: true, wide: 2, do: func(w *lifeWorld, d lifeDeed) { w.injectFor("slow-operations delay=1m", "slow-operations", d.lasts) }},
		"the next operation fails":                             {wide: 1, do: fault("op-error code=500 message='an internal error has occurred' n=1", "compute-op-error message='an internal error has occurred' n=1")},
		"the next deletion is stuck":                           {wide: 2, do: fault("delete-stuck qr=m n=1", "compute-op-error message='an internal error has occurred' n=1")},
		"the queued resource fails when it waits":              {wide: 1, loss: true, do: fault("qr-failed qr=m state=WAITING_FOR_RESOURCES message='an internal error has occurred'", "group-error group=m-0 n=1")},
		"the queued resource is suspended when it gets slices": {wide: 1, loss: true, do: fault("qr-suspended qr=m state=PROVISIONING", "group-preempt group=m-*")},
		"preempted and gone is":                                {on: onWorker, wide: 2, loss: true, do: fault("preempt node=m-%d vanish=true", "group-preempt group=m-%d")},
		"somebody deletes the queued resource":                 {wide: 1, loss: true, do: func(w *lifeWorld, _ lifeDeed) { w.deleteByPerson() }},
		"all workers reboot": {wide: 2, loss: true, do: func(w *lifeWorld, _ lifeDeed) {
			_ = errors.Join(w.inject("worker-reboot node=m-0"), w.inject("worker-reboot node=m-1"))
		}},
		"connections break to": {on: onWorker, wide: 2, do: func(w *lifeWorld, d lifeDeed) {
			if vm := w.on(d.worker); vm != nil {
				vm.cut("", false)
			}
		}},
		"connections are accepted, and nothing is said, by": {on: onWorker, lasts: true, wide: 2, do: away("freeze")},

		"no quota":                           onGCE(lifeDeedKind{lasts: true, often: 1}, "group-quota group=m-*"),
		"a VM does not boot in":              onGCE(lifeDeedKind{on: onWorker, lasts: true, often: 1}, "group-stuck group=m-%d worker=0"),
		"the VMs end while they are made in": onGCE(lifeDeedKind{on: onWorker, often: 1, loss: true}, "group-error group=m-%d n=1"),
		"the host fails of":                  onGCE(lifeDeedKind{on: onWorker, often: 3, loss: true}, "group-host-error group=m-%d"),
		"no slice is repaired":               onGCE(lifeDeedKind{lasts: true, often: 2}, "group-no-recovery group=m-*"),
		"the topology fails of":              onGCE(lifeDeedKind{on: onWorker, lasts: true, often: 1, loss: true}, "group-topology state=FAILED group=m-%d"),
		"the topology is damaged of":         onGCE(lifeDeedKind{on: onWorker, lasts: true, often: 1}, "group-topology state=ACTIVE_DEGRADED group=m-%d"),
		"the topology lacks VMs of":          onGCE(lifeDeedKind{on: onWorker, lasts: true, often: 1, loss: true}, "group-topology state=INCOMPLETE group=m-%d"),
		"the run duration is over of":        {on: onWorker, often: 1, loss: true, onGCE: true, do: func(w *lifeWorld, d lifeDeed) { w.runEnds(d) }},
		"a person deletes a VM of":           {on: onWorker, often: 1, loss: true, onGCE: true, do: func(w *lifeWorld, d lifeDeed) { w.vmGoes(d) }},
		"a person deletes the group of":      {on: onWorker, often: 1, loss: true, onGCE: true, do: func(w *lifeWorld, d lifeDeed) { w.groupGoes(d) }},
	}
}

// A lifeDraw has the values from which random stories are made.
type lifeDraw struct {
	deeds               []string
	times               []time.Duration // the possible times between two deeds
	faults              []time.Duration // how long faults can last
	leases, ttls, lasts []time.Duration
	keeps               []string
	preemptions         []int
	workers             []int // numbers of workers that a slice may have
	plots               []lifePlot
	fewest, steps       int  // number of deeds after the first one
	wide                bool // more kinds of faults
	onGCE               bool
}

// lifeWhole returns a lifeDraw with all kinds of deeds on queued resources, and the times that
// people and clouds take.
func lifeWhole() lifeDraw {
	return lifeDraw{
		deeds:       lifeDeedsOn(false),
		times:       []time.Duration{time.Second, 10 * time.Second, 40 * time.Second, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute},
		faults:      []time.Duration{20 * time.Second, 2 * time.Minute, 6 * time.Minute, 20 * time.Minute},
		leases:      []time.Duration{5 * time.Minute, 5 * time.Minute, 5 * time.Minute, time.Minute, 20 * time.Minute},
		ttls:        []time.Duration{0, 0, 0, 30 * time.Minute},
		lasts:       []time.Duration{10 * time.Minute, 30 * time.Second, 3 * time.Minute, 40 * time.Minute},
		keeps:       []string{"", "", "", "", "keep", "on failure", "on failure 10m"},
		preemptions: []int{-1, -1, 0, 1},
		workers:     []int{1, 1, 1, 1, 2},
		plots:       lifePlots(),
		steps:       8,
	}
}

// lifeDeedsOn returns the deeds for slices of Compute Engine if compute is true, otherwise
// those for queued resources.
func lifeDeedsOn(compute bool) []string {
	kinds := lifeDeeds()
	return slices.DeleteFunc(sortedKeys(kinds), func(name string) bool { return kinds[name].onGCE && !compute })
}

// lifeOnGCE is lifeWhole for slices that Compute Engine makes.
func lifeOnGCE() lifeDraw {
	from := lifeWhole()
	from.onGCE, from.deeds = true, lifeDeedsOn(true)
	return from
}

func (from lifeDraw) draw(t *rapid.T, names []string, perSlice int, faults, times []time.Duration) lifeDeed {
	d := lifeDeed{what: rapid.SampledFrom(names).Draw(t, "what")}
	kind := lifeDeeds()[d.what]
	switch kind.on {
	case onMachine:
		d.machine = rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "machine")
	case onWorker:
		d.worker = rapid.IntRange(0, lifeSlices*perSlice-1).Draw(t, "worker")
	}
	if kind.lasts {
		d.lasts = rapid.SampledFrom(faults).Draw(t, "lasts")
	}
	d.then = rapid.SampledFrom(times).Draw(t, "then")
	return d
}

// A lifePlot is a sequence of deeds that chance alone rarely combines.
type lifePlot struct {
	rows [][]string // one deed of each row, chosen at random, becomes a part of the story. All these deeds are on one machine

	// With runs, the plot begins after the first deed, on the same machine, once the
	// command runs. The deeds after the plot wait until its effects have had time to show.
	runs bool
}

// lifePlots returns plots in which two commands disturb each other. They have found faults.
func lifePlots() []lifePlot {
	unreached := []string{"no answer from", "no answer from", "connections are refused by", "new host keys of", "a reboot of"}
	unseen := append([]string{nobodyAnswers, nobodyAnswers, nobodyAnswers, nobodyAnswers}, unreached...)
	ends := []string{"type stop", "SIGTERM", "Ctrl-C", "Ctrl-C and the answer stop", "the command fails on"}
	return []lifePlot{
		{rows: [][]string{{"kill -9", "SIGHUP", "Ctrl-C and the answer detach"}, unseen, {"type job", "type job at a terminal"}}, runs: true}, // a take-over
		{rows: [][]string{{"logs cannot be read on"}, ends}},
		{rows: [][]string{unreached, ends}},
		{rows: [][]string{{fullDisk}, ends}},
		{rows: [][]string{{"kill -9", "no network"}, {"nothing"}, {"preempted is", "the queued resource is suspended"}, {"type job"}}},
	}
}

func (p lifePlot) draw(t *rapid.T, from lifeDraw, perSlice int) (deeds []lifeDeed) {
	machine := 0
	if !p.runs {
		machine = rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "machine of the plot")
	}
	for i, names := range p.rows {
		times := from.times // if p.runs is set, the last deed gets a long time, because its effect shows late
		switch {
		case i < len(p.rows)-1:
			times = times[:len(times)/2]
		case p.runs:
			times = times[len(times)/2:]
		}
		d := from.draw(t, names, perSlice, from.faults[1:], times)
		d.machine = machine
		deeds = append(deeds, d)
	}
	return deeds
}

func lifeStories(from lifeDraw) *rapid.Generator[lifeStory] {
	kinds := lifeDeeds()
	var names []string
	for _, name := range from.deeds {
		often := kinds[name].often
		if from.wide {
			often += kinds[name].wide
		}
		names = append(names, slices.Repeat([]string{name}, often)...)
	}
	perSlice := 1
	deed := rapid.Custom(func(t *rapid.T) lifeDeed {
		return from.draw(t, names, perSlice, from.faults, from.times)
	})
	return rapid.Custom(func(t *rapid.T) lifeStory {
		s := lifeStory{
			lease:       rapid.SampledFrom(from.leases).Draw(t, "lease"),
			ttl:         rapid.SampledFrom(from.ttls).Draw(t, "ttl"),
			keep:        rapid.SampledFrom(from.keeps).Draw(t, "keep"),
			restarts:    rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "restarts"),
			preemptions: rapid.SampledFrom(from.preemptions).Draw(t, "preemptions"),
			lasts:       rapid.SampledFrom(from.lasts).Draw(t, "command lasts"),
			fails:       rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "fails"),
			workers:     rapid.SampledFrom(from.workers).Draw(t, "workers of a slice"),
			onGCE:       from.onGCE,
		}
		if from.onGCE {
			s.bound = rapid.Bool().Draw(t, "on demand")
		}
		perSlice = s.workers
		first := lifeDeed{what: rapid.SampledFrom([]string{"type job", "type job at a terminal"}).Draw(t, "first"), then: rapid.SampledFrom(from.times).Draw(t, "then")}
		steps := rapid.SliceOfN(deed, from.fewest, from.steps).Draw(t, "steps")
		if plots := from.plots; len(plots) > 0 && rapid.IntRange(0, 2).Draw(t, "has a plot") == 0 {
			plot := rapid.SampledFrom(plots).Draw(t, "plot")
			at := 0
			if plot.runs {
				first.then = rapid.SampledFrom(from.times[len(from.times)/2:]).Draw(t, "the command runs")
			} else {
				at = rapid.IntRange(0, len(steps)).Draw(t, "where") * rapid.IntRange(0, 1).Draw(t, "later")
			}
			steps = slices.Insert(steps, at, plot.draw(t, from, perSlice)...)
		}
		s.steps = append([]lifeDeed{first}, steps...)
		return s
	})
}
