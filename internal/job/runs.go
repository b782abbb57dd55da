package job

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// A Seen is a run as the workers report it.
type Seen struct {
	Run     string    `json:"run"`
	Attempt int       `json:"attempt"`
	State   string    `json:"state"`
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`
	Slices  []string  `json:"slices"`
	Command string    `json:"command"`
	Hourly  *float64  `json:"usd_per_hour,omitempty"` // list price of the slices, for a run that a job has made slices for
	Gone    string    `json:"gone,omitempty"`         // when those slices are deleted if no runner continues the job, in words

	// Followed says whether a command follows the output, on any machine. It is nil when
	// that is not known: for runs of other logins, runs without runner, and runs that
	// have not begun or have ended.
	Followed *bool `json:"followed,omitempty"`

	age  time.Duration // by the worker's clock
	goes string        // value for Gone where slices exist; empty: computed from the queued resource
}

// List asks worker 0 of every ready slice which runs it knows, and emits the runs as a
// Result. prefix and only limit it to slices with that name prefix and these numbers in
// their names.
func (d *Deps) List(ctx context.Context, prefix string, only tpu.Numbers, ended bool) error {
	var seen = []Seen{}
	var detachedErr error
	if prefix == "" && d.OpenBucket != nil {
		rows, err := d.detachedRows(ctx, ended)
		if d.Bucket != "" && err != nil && rows == nil {
			return err
		}
		seen, detachedErr = append(seen, rows...), err
	}
	ready, _, found, surveyErr := d.survey(ctx, prefix, only, seen)
	if ready == nil && surveyErr != nil && len(seen) == 0 {
		return errors.Join(surveyErr, detachedErr)
	}
	surveyErr = errors.Join(surveyErr, detachedErr)
	for _, f := range found {
		if !ended && !f.info.Alive() || slices.ContainsFunc(seen, func(s Seen) bool { return s.Run == f.info.Run }) {
			continue
		}
		row := Seen{Run: f.info.Run, Attempt: f.info.Attempt, State: string(f.info.Phase), Owner: f.info.Owner, Created: f.info.Armed, Command: f.info.Command}
		if f.info.Exit != nil {
			row.State = f.ended()
		}
		if f.info.Phase == launch.Running && f.info.Mine {
			row.Followed = &f.followed
		}
		for _, id := range f.workers {
			row.Slices = append(row.Slices, ready[id.Slice].Name)
		}
		row.age = f.info.Age()
		seen = append(seen, row)
	}
	if len(only) == 0 { // with chosen slices, requests are left out: a request need not have slices
		var err error
		seen, err = d.withRequests(ctx, prefix, seen, found)
		surveyErr = errors.Join(surveyErr, err)
	}
	var b strings.Builder
	if len(seen) == 0 {
		b.WriteString("no runs")
		if !ended {
			b.WriteString(" live; those that have ended: multihost ps --all")
		}
		b.WriteByte('\n')
	} else {
		w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "RUN\tATTEMPT\tSTATE\tAGE\tOWNER\tSLICES\tPER HOUR\tGONE\tCOMMAND")
		for _, s := range seen {
			attempt, hour := "-", "-"
			if s.Attempt > 0 {
				attempt = strconv.Itoa(s.Attempt)
			}
			if s.Gone != "" {
				hour = price(s.Hourly)
			}
			state := s.State
			if s.Followed != nil && !*s.Followed {
				state += ", not followed"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Run, attempt, state, event.Age(s.age), s.Owner, strings.Join(s.Slices, ","),
				hour, cmp.Or(s.Gone, "-"), s.Command)
		}
		w.Flush()
	}
	d.Sink.Emit(event.Result{Name: "runs", Text: b.String(), Data: seen})
	return surveyErr
}

// foundRun is one run as the workers of a team know it.
type foundRun struct {
	info     launch.Info // from a worker that runs it, else from one that is to start it, else from the first
	workers  []tpu.WorkerID
	followed bool           // a command follows its output
	verdict  string         // how the run ended on all workers; "" if no worker was told
	stopped  launch.Stopped // the newest mark of a stop, by this machine's clock
	well     int            // number of workers on which it ended by itself with 0
	alive    int            // number of workers on which it lives
	seen     bool           // some user was told its success
	broken   int            // number of workers on which it was stopped, or where nobody saw its end
}

// add adds what one more worker knows of the run. offset is that of the worker's clock.
func (f *foundRun) add(worker tpu.WorkerID, info launch.Info, offset time.Duration) {
	f.workers = append(f.workers, worker)
	f.followed = f.followed || info.Followers > 0
	f.verdict = cmp.Or(f.verdict, info.Verdict)
	f.seen = f.seen || info.Seen
	if info.Alive() {
		f.alive++
	}
	if e := info.Exit; e != nil && e.Code == 0 && e.Reason == "" && !e.Lost {
		f.well++
	}
	if s := info.Stopped; s.Reason != "" {
		s.At = s.At.Add(-offset)
		if s.At.After(f.stopped.At) {
			f.stopped = s
		}
	}
	if info.Phase == launch.Lost || info.Phase == launch.Aborted || info.Exit != nil && info.Exit.Reason != "" {
		f.broken++
	}
}

// ended returns how the run has ended: the verdict of its runner, otherwise the exit on
// one worker.
func (f foundRun) ended() string {
	if f.verdict != "" {
		return "failed: " + f.verdict
	}
	return f.info.Exit.String()
}

// stoppable returns an error for a run of another login: this login may not end its
// processes, and the worker would not even report whether they have ended.
func (f foundRun) stoppable() error {
	if f.info.Mine {
		return nil
	}
	return f.ofAnother(StageStop, "stop it as that login: multihost stop "+f.info.Run+" --user="+remote.Quote(f.info.Login))
}

// ofAnother returns the error that the run belongs to another login.
func (f foundRun) ofAnother(during Stage, advice string) error {
	does := "runs"
	if !f.info.Alive() {
		does = "ran"
	}
	return &Error{Stage: during, Text: fmt.Sprintf("run %q of %s %s as login %q", f.info.Run, f.info.Owner, does, f.info.Login), Advice: advice}
}

// runs asks every worker of the team which runs it knows. It skips workers that are away.
// Different runs with the same name stay separate. The newest run comes first.
func (t *team) runs(ctx context.Context) ([]foundRun, []error) {
	list := launch.List
	if t.readOnly {
		list = launch.Look
	}
	lists := make([][]launch.Info, len(t.ids))
	errs := t.each(ctx, event.Discard, "", func(ctx context.Context, i int) (err error) {
		if t.isAway(i) {
			return t.away[i]
		}
		return remote.Again(ctx, nil, func() error {
			lists[i], err = list(ctx, t.conns[i])
			return err
		})
	})
	type identity struct {
		launch.Ref
		login, owner, command string

		minute int64
	}
	index := map[identity]int{}
	var found []foundRun
	for i, list := range lists {
		for _, info := range list {
			// The workers of a run are armed within seconds of each other, but never at
			// one moment.
			key := identity{info.Ref, info.Login, info.Owner, info.Command, info.Armed.Add(-t.conns[i].ClockOffset()).Unix() / 120}
			at, ok := index[key]
			for _, side := range []int64{-1, 1} {
				if !ok { // the workers' times may lie on both sides of a boundary
					beside := key
					beside.minute += side
					at, ok = index[beside]
				}
			}
			if !ok {
				at = len(found)
				found = append(found, foundRun{info: info})
			}
			index[key] = at
			if rank(info) > rank(found[at].info) {
				found[at].info = info
			}
			found[at].add(t.ids[i], info, t.conns[i].ClockOffset())
		}
	}
	slices.SortStableFunc(found, func(a, b foundRun) int {
		return cmp.Or(b.info.Armed.Compare(a.info.Armed), cmp.Compare(a.info.Run, b.info.Run))
	})
	return found, errs
}

// rank orders the reports of the workers about one run: the report of the most active
// worker ranks highest and stands for the run.
func rank(info launch.Info) int {
	switch {
	case info.Phase == launch.Running:
		return 2
	case info.Alive():
		return 1
	}
	return 0
}

// survey asks worker 0 of every ready slice, or of those that prefix and only choose,
// which runs it knows. It does not ask the slices of runs in seen. asked says for each
// ready slice whether it answered. An error may come with the other slices' answers: some
// slices were not asked, and nothing is known of them.
func (d *Deps) survey(ctx context.Context, prefix string, only tpu.Numbers, seen []Seen) (ready []tpu.Slice, asked []bool, found []foundRun, err error) {
	nodes, err := d.Cloud.Slices(ctx)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("list slices in %q: %w", d.Zone, err)
	}
	if prefix != "" {
		sel, err := tpu.SelectNumbered(nodes, prefix, only, true)
		if err != nil {
			return nil, nil, nil, err
		}
		nodes = sel.Slices
	}
	slices.SortFunc(nodes, tpu.CompareNames)
	for _, s := range nodes {
		known := slices.ContainsFunc(seen, func(r Seen) bool {
			return slices.Contains(r.Slices, s.Name) && s.Labels[provision.LabelRun] == provision.LabelValue(r.Run)
		})
		if ok, _ := s.Ready(); ok && !known {
			s.Index = len(ready)
			ready = append(ready, s)
		}
	}
	if len(ready) == 0 {
		return nil, nil, nil, nil
	}
	found, asked, err = d.ask(ctx, ready)
	return ready, asked, found, err
}

// ask asks worker 0 of every slice in ready which runs it knows. Each slice's Index must
// be its position in ready. asked says for each slice whether it answered. An error may
// come with the other slices' answers.
func (d *Deps) ask(ctx context.Context, ready []tpu.Slice) (found []foundRun, asked []bool, err error) {
	asked = make([]bool, len(ready))
	t, failed, err := d.dial(ctx, tpu.Selection{Slices: ready}, func(id tpu.WorkerID) bool { return id.Worker == 0 }, false)
	if err != nil {
		return nil, asked, err
	}
	defer t.close()
	var ids []tpu.WorkerID
	var silent []error
	for _, id := range slices.SortedFunc(maps.Keys(failed), tpu.CompareWorkers) {
		ids, silent = append(ids, id), append(silent, failed[id])
	}
	found, errs := t.runs(ctx)
	for i, id := range t.ids {
		asked[id.Slice] = errs[i] == nil
	}
	ids, silent = append(ids, t.ids...), append(silent, errs...)
	return found, asked, workersError(StageSurvey, ids, silent)
}

// locate finds a run by its name: in this machine's records, otherwise by asking the
// slices.
func (d *Deps) locate(ctx context.Context, name, prefix string) (*Record, error) {
	rec, err := loadRecord(d.StateDir, name)
	if err != nil {
		return nil, err
	}
	if rec != nil && rec.Project == d.Project && rec.Zone == d.Zone && (prefix == "" || prefix == rec.Prefix) {
		return rec, nil
	}
	if rec != nil && prefix == "" {
		return nil, &Error{Stage: StageDiscover, Text: fmt.Sprintf("run %q was started in project %s, zone %s", name, rec.Project, rec.Zone),
			Advice: fmt.Sprintf("add --project=%s --zone=%s", rec.Project, rec.Zone)}
	}
	return d.locateOnWorkers(ctx, name, prefix)
}

// locateOnWorkers finds a run by asking the slices.
func (d *Deps) locateOnWorkers(ctx context.Context, name, prefix string) (*Record, error) {
	ready, asked, found, surveyErr := d.survey(ctx, prefix, nil, nil)
	var match []foundRun
	for _, f := range found {
		if f.info.Run == name {
			match = append(match, f)
		}
	}
	if len(match) == 0 && surveyErr != nil {
		return nil, surveyErr
	}
	if len(match) == 0 {
		if err := d.notBegun(ctx, name); err != nil {
			return nil, err
		}
		text := fmt.Sprintf("no run %q on this machine's list or on the ready slices of %s", name, d.Zone)
		if _, err := os.Stat(RunDir(d.StateDir, name)); err == nil {
			text = fmt.Sprintf("run %q was never started: it was left while its workers were prepared, and the ready slices of %s know nothing of it", name, d.Zone)
		}
		return nil, &Error{Stage: StageDiscover, Text: text, Advice: "list the runs with: multihost ps --all"}
	}
	f, other := choose(match)
	if other != nil {
		return nil, several(name, f, *other, ready)
	}
	if surveyErr != nil {
		var e *Error
		text := surveyErr.Error()
		if errors.As(surveyErr, &e) {
			text = e.Text
		}
		event.Notef(d.Sink, event.Warn, "once they answer, do the same again", "run %s is known from %s; other slices, which may have a part of it, could not be asked: %s",
			name, sliceNames(ready, f), text)
	}
	rec := d.recordOf(f, ready)
	rec.Unasked = f.unasked(ready, asked, surveyErr)
	return rec, nil
}

// unasked returns the error that the run may live on slices that a survey could not ask:
// those of its queued resource, and those whose names differ from its slices' names only
// in the number. It returns nil if there are none. err is the survey's error.
func (f foundRun) unasked(ready []tpu.Slice, asked []bool, err error) error {
	var names []string
	for i, s := range ready {
		if !asked[i] && slices.ContainsFunc(f.workers, func(id tpu.WorkerID) bool {
			has := ready[id.Slice]
			return s.QueuedResource != "" && s.QueuedResource == has.QueuedResource || tpu.Family(s.Name) == tpu.Family(has.Name)
		}) {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &Error{Stage: StageStop, Err: err, Text: fmt.Sprintf("run %s may still run on %s, which could not be asked", f.info.Run, tpu.FewNames(names)),
		Advice: "end it there with: multihost stop " + f.info.Run}
}

// recordOf returns the record of a run that was found on slices in ready.
func (d *Deps) recordOf(f foundRun, ready []tpu.Slice) *Record {
	rec := &Record{Run: f.info.Run, Attempt: f.info.Attempt, Project: d.Project, Zone: d.Zone, Login: f.info.Login, Owner: f.info.Owner,
		Created: f.info.Armed, Command: f.info.Command, LogDir: recordDir(d.StateDir, f.info.Run, f.info.Attempt)}
	for _, id := range f.workers {
		s := ready[id.Slice]
		rec.Slices = append(rec.Slices, RecordedSlice{Name: s.Name, UID: s.UID, Workers: len(s.Workers), Type: s.Type})
		rec.Workers += len(s.Workers)
	}
	return rec
}

// begunAgain returns the record of a run whose recorded slices are gone, but which another
// machine has started since on slices of the same names; nil if there is none.
func (d *Deps) begunAgain(ctx context.Context, rec *Record) (*Record, error) {
	ready, asked, found, err := d.survey(ctx, rec.Prefix, nil, nil)
	match := slices.DeleteFunc(found, func(f foundRun) bool { return !rec.isAgain(f) })
	var none *tpu.NoSlicesError
	if len(match) == 0 && (err == nil || errors.As(err, &none)) {
		return nil, nil
	}
	if len(match) == 0 {
		return nil, err
	}
	f, other := choose(match)
	if other != nil {
		return nil, several(rec.Run, f, *other, ready)
	}
	now := d.recordOf(f, ready)
	now.Prefix, now.Partial, now.Attempts, now.KeepGoing, now.SecretEnv = rec.Prefix, rec.Partial, rec.Attempts, rec.KeepGoing, rec.SecretEnv
	now.Unasked = f.unasked(ready, asked, err)
	now.LogDir = rec.place(now.Attempt, now.Slices, now.LogDir, false)
	return now, nil
}

// isAgain reports whether a run that lives on other slices is the run of the record, begun
// again. The slices of a job have the run's name; on slices that somebody else may use,
// only the owner's is.
func (r *Record) isAgain(f foundRun) bool {
	return f.info.Run == r.Run && f.info.Alive() && f.info.Mine && (r.Prefix == r.Run || f.info.Owner == r.Owner)
}

// several is the error about two runs of one name.
func several(name string, a, b foundRun, ready []tpu.Slice) error {
	return &Error{Stage: StageInput, Text: fmt.Sprintf("several runs are called %q: %s and %s", name, a.text(ready), b.text(ready)),
		Advice: "say which slices with --tpu-prefix=P"}
}

// notBegun returns the error about a job of which only the queued resource exists: the
// job waits, or its runner ended while it waited. It returns nil if there is no such
// resource.
func (d *Deps) notBegun(ctx context.Context, name string) error {
	if d.onHosts() {
		return nil
	}
	res, err := d.Cloud.Get(ctx, name)
	if err != nil || !res.IsOf(name) {
		return nil
	}
	return &notBegunError{res: res, err: &Error{Stage: StageDiscover, Text: fmt.Sprintf("no worker knows of run %q, but queued resource %s was made for it, %s", name, res.ID, res.Standing()),
		Advice: "typing the same job again goes on with it; " + deleteHint(res.ID, d)}}
}

// notBegunError says that no worker knows the run, but a queued resource was made for it.
type notBegunError struct {
	res provision.Resource
	err *Error
}

func (e *notBegunError) Error() string { return e.err.Error() }
func (e *notBegunError) Unwrap() error { return e.err }

// choose returns the run that is meant among runs of one name: the active one, otherwise
// the newest. other is a run that could be meant instead: another active one, or one on
// other workers. The number of an attempt decides nothing, because one worker can claim
// any.
func choose(match []foundRun) (f foundRun, other *foundRun) {
	at := max(0, slices.IndexFunc(match, func(f foundRun) bool { return f.info.Alive() }))
	f = match[at]
	for i, o := range match {
		if i == at {
			continue
		}
		if o.info.Alive() {
			return f, &match[i]
		}
		known := 0
		for _, id := range o.workers {
			if slices.Contains(f.workers, id) {
				known++
			}
		}
		// A run whose workers are a subset of f's is an earlier run that f replaced. If f
		// shares only some of them, the other run used more slices; that is f's past only
		// while f is active. If f has ended too, neither is active and either may be
		// meant.
		if known == 0 || known < len(o.workers) && !f.info.Alive() {
			return f, &match[i]
		}
	}
	return f, nil
}

// text describes a found run for people.
func (f foundRun) text(all []tpu.Slice) string {
	state := string(f.info.Phase)
	if f.info.Exit != nil {
		state = f.ended()
	}
	return fmt.Sprintf("attempt %d of %s on %s (%s)", f.info.Attempt, f.info.Owner, sliceNames(all, f), state)
}

func sliceNames(all []tpu.Slice, f foundRun) string {
	names := make([]string, len(f.workers))
	for i, id := range f.workers {
		names[i] = all[id.Slice].Name
	}
	return strings.Join(names, ", ")
}

// recorded returns the selection for a record, with the record's slice numbers. A slice
// that no longer exists has no workers in sel, and gone has its name.
func (d *Deps) recorded(ctx context.Context, rec *Record) (sel tpu.Selection, gone []string, err error) {
	nodes, err := d.Cloud.Slices(ctx)
	if err != nil {
		return sel, nil, fmt.Errorf("list slices in %q: %w", d.Zone, err)
	}
	for i, want := range rec.Slices {
		s := tpu.Slice{Name: want.Name, UID: want.UID}
		for _, n := range nodes {
			if n.Name == want.Name && n.UID == want.UID {
				s = n
			}
		}
		if len(s.Workers) == 0 {
			gone = append(gone, want.Name)
		}
		s.Index = i
		sel.Slices = append(sel.Slices, s)
	}
	return sel, gone, nil
}

// AttachOptions say how to find the run and how to follow it.
type AttachOptions struct {
	Prefix     string // name prefix of the slices to look at; "" is all
	Grace      time.Duration
	StrictExit bool
	Patience   Patience
	Watch      WatchOptions

	// Secret returns the value of a variable in this machine's environment. The variables
	// that were secret when the run was started are masked in the output shown.
	Secret func(name string) (value string, ok bool)
}

// secrets returns the variables of the run whose values are masked, and the names of
// those whose values are not known here.
func (o AttachOptions) secrets(rec *Record) (known []config.EnvVar, unknown []string) {
	for _, name := range rec.SecretEnv {
		if value, ok := o.Secret(name); ok {
			known = append(known, config.EnvVar{Name: name, Value: value, Secret: true})
		} else {
			unknown = append(unknown, name)
		}
	}
	return known, unknown
}

// Attach follows to its end a run that was started before, here or elsewhere. An
// interrupt does not stop the run.
func (d *Deps) Attach(ctx context.Context, name string, o AttachOptions) (out Outcome, err error) {
	defer func() { d.closeJournal(out, err) }()
	if r, err := d.detachedRun(ctx, name); err != nil || r != nil {
		if err != nil {
			return Outcome{}, err
		}
		return r.attach(ctx, o)
	}
	rec, err := d.locate(ctx, name, o.Prefix)
	if err != nil {
		return Outcome{}, err
	}
	return d.attachTo(ctx, rec, o)
}

// attachTo follows the run of a record over SSH and emits its summary.
func (d *Deps) attachTo(ctx context.Context, rec *Record, o AttachOptions) (Outcome, error) {
	out, sum, err := d.attachOver(ctx, rec, o)
	if sum != nil {
		d.Sink.Emit(*sum)
	}
	return out, err
}

// attachOver follows the run of a record over SSH. It does not emit sum; the caller does,
// unless sum is nil.
func (d *Deps) attachOver(ctx context.Context, rec *Record, o AttachOptions) (out Outcome, sum *event.Summary, err error) {
	name, watch := rec.Run, stopwatch{sink: d.Sink, clock: d.Clock}
	sel, gone, err := d.recorded(ctx, rec)
	if err != nil {
		return Outcome{}, nil, err
	}
	if len(gone) == len(sel.Slices) && rec.Bucket == "" && rec.Prefix != "" {
		if now, err := d.begunAgain(ctx, rec); err == nil && now != nil {
			return d.attachOver(ctx, now, o)
		}
	}
	if len(gone) > 0 {
		return Outcome{}, nil, &Error{Stage: StageDiscover, Text: fmt.Sprintf("slices of run %q are gone: %s", name, strings.Join(gone, ", ")),
			Advice: "its logs, as far as they came here: multihost logs " + name + "; to end what may be left of it: multihost stop " + name}
	}
	t, err := d.connectPhase(ctx, &watch, sel, nil)
	if err != nil {
		return Outcome{}, nil, err
	}
	defer t.close()
	known, lives, err := d.newestAttempt(ctx, t, rec)
	if err != nil {
		return Outcome{}, nil, err
	}
	if rec.Bucket == "" { // with a bucket, the workers need no lease to delete the slices
		held := d.attachLease(ctx, t, name)
		defer func() { d.sayBilled(ctx, name, t.slices, held()) }()
	}
	if err := d.makeLogs("attach", rec.LogDir, rec.makeLogDir); err != nil {
		return Outcome{}, nil, err
	}
	secrets, unknown := o.secrets(rec)
	if len(unknown) > 0 {
		event.Notef(d.Sink, event.Warn, "export "+strings.Join(unknown, " ")+", then attach again",
			"the value of %s is secret and not known here: if the command prints it, it is shown", strings.Join(unknown, ", "))
	}
	d.openJournal(rec.Run, "attach", secrets)
	d.Sink.Emit(rec.attempt())
	event.Notef(d.Sink, event.Info, "", "run %s, attempt %d: logs in %s; %s", rec.Run, rec.Attempt, rec.LogDir, d.whatCtrlCDoes(false))
	partly := d.sayUnstarted(t, known, rec) // a run that started on only some workers is not stopped as failed
	f := &following{Deps: d, team: t, ref: launch.Ref{Run: rec.Run, Attempt: rec.Attempt}, rec: rec, watch: &watch,
		failFast: !rec.KeepGoing && !partly && lives, grace: o.Grace, strict: o.StrictExit, patience: o.Patience, attached: true, watching: o.Watch,
		secrets: maskedWords(secrets), deletes: rec.Unasked != nil} // the end of a part is not the end that a user wants to know
	out, err = f.do(ctx)
	if err == nil && out.Code == 0 {
		err = f.endOfAPart(rec.Unasked)
	}
	if f.sum != nil && len(unknown) > 0 {
		f.sum.LastLines = nil // they would be kept in the journal unmasked
	}
	return out, f.sum, err
}

// endOfAPart returns the error for a success of workers beside which others may run on.
// unasked says which could not be asked; nil: there are none.
func (f *following) endOfAPart(unasked error) error {
	var part *Error
	if !errors.As(unasked, &part) {
		return nil
	}
	if f.sum != nil {
		f.sum.OK, f.sum.ExitCode, f.sum.Text = false, lostCode, f.sum.Text+"; "+part.Text
	}
	return &Error{Stage: StageFollow, Text: part.Text, Err: part.Err, Advice: "attach again once they answer: multihost attach " + f.ref.Run}
}

// newestAttempt updates a record that is older than the attempt on the workers: another
// machine may have started the same name again. It returns the workers that know the
// attempt (all of them when none does), and whether the attempt may be active on any. It
// is an error if the attempt belongs to another login, whose files this login may not
// read.
func (d *Deps) newestAttempt(ctx context.Context, t *team, rec *Record) (known []tpu.WorkerID, lives bool, err error) {
	found, errs := t.runs(ctx)
	answered := 0
	for _, err := range errs {
		if err == nil {
			answered++
		}
	}
	for _, f := range found {
		if f.info.Run != rec.Run || f.info.Attempt <= rec.Attempt {
			continue
		}
		if !f.info.Mine || len(f.workers) < answered { // a start that was interrupted, or a false claim by one worker
			event.Notef(d.Sink, event.Warn, "multihost stop "+rec.Run+" ends it", "only %s knows an attempt %d of run %s: it is left alone",
				tpu.Fold(f.workers), f.info.Attempt, rec.Run)
			continue
		}
		rec.Attempt, rec.Owner, rec.Command, rec.Ended = f.info.Attempt, f.info.Owner, f.info.Command, false
		rec.LogDir = recordDir(d.StateDir, rec.Run, rec.Attempt)
	}
	for i, err := range errs { // a worker that did not answer may know it
		if err != nil {
			known, lives = append(known, t.ids[i]), true
		}
	}
	heard, mine := false, false
	var theirs foundRun
	for _, f := range found {
		if f.info.Run == rec.Run && f.info.Attempt == rec.Attempt && f.info.Phase != launch.Aborted {
			known, heard, lives = append(known, f.workers...), true, lives || f.info.Alive()
			if mine = mine || f.info.Mine; !mine {
				theirs = f
			}
		}
	}
	switch {
	case !heard:
		return t.ids, true, nil
	case !mine:
		return nil, false, theirs.ofAnother(StageDiscover, "add --user="+remote.Quote(theirs.info.Login))
	}
	return known, lives, nil
}

// sayUnstarted warns about the workers on which the run was never started because its
// runner was killed during the start. It reports whether there are any.
func (d *Deps) sayUnstarted(t *team, known []tpu.WorkerID, rec *Record) bool {
	unstarted := slices.DeleteFunc(slices.Clone(t.ids), func(id tpu.WorkerID) bool { return slices.Contains(known, id) })
	if len(unstarted) == 0 {
		return false
	}
	event.Notef(d.Sink, event.Warn, "end it with: multihost stop "+rec.Run+"; then start it again",
		"run %s, attempt %d, was never started on %s: its start was cut short", rec.Run, rec.Attempt, tpu.Fold(unstarted))
	return true
}

// Stop ends every active attempt of a run on every worker and verifies that no process is
// left. It may be repeated. If the command of a job has not begun, or has ended and its
// slices are kept, Stop deletes what the job has made.
func (d *Deps) Stop(ctx context.Context, name string, o StopOptions) error {
	if r, err := d.detachedRun(ctx, name); err != nil || r != nil {
		if err != nil {
			return err
		}
		return r.stop(ctx, o)
	}
	rec, err := d.locate(ctx, name, o.Prefix)
	if err == nil {
		return d.stopOn(ctx, rec, o)
	}
	return d.stopUnbegun(ctx, name, o.Prefix, err)
}

// stopUnbegun deletes the queued resource of a job that no worker knows. why is the error
// with which it was not found on the workers; stopUnbegun returns why if there is no such
// resource.
func (d *Deps) stopUnbegun(ctx context.Context, name, prefix string, why error) error {
	var idle *notBegunError
	if errors.As(why, &idle) && idle.res.JobMade() && allAsked(idle.res) && prefix == "" {
		return d.stopRequest(ctx, name, idle.res)
	}
	return why
}

// stopOn ends the run of a record over SSH.
func (d *Deps) stopOn(ctx context.Context, rec *Record, o StopOptions) error {
	name, watch := rec.Run, stopwatch{sink: d.Sink, clock: d.Clock}
	sel, gone, err := d.recorded(ctx, rec)
	if err != nil {
		return mayStillRun(&Error{Stage: StageStop, Err: err}, name)
	}
	if len(gone) > 0 {
		event.Notef(d.Sink, event.Info, "", "slices of run %s are gone, nothing runs there: %s", name, tpu.FewNames(gone))
	}
	d.Access.RetryFor = min(d.Access.RetryFor, reachIn(o.Grace))
	if len(gone) == len(sel.Slices) {
		return d.stopElsewhere(ctx, rec, o)
	}
	t, failed, err := d.dial(ctx, sel, nil, true)
	if err != nil {
		return mayStillRun(&Error{Stage: StageStop, Err: err}, name)
	}
	defer t.close()
	var left []kept
	err = watch.phase("stop", func() (string, error) {
		found, stopped, err := d.stopNamed(ctx, t, name, o.Grace)
		if len(failed) > 0 {
			var ids []tpu.WorkerID
			var errs []error
			for _, id := range slices.SortedFunc(maps.Keys(failed), tpu.CompareWorkers) {
				ids, errs = append(ids, id), append(errs, failed[id])
			}
			err = errors.Join(err, mayStillRun(workersError(StageStop, ids, errs), name))
		}
		if err == nil && !stopped && rec.Bucket == "" {
			left, err = d.keptOn(ctx, t, rec, found)
		}
		err = errors.Join(err, rec.Unasked)
		return fmt.Sprintf("run %s: no process of it is left on %s", name, tpu.Fold(t.ids)), err
	})
	if len(left) == 0 && rec.Bucket == "" {
		d.sayBilled(ctx, name, t.slices, t.heldBy(t.looks(ctx, d.Agents.Sums(), name)))
	}
	for _, k := range left {
		k.again = func(ctx context.Context) error { return t.idle(ctx, name) }
		err = errors.Join(err, d.deleteKept(ctx, o, k))
	}
	return err
}

// idle returns an error if a run lives on the workers, or may: one could not be asked.
func (t *team) idle(ctx context.Context, name string) error {
	runs, errs := t.runs(ctx)
	for _, f := range runs {
		if f.info.Alive() {
			return &Error{Stage: StageStop, Text: fmt.Sprintf("the slices of run %s stay: run %q of %s lives on %s by now", name, f.info.Run, f.info.Owner, tpu.FoldShort(f.workers))}
		}
	}
	return workersError(StageStop, t.ids, errs)
}

// stopElsewhere ends what a job has now, although the slices of its record are gone: a
// request that waits, or slices that another machine's runner or a later request made.
func (d *Deps) stopElsewhere(ctx context.Context, rec *Record, o StopOptions) error {
	if rec.Bucket != "" {
		return nil
	}
	if res, waits := d.waitingRequest(ctx, rec.Run); waits {
		return d.stopRequest(ctx, rec.Run, res)
	}
	if rec.Prefix != "" {
		now, err := d.begunAgain(ctx, rec)
		if err != nil {
			return mayStillRun(&Error{Stage: StageStop, Err: err}, rec.Run)
		}
		if now != nil {
			return d.stopOn(ctx, now, o)
		}
	}
	if d.onHosts() {
		return nil
	}
	res, err := d.Cloud.Get(ctx, rec.Run)
	if err != nil && gcp.ClassOf(err) != gcp.NotFound {
		return mayStillRun(&Error{Stage: StageStop, Err: err}, rec.Run)
	}
	if err != nil || !res.JobMade() || !res.IsOf(rec.Run) {
		return nil
	}
	there, err := d.locateOnWorkers(ctx, rec.Run, o.Prefix)
	if err != nil {
		return d.stopUnbegun(ctx, rec.Run, o.Prefix, err)
	}
	return d.stopOn(ctx, there, o)
}

// stopBy begins the reason of a stop that a user typed.
const stopBy = "multihost stop by "

// stopNamed stops the active runs of a name on the workers of the team. If one cannot be
// stopped, the others are stopped all the same. It returns the runs that the workers knew
// before, and whether there was any to stop.
//
// It marks the newest attempt, although that has ended: a runner may be about to begin
// the next one. Whoever begins one on a worker can be found there before it reads the
// marks, so that a look after the mark finds all that nobody keeps from starting.
func (d *Deps) stopNamed(ctx context.Context, t *team, name string, grace time.Duration) (found []foundRun, any bool, err error) {
	found, errs := t.runs(ctx)
	stopped := map[launch.Ref]bool{}
	var refused []error
	stop := func(f foundRun) {
		stopped[f.info.Ref] = true
		if err := t.stopWith(ctx, d.Sink, f.info.Ref, launch.StopOptions{Grace: grace, Reason: stopBy + d.Owner, Mark: true}, nil); err != nil {
			refused = append(refused, err)
		}
	}
	stopLiving := func(found []foundRun) {
		for _, f := range found {
			if f.info.Run != name || stopped[f.info.Ref] || !f.info.Alive() {
				continue
			}
			if err := f.stoppable(); err != nil {
				refused = append(refused, err)
				continue
			}
			any = true
			stop(f)
		}
	}
	stopLiving(found)
	ended := slices.IndexFunc(found, func(f foundRun) bool { return f.info.Run == name && f.info.Mine && !f.info.Alive() })
	if ended >= 0 && !slices.ContainsFunc(found, func(f foundRun) bool { return f.info.Run == name && f.info.Phase == launch.Running }) {
		stop(found[ended])
		again, errs := t.runs(ctx)
		stopLiving(again)
		if any { // the answers of the others were there before
			refused = append(refused, mayStillRun(workersError(StageStop, t.ids, errs), name))
		}
	}
	if len(stopped) == 0 { // after a stop, stopAll has reported the workers that did not answer
		refused = append(refused, mayStillRun(workersError(StageStop, t.ids, errs), name))
	}
	return found, any, errors.Join(refused...)
}

// A Verified compares the local log of one worker with the worker's own.
type Verified struct {
	Worker string `json:"worker"`
	Bytes  int64  `json:"bytes"`  // bytes in the local file
	Remote int64  `json:"remote"` // bytes in the worker's file
	Same   bool   `json:"same"`   // the local file is whole and equal
	Prefix bool   `json:"prefix"` // the local file is equal as far as it goes
}

// Verify compares the local log of every worker of a run with the worker's own by
// SHA-256, and emits the result. It returns an error if any log is not whole and equal.
func (d *Deps) Verify(ctx context.Context, name, prefix string) error {
	watch := stopwatch{sink: d.Sink, clock: d.Clock}
	rec, err := d.locate(ctx, name, prefix)
	if err != nil {
		return err
	}
	sel, gone, err := d.recorded(ctx, rec)
	if err != nil {
		return err
	}
	if len(gone) > 0 {
		return &Error{Stage: StageDiscover, Text: "slices are gone with their logs: " + strings.Join(gone, ", ")}
	}
	t, err := d.connectPhase(ctx, &watch, sel, nil)
	if err != nil {
		return err
	}
	defer t.close()
	ref := launch.Ref{Run: rec.Run, Attempt: rec.Attempt}
	rows := make([]Verified, len(t.ids))
	errs := t.each(ctx, d.Sink, "verify", func(ctx context.Context, i int) error {
		rows[i] = Verified{Worker: t.ids[i].String()}
		local, size, err := fileDigest(rec.logPath(t.ids[i]))
		if err != nil {
			return err
		}
		state, err := launch.Status(ctx, t.conns[i], ref)
		if err != nil {
			return err
		}
		remote, n, err := launch.Digest(ctx, t.conns[i], ref, size)
		if err != nil {
			return err
		}
		rows[i].Bytes, rows[i].Remote = size, state.LogSize
		rows[i].Prefix = n == size && remote == local
		rows[i].Same = rows[i].Prefix && size == state.LogSize
		if !rows[i].Prefix {
			return errors.New("the local log differs from the worker's")
		}
		if !rows[i].Same {
			return fmt.Errorf("the local log has %d of %d bytes", size, state.LogSize)
		}
		return nil
	})
	var b strings.Builder
	for _, r := range rows {
		word := "equal"
		if !r.Same {
			word = "NOT EQUAL"
		}
		fmt.Fprintf(&b, "%s  %d bytes  %s\n", r.Worker, r.Bytes, word)
	}
	d.Sink.Emit(event.Result{Name: "logs_verified", Text: b.String(), Data: rows})
	return workersError(StageVerify, t.ids, errs)
}

func fileDigest(path string) (sum string, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	hash := sha256.New()
	size, err = io.Copy(hash, file)
	return hex.EncodeToString(hash.Sum(nil)), size, err
}

// ForgetHostKey removes the pinned host key of one worker and reports whether
// there was one.
func (d *Deps) ForgetHostKey(ctx context.Context, prefix string, numbers tpu.Numbers, id tpu.WorkerID) (removed bool, err error) {
	sel, err := d.discover(ctx, prefix, numbers, true)
	if err != nil {
		return false, err
	}
	if id.Slice >= len(sel.Slices) || id.Worker >= len(sel.Slices[id.Slice].Workers) {
		return false, &Error{Stage: StageInput, Text: fmt.Sprintf("%s has no worker %s", describe(sel), id)}
	}
	return d.Access.forget(sel.Slices[id.Slice], id)
}
