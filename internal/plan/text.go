package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"multihost/internal/announce"
	"multihost/internal/cost"
	"multihost/internal/event"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// String returns the plan for people: one line for each action, in order, with a sign: +
// makes or sends, - ends or deletes, ~ changes, = uses what exists.
func (p Plan) String() string {
	t := &planText{}
	where := ""
	if p.Project != "" {
		where = fmt.Sprintf(", project %s, zone %s", p.Project, p.Zone)
	}
	fmt.Fprintf(&t.b, "plan of multihost %s: run %s, attempt %d%s; nothing was changed\n", p.Command, p.Run, p.Attempt, where)
	t.b.WriteString("  + makes or sends   ~ changes   - ends or deletes   = is there\n\n")
	p.tellNetwork(t)
	p.tellResource(t)
	p.tellSlices(t)
	p.tellWorkers(t)
	p.tellRest(t)
	p.tellEnvironment(t)
	p.tellRequest(t)
	return t.b.String()
}

// planText collects the lines of the text.
type planText struct{ b strings.Builder }

const planLabel = 10 // width of the labels

func (t *planText) line(sign, label, format string, args ...any) {
	fmt.Fprintf(&t.b, "%s %-*s %s\n", sign, planLabel, label, fmt.Sprintf(format, args...))
}

// more adds a line that continues the previous one.
func (t *planText) more(format string, args ...any) {
	fmt.Fprintf(&t.b, "%*s %s\n", planLabel+2, "", fmt.Sprintf(format, args...))
}

func (p Plan) tellNetwork(t *planText) {
	if p.Network == nil {
		return
	}
	for _, a := range p.Network.Actions {
		if a.Verb != network.Create {
			t.line("=", "network", "%s %s: %s", a.Resource, a.Name, a.Reason)
			continue
		}
		t.line("+", "network", "%s %s", a.Resource, a.Name)
		t.more("%s", a.Gcloud)
	}
}

func (p Plan) tellResource(t *planText) {
	c := p.Resource
	if c == nil {
		return
	}
	what := c.Name
	kind := fmt.Sprintf("%s of %s, %s", event.Count(len(p.Slices), "slice"), p.Slices[0].Type, c.Tier)
	there := "state " + c.State
	if c.Owner != "" {
		there += ", of " + c.Owner
	}
	switch c.Do {
	case ResourceUse:
		t.line("=", "request", "%s is there (%s)", what, there)
	case ResourceReset:
		t.line("~", "request", "%s is there (%s); its VMs are rebooted: %s", what, there, c.Why)
	case ResourceRecreate:
		t.line("-", "request", "%s, which is there (%s), is deleted: %s", what, there, c.Why)
		t.line("+", "", "then it is asked for again: %s", kind)
	default:
		t.line("+", "request", "%s: %s", what, kind)
	}
	if c.Why != "" && c.Do == ResourceUse {
		t.more("%s", c.Why)
	}
	if p.Upload == nil && (c.Do != ResourceUse || !p.Asked) {
		t.more("waits for capacity %s, then %s until the slices are made and %s until they have booted",
			limited(p.Limits.Queue), limited(p.Limits.Provision), limited(p.Limits.Boot))
		if p.Limits.Slices > 0 {
			t.more("if slices are missing %s after the first one has come, all are given back (--slices-deadline)", stage.AsTyped(p.Limits.Slices))
		}
	}
	if p.Upload != nil {
		t.line("+", "upload", "%s: %s", p.Upload.URL, strings.Join(p.Upload.Objects, ", "))
	}
}

func limited(d time.Duration) string {
	if d == 0 {
		return "without limit"
	}
	return "up to " + event.Duration(d)
}

func (p Plan) ids() []tpu.WorkerID {
	var ids []tpu.WorkerID
	for i, s := range p.Slices {
		for w := range s.Workers {
			ids = append(ids, tpu.WorkerID{Slice: i, Worker: w})
		}
	}
	return ids
}

func (p Plan) tellSlices(t *planText) {
	names := make([]string, len(p.Slices))
	for i, s := range p.Slices {
		names[i] = s.Name
	}
	if len(names) > 6 {
		names = append(names[:3], "…", names[len(names)-1])
	}
	first, sign := p.Slices[0], "="
	if first.State == "to be made" {
		sign = "+"
	}
	kind := first.Type
	if first.Topology != "" {
		kind += " " + first.Topology
	}
	if first.Network != "" {
		kind += ", network " + first.Network
	}
	ids := p.ids()
	t.line(sign, "slices", "%s", join(strings.Join(names, ", "), paren(kind)))
	t.more("%s: %s", event.Count(len(ids), "worker"), tpu.Fold(ids))
	if p.Zone != "" {
		t.more("%s", cost.PriceOf(p.Cost.Hourly, first.Type, p.Cost.Tier, p.Zone))
	}
}

func paren(text string) string {
	if text == "" {
		return ""
	}
	return "(" + text + ")"
}

func join(words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

func (p Plan) tellWorkers(t *planText) {
	if p.Upload == nil {
		p.tellLogin(t)
	}
	for _, s := range p.Stops {
		t.line("-", "run", "%s (attempt %d) of %s on %s is stopped: %s", s.Run, s.Attempt, s.Owner, s.Workers, s.Why)
		t.more("%s", s.Command)
	}
	if r := p.TakesOver; r != nil {
		does := "is followed"
		if r.Why != "" {
			does = "stays: " + r.Why
		}
		t.line("=", "run", "attempt %d of %s on %s %s; nothing is sent, set or started", r.Attempt, r.Run, r.Workers, does)
		t.more("%s", r.Command)
		return
	}
	p.tellFiles(t)
	p.tellPreflight(t)
	if p.Start.Venv != "" {
		t.line("+", "venv", "Python virtual environment %s, unless it is there; its python and pip are the command's", p.Start.Venv)
	}
	for _, s := range p.Free.Stopped {
		t.line("-", "TPU", "pid %d of %s on %s, which holds it, is ended (--kill-stale=%s)", s.PID, s.User, s.Worker, p.Free.Policy)
		t.more("%s", s.Command)
	}
	if len(p.Free.Stopped) == 0 && p.Asked && len(p.Stops) == 0 {
		t.line("=", "TPU", "no process that has to be ended holds a TPU device")
	}
	p.tellCommand(t)
}

func (p Plan) tellLogin(t *planText) {
	way := map[overssh.Way]string{overssh.Auto: "by their external addresses, else through Identity-Aware Proxy", overssh.External: "by their external addresses",
		overssh.Internal: "by their internal addresses", overssh.IAP: "through Identity-Aware Proxy"}[p.Login.Way]
	if p.Login.Jump != "" {
		way += " behind " + p.Login.Jump
	}
	switch {
	case p.Login.Cluster != "":
		t.line("=", "login", "as %s in the pods of cluster %s", p.Login.User, p.Login.Cluster)
	case p.Login.Key == "":
		t.line("+", "login", "the SSH key %s is made", p.Login.File)
		t.more("as %s, %s", p.Login.User, way)
	case p.Login.Adds != "":
		t.line("+", "login", "the SSH key %s is added to %s", p.Login.File, p.Login.Adds)
		t.more("as %s, %s", p.Login.User, way)
	default:
		t.line("=", "login", "as %s with %s, %s", p.Login.User, p.Login.File, way)
	}
	if !p.Asked {
		t.more("the workers were not asked what they have: %s", p.Why)
	}
}

func (p Plan) tellFiles(t *planText) {
	f := p.Files
	if f == nil {
		t.line("=", "files", "nothing is sent; ~/%s is used as it is", p.Run)
		return
	}
	t.line("+", "files", "%s, %s, of %s to %s", event.Count(f.Count, "file"), event.Bytes(f.Bytes), f.Dir, f.To)
	if p.Asked && p.Upload == nil {
		for _, g := range p.groups(func(w PlannedWorker) string {
			text := "nothing new"
			if *w.Files > 0 {
				text = fmt.Sprintf("%d new, %s before compression", *w.Files, event.Bytes(*w.Bytes))
			}
			if *w.Removed > 0 {
				text += fmt.Sprintf("; %s of the last sync removed", event.Count(*w.Removed, "file"))
			}
			return text
		}) {
			t.more("%s: %s", tpu.Fold(g.workers), g.text)
		}
	}
	t.more("digest %s", f.Digest)
	for i, text := range f.Ignored {
		if i == 10 {
			t.more("not sent: %d more", len(f.Ignored)-i)
			break
		}
		t.more("not sent: %s", text)
	}
}

// A planGroup is a group of workers with the same text.
type planGroup struct {
	text    string
	workers []tpu.WorkerID
}

// groups joins workers for which text returns the same.
func (p Plan) groups(text func(PlannedWorker) string) []planGroup {
	var all []planGroup
	for i, id := range p.ids() {
		said := text(p.Workers[i])
		at := slices.IndexFunc(all, func(g planGroup) bool { return g.text == said })
		if at < 0 {
			at = len(all)
			all = append(all, planGroup{text: said})
		}
		all[at].workers = append(all[at].workers, id)
	}
	return all
}

func (p Plan) tellPreflight(t *planText) {
	f := p.Preflight
	switch {
	case f == nil || f.Mode == "off":
		t.line("=", "preflight", "off")
	case f.Mode == "check":
		t.line("=", "preflight", "settings are only read")
	case !p.Asked:
		t.line("~", "preflight", "settings are made as wanted (--preflight=%s)", f.Mode)
	case len(f.Changes) == 0:
		t.line("=", "preflight", "all settings are as wanted")
	default:
		t.line("~", "preflight", "%s changed (--preflight=%s)", event.Count(len(f.Changes), "setting"), f.Mode)
	}
	if f == nil {
		return
	}
	for _, c := range f.Changes {
		text := fmt.Sprintf("%s: %s → %s on %s", c.Setting, orNothing(c.From), c.To, c.Workers)
		if c.Reason != "" {
			text = fmt.Sprintf("%s stays %s on %s: %s", c.Setting, orNothing(c.From), c.Workers, c.Reason)
		}
		t.more("%s", text)
	}
	for _, text := range f.Notes {
		t.more("%s", text)
	}
}

func orNothing(text string) string {
	if text == "" {
		return "nothing"
	}
	return text
}

func (p Plan) tellCommand(t *planText) {
	ids := p.ids()
	what := "a bash script"
	lines := strings.Split(strings.TrimRight(p.Start.Script, "\n"), "\n")
	if len(p.Start.Argv) > 0 {
		what, lines = "a program, without a shell", []string{remote.Quote(p.Start.Argv...)}
	}
	if p.Start.Processes > 1 {
		what += fmt.Sprintf(", %d processes on each", p.Start.Processes)
	}
	t.line("+", "command", "%s, in %s on %s at once, once all are ready", what, p.Start.Directory, tpu.Fold(ids))
	for _, line := range lines {
		t.more("    %s", line)
	}
	for _, g := range p.groups(func(w PlannedWorker) string { return strings.Join(w.Wrap, " ") }) {
		if g.text != "" && p.Start.Processes == 1 {
			t.more("run by %s on %s", g.text, tpu.Fold(g.workers))
		}
	}
}

func (p Plan) tellRest(t *planText) {
	l := p.Limits
	var parts []string
	if l.Command > 0 {
		parts = append(parts, "stopped after "+event.Duration(l.Command))
	} else {
		parts = append(parts, "no time limit")
	}
	if l.FailFast {
		parts = append(parts, "the first failure stops all workers")
	} else {
		parts = append(parts, "a failure stops no other worker")
	}
	t.line("=", "limits", "%s; %s from TERM to KILL", strings.Join(parts, "; "), event.Duration(l.Grace))
	if p.Upload == nil {
		t.more("a worker has %s to answer and may be lost for %s; all have started within %s", event.Duration(l.Connect), orUnlimited(l.Lost), orUnlimited(l.Start))
		t.more("%s", l.again())
	}
	p.tellTime(t)
	if r := p.MayDelete; r != nil && r.May == announce.MayNotDelete {
		t.line("=", "right", "the workers may not delete the slices: %s", r.Why)
	} else if r != nil && r.May == announce.MayUnknown {
		t.line("=", "right", "whether the workers may delete the slices is not known: %s", r.Why)
	}
	if p.Upload == nil {
		t.line("+", "logs", "%s", p.Logs.Files[0])
		if n := len(p.Logs.Files); n > 1 {
			t.more("… %s", p.Logs.Files[n-1])
		}
	} else {
		t.line("+", "logs", "in %s", p.Upload.URL)
	}
	t.more("on each worker %s", p.Logs.Remote)
	p.tellEnd(t)
}

// tellTime says when the slices are deleted or taken away independently of this command.
func (p Plan) tellTime(t *planText) {
	l := p.Limits
	if l.TTL > 0 {
		t.line("-", "time", "the slices are deleted %s after their request, whatever runs", event.Duration(l.TTL))
	}
	if l.Lease > 0 && p.Upload == nil {
		t.line("=", "lease", "if this machine is gone, the workers delete the slices %s after the command has ended (--lease)", stage.AsTyped(l.Lease))
	}
	if l.MaxRun > 0 {
		t.line("-", "time", "the slices are taken away %s after they begin to run, whatever runs (--max-run-duration)", stage.AsTyped(l.MaxRun))
	}
}

// tellEnd says what happens to the slices after the end of the command.
func (p Plan) tellEnd(t *planText) {
	by := ""
	switch {
	case p.Upload != nil, p.End.Leaves && p.Limits.Lease > 0:
		by = " by its workers"
	case p.End.Leaves && p.End.Deletes != "" && p.Limits.TTL > 0:
		t.line("=", "end", "%s stays and is billed until its workers delete it %s after its request (--ttl): this command leaves once the command has started (--detach), and no worker deletes it earlier (--lease=0)",
			p.Resource.Name, stage.AsTyped(p.Limits.TTL))
		return
	case p.End.Leaves && p.End.Deletes != "":
		t.line("=", "end", "%s stays and is billed: this command leaves once the command has started (--detach), and no worker deletes it (--lease=0)", p.Resource.Name)
		return
	}
	switch {
	case p.End.Deletes != "" && p.End.Keeps != "":
		kept := "it stays"
		if p.End.KeepFor > 0 {
			kept = "it stays for " + event.Duration(p.End.KeepFor)
		}
		t.line("-", "end", "%s is deleted with its slices%s; %s %s", p.Resource.Name, by, kept, p.End.Keeps)
	case p.End.Deletes != "" && p.End.Leaves && p.Upload == nil:
		t.line("-", "end", "%s is deleted with its slices%s %s after the command has ended (--lease)", p.Resource.Name, by, stage.AsTyped(p.Limits.Lease))
	case p.End.Deletes != "":
		t.line("-", "end", "%s is deleted with its slices%s, however the command ends", p.Resource.Name, by)
	case p.End.Keeps != "":
		t.line("=", "end", "%s stays and is billed: %s", p.Resource.Name, p.End.Keeps)
	default:
		t.line("=", "end", "the slices stay")
	}
}

// again says which failures make the command start again.
func (l Limits) again() string {
	var after []string
	if l.Restarts > 0 {
		after = append(after, "up to "+event.Count(l.Restarts, "failure"))
	}
	switch {
	case l.Preemptions < 0:
		after = append(after, "any number of losses")
	case l.Preemptions == 1:
		after = append(after, "up to 1 loss")
	case l.Preemptions > 0:
		after = append(after, fmt.Sprintf("up to %d losses", l.Preemptions))
	}
	if len(after) == 0 {
		return "never started again"
	}
	return "started again after " + strings.Join(after, " and ")
}

func orUnlimited(d time.Duration) string {
	if d == 0 {
		return "any time"
	}
	return event.Duration(d)
}

// tellEnvironment lists the variables, each with the value that all workers share, or else
// the values of the first and the last worker.
func (p Plan) tellEnvironment(t *planText) {
	t.b.WriteString("\nenvironment of the command\n")
	names := map[string]bool{}
	for _, w := range p.Workers {
		for name := range w.Env {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		first, last := p.Workers[0], p.Workers[len(p.Workers)-1]
		same := !slices.ContainsFunc(p.Workers, func(w PlannedWorker) bool { return w.Env[name] != first.Env[name] })
		value := first.Env[name]
		if !same {
			value = fmt.Sprintf("%s on %s … %s on %s", value, first.Worker, last.Env[name], last.Worker)
		}
		fmt.Fprintf(&t.b, "  %s=%s\n", name, value)
	}
	if len(p.Start.Unset) > 0 {
		fmt.Fprintf(&t.b, "  not set: %s\n", strings.Join(p.Start.Unset, ", "))
	}
}

func (p Plan) tellRequest(t *planText) {
	if p.Resource == nil || p.Resource.Request == nil {
		return
	}
	var body any
	if json.Unmarshal(p.Resource.Request, &body) != nil {
		return
	}
	long := false
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("  ", "  ")
	_ = enc.Encode(shortened(body, &long)) // cannot fail: body was decoded from JSON
	fmt.Fprintf(&t.b, "\nrequest of %s\n  %s", p.Resource.Name, b.String())
	if !long && p.Resource.Gcloud != "" {
		fmt.Fprintf(&t.b, "\nthe same with gcloud\n  %s\n", p.Resource.Gcloud)
	}
	if len(p.Resource.Parts) > 0 {
		t.b.WriteString("\nits parts, once their VMs run\n" + cost.PartLines(p.Resource.Parts))
	}
}

// longest is the size of the longest text of the request that is shown whole, in bytes.
const longest = 400

// shortened replaces long texts in a JSON value. It sets cut if there were any.
func shortened(v any, cut *bool) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = shortened(e, cut)
		}
	case []any:
		for i, e := range v {
			v[i] = shortened(e, cut)
		}
	case string:
		if len(v) > longest {
			*cut = true
			return fmt.Sprintf("(%s; --output=json has it whole)", event.Bytes(int64(len(v))))
		}
	}
	return v
}
