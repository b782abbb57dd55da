package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/codesync"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// DetachOptions are the additional options of a job without a runner.
type DetachOptions struct {
	Bucket, Dir  string
	Roots        gcp.Roots
	Every        time.Duration // between two uploads of a worker's log
	Patience     time.Duration // as in detach.Job
	Stale        time.Duration // as in detach.Job
	CloudLogging bool
}

// Detach starts a job that does not need this machine any more: it puts what the
// workers need into the bucket and requests the slices. If a run of that name has lost
// its slices, it continues with the next attempt. When Detach returns without error,
// the queued resource exists and the workers do the rest. After an error, neither the
// queued resource nor anything of this start in the bucket is left, unless Detach
// reports it.
func (d *Deps) Detach(ctx context.Context, o JobOptions, do DetachOptions) (Outcome, error) {
	r, err := d.prepareDetached(ctx, o, do)
	if err != nil {
		return Outcome{}, err
	}
	defer r.close()
	if r.earlier != nil {
		event.Notef(d.Sink, event.Info, "", "run %s has lost its slices (%s): it goes on as attempt %d", r.job.Run, r.loss(), r.desc.Attempt)
	}
	right, over := d.askRight(ctx, o, !o.Keep || o.TTL > 0)
	defer over()
	first := func() error {
		mtu := d.mtuFor(ctx, o.Request, o.Network)
		d.tellRight(right(), o.Request.ID, whenRunEnds)
		return d.announce(ctx, asking(o.Request, d.Project, d.Zone, mtu, billedUntil(o, true), false))
	}
	if err := r.makeNetwork(ctx, o.Network, first); err != nil {
		return Outcome{}, err
	}
	if err := r.upload(ctx); err != nil {
		return Outcome{}, err
	}
	if err := r.clear(ctx); err != nil {
		return Outcome{}, err
	}
	// If this process is killed before the answer arrives, the user can find the run by
	// its name.
	forget, err := r.record().saveAhead(d.StateDir)
	if err != nil {
		event.Notef(d.Sink, event.Warn, "", "the record of the job cannot be kept: %v", err)
	}
	if left, err := r.request(ctx, o.Request); err != nil {
		if !left {
			forget()
		}
		return Outcome{}, err
	}
	d.sayDetached(r.bucket, r.job)
	d.warnOfCopies(ctx, r.bucket)
	return Outcome{Started: true, Detached: true}, nil
}

// A departure is the start of a job without a runner: what it will put into the bucket
// and request.
type departure struct {
	*run
	bucket *detach.Bucket
	job    detach.Job
	desc   detach.Description
	kit    map[string][]byte

	earlier *detach.Earlier    // the run that is to continue; nil: there is none of this name
	lost    provision.Resource // what is left of the earlier run's queued resource
}

// prepareDetached makes everything that a job without a runner is started with. It
// changes nothing. The caller closes the run.
func (d *Deps) prepareDetached(ctx context.Context, o JobOptions, do DetachOptions) (_ *departure, err error) {
	if err := cmp.Or(detach.CheckMetadata(o.Request.Metadata), d.Agents.Check()); err != nil {
		return nil, &Error{Stage: StageInput, Err: err}
	}
	r := &departure{run: &run{Deps: d, o: o.Run, watch: stopwatch{sink: d.Sink, clock: d.Clock}}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	for _, v := range o.Run.Env {
		if v.Secret {
			return nil, &Error{Stage: StageInput, Err: &secretError{v.Name}}
		}
	}
	if err := r.checkInput(ctx, o.Request.Type.Name); err != nil {
		return nil, err
	}
	r.checked()
	if r.bucket, err = d.OpenBucket(ctx, do.Bucket, do.Dir); err != nil {
		return nil, &Error{Stage: StageInput, Err: err}
	}
	r.job, r.desc = d.detachedJob(o, do, r.bucket)
	if r.kit, err = r.makeKit(o, *r.flags); err != nil {
		return nil, &Error{Stage: StageInput, Err: err}
	}
	return r, r.lookBack(ctx, o.Request)
}

// record returns the local record of the job.
func (r *departure) record() *Record {
	return &Record{Run: r.job.Run, Attempt: r.desc.Attempt, Project: r.Project, Zone: r.Zone, Prefix: r.job.Resource, Login: r.job.Login, Owner: r.Owner,
		Created: r.desc.Created, Command: r.desc.Command, Workers: len(r.desc.IDs()), LogDir: recordDir(r.StateDir, r.job.Run, r.desc.Attempt),
		KeepGoing: true, Bucket: r.bucket.Name(), BucketDir: r.bucket.Dir()}
}

func (d *Deps) detachedJob(o JobOptions, do DetachOptions, bucket *detach.Bucket) (detach.Job, detach.Description) {
	label, value := o.Request.RunLabel()
	j := detach.Job{
		Run: o.Run.Run, Project: d.Project, Zone: d.Zone, Resource: o.Request.ID, Undoing: d.Cloud.Undoing(o.Request.ID), Label: label + "=" + value,
		Nodes: o.Request.NodeNames(), Workers: o.Request.Type.Workers, Login: d.Access.Login,
		Storage: do.Roots.Storage, SecretManager: do.Roots.SecretManager, TTL: o.TTL,
		Bucket: bucket.Name(), Dir: bucket.Dir(), Every: do.Every,
	}
	j.Agents, j.Patience, j.Stale = d.Agents, do.Patience, do.Stale
	j.LogTimeout = max(o.Run.Patience.Log, time.Second) // there, 0 means the default
	j.Grace, j.Timeout, j.FailFast = o.Run.Grace, o.Run.Timeout, o.Run.FailFast
	j.Preflight, j.KillStale, j.NUMA = o.Run.Preflight, string(o.Run.KillStale), "off"
	j.Adopt = o.Run.Adopt
	if !o.Run.StrictExit {
		j.TailWords = runtimeWords
	}
	j.Venv, j.MaxText, j.CloudLogging, j.Secrets = o.Run.Venv, o.Run.MaxText, do.CloudLogging, o.Run.Secrets
	if o.Request.Type.Generation.NUMA && o.Run.NUMA != preflight.NUMAOff {
		j.NUMA = "bind"
		if o.Run.NUMA == preflight.NUMAPreferred {
			j.NUMA = "preferred"
		}
	}
	switch {
	case o.Keep:
		j.Keep = detach.KeepAlways
	case o.KeepOnFailure:
		j.Keep, j.KeepFor = detach.KeepOnFailure, o.KeepFor
	}
	if j.TTL > 0 {
		j.Requested = d.Clock.Now()
	}
	desc := detach.Description{
		Run: j.Run, Project: d.Project, Zone: d.Zone, Resource: j.Resource, Type: o.Request.Type.Name, Nodes: j.Nodes, Workers: j.Workers,
		Login: j.Login, Owner: d.Owner, Created: d.Clock.Now().UTC(), Command: commandText(o.Run), Every: max(do.Every, time.Second).Seconds(),
		Keep: j.Keep, KeepFor: j.KeepFor.Seconds(), StrictExit: o.Run.StrictExit, Attempt: 1,
	}
	var env []string
	for _, v := range o.Run.Env {
		desc.Environment = append(desc.Environment, v.Name)
		env = append(env, v.Name+"="+v.Value)
	}
	for _, s := range o.Run.Secrets {
		env = append(env, s.String())
	}
	slices.Sort(env)
	desc.CommandSum, desc.EnvSum = digest(append(slices.Clone(o.Run.Argv), o.Run.Script)), digest(env)
	return j, desc
}

// makeKit returns the files with which workers start the command without a runner.
func (r *run) makeKit(o JobOptions, flags []config.EnvVar) (map[string][]byte, error) {
	env := launchEnv(slices.Concat(r.o.Env, flags))
	k, err := launch.Spec{Run: r.o.Run, Attempt: 1, Owner: r.Owner, WorkDir: r.o.Run, Argv: r.o.Argv, Script: r.o.Script, Env: env, MaxLog: r.o.MaxLog, Venv: r.o.Venv}.Kit()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"bootstrap": []byte(k.Bootstrap)}
	for name, text := range k.Scripts {
		files[name] = []byte(text)
	}
	for name, data := range k.Files {
		files[name] = data
	}
	mode := preflight.Apply
	if r.o.Preflight == "check" {
		mode = preflight.Check
	}
	files["unpack"] = []byte(codesync.Unpack())
	files["preflight"] = []byte(preflight.Kit(preflight.Options{Mode: mode, Platform: r.o.Platform, Install: r.o.Install, BetweenSlices: mtuBetween(o.Request.NodeCount), ExpectChips: o.Request.Type.ChipsPerWorker()}))
	return files, nil
}

// secretError refuses a secret of this machine: a job without a runner cannot take it.
type secretError struct{ name string }

func (e *secretError) Error() string {
	return fmt.Sprintf("secret %q: a job without runner cannot take it from this machine: it would have to lie in the bucket or the metadata", e.name)
}

func (e *secretError) Hint() string {
	return fmt.Sprintf("put it into Secret Manager and name it: --secret-env=%s=sm://PROJECT/SECRET", e.name)
}

func (r *departure) upload(ctx context.Context) error {
	return r.watch.phase("upload", func() (string, error) {
		if err := r.put(ctx); err != nil {
			return "", err
		}
		what := "nothing but the command"
		if r.tree != nil {
			what = fmt.Sprintf("%s (%s)", event.Count(r.tree.Count, "file"), event.Bytes(r.tree.Bytes))
		}
		return what + " to " + r.bucket.URL(r.job.Run), nil
	})
}

// put uploads what the workers need and makes this start the one that counts.
func (r *departure) put(ctx context.Context) error {
	var write func(io.Writer) error
	if r.tree != nil {
		write = func(w io.Writer) error { return r.tree.Archive(ctx, w) }
	}
	return r.overtaken(r.bucket.Create(ctx, &r.job, r.desc, r.kit, write, r.earlier))
}

// request requests the slices. On failure the bucket is as it was before, or request
// reports what is left. left says that the queued resource may still exist.
func (r *departure) request(ctx context.Context, request provision.Request) (left bool, err error) {
	id := request.ID
	err = r.watch.phase("request", func() (string, error) {
		made, err := r.create(ctx, request)
		if err != nil {
			clean, cancel := r.detached(ctx, time.Minute)
			defer cancel()
			if made { // its workers need the bucket, so delete it first
				if _, failed := r.Cloud.Delete(clean, id, provision.DeleteOptions{OnlyRun: r.job.Run, Limit: time.Minute}); failed != nil {
					left = true
					event.Notef(r.Sink, event.Warn, deleteHint(id, r.Deps), "queued resource %s may exist and go on by itself, with its files in %s: %v", id, r.bucket.URL(r.job.Run), failed)
					return "", err
				}
			}
			if failed := r.bucket.Withdraw(clean, r.job, r.earlier == nil); failed != nil {
				err = errors.Join(err, failed)
			}
			return "", err
		}
		return fmt.Sprintf("queued resource %s: %d × %s", id, max(1, request.NodeCount), request.Type.Name), nil
	})
	return left, err
}

// create requests the slices, unless another start has become the one that counts.
func (r *departure) create(ctx context.Context, request provision.Request) (made bool, err error) {
	if !r.ReadOnly {
		if err := r.overtaken(r.bucket.Holds(ctx, r.job)); err != nil {
			return false, err
		}
	}
	res, made, err := r.Cloud.Create(ctx, r.withMetadata(request))
	var other *provision.ConflictError
	switch {
	case errors.As(err, &other) && r.earlier != nil && r.owns(res):
		return false, r.overtaken(&detach.ExistsError{URL: r.bucket.URL(r.job.Run)})
	case err == nil && !made:
		err = &Error{Stage: StageInput, Text: fmt.Sprintf("queued resource %q is there already", request.ID), Advice: "choose another --run-name, or delete it: " + deleteHint(request.ID, r.Deps)}
	}
	return made, err
}

// withMetadata returns the request with the metadata that its workers need.
func (r *departure) withMetadata(request provision.Request) provision.Request {
	metadata := maps.Clone(r.job.Metadata())
	for k, v := range request.Metadata {
		if _, ours := metadata[k]; !ours {
			metadata[k] = v
		}
	}
	request.Metadata = metadata
	return request
}

// sayDetached tells the user how to follow and end the job.
func (d *Deps) sayDetached(bucket *detach.Bucket, j detach.Job) {
	elsewhere := fmt.Sprintf("from another machine add --bucket-name=%s --project=%s --zone=%s", bucket.Name(), d.Project, d.Zone)
	if bucket.Dir() != "" {
		elsewhere += " --bucket-dir=" + bucket.Dir()
	}
	event.Notef(d.Sink, event.Info, "follow it with: multihost attach "+j.Run+"; end it with: multihost stop "+j.Run+"; "+elsewhere,
		"job %s goes on without this machine: its workers start the command and, when all have ended, %s", j.Run, afterwards(j))
	for _, l := range links(bucket, j) {
		event.Notef(d.Sink, event.Info, "", "%s: %s", l[0], l[1])
	}
}

// warnOfCopies warns if the bucket keeps copies of overwritten objects: a log that
// grows for a month would be stored ten thousand times. A user without the right to
// read that setting gets no warning.
func (d *Deps) warnOfCopies(ctx context.Context, bucket *detach.Bucket) {
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), warnLimit)
	defer cancel()
	softDeleted, versions, err := bucket.Keeps(ctx)
	if err != nil || softDeleted == 0 && !versions {
		return
	}
	keeps := "for ever (versioning)"
	if !versions {
		keeps = "for " + event.Count(int(softDeleted.Hours()/24), "day") + " (soft delete)"
	}
	event.Notef(d.Sink, event.Warn, "gcloud storage buckets update gs://"+bucket.Name()+" --clear-soft-delete --no-versioning",
		"bucket %s keeps and bills a copy of each log from before every upload, %s", bucket.Name(), keeps)
}

// afterwards says what the workers of a job without a runner do when all of them have
// ended.
func afterwards(j detach.Job) string {
	switch {
	case j.Keep == detach.KeepAlways:
		return fmt.Sprintf("leave queued resource %s, which is billed until somebody deletes it (--keep)", j.Resource)
	case j.Keep == detach.KeepOnFailure && j.KeepFor == 0:
		return fmt.Sprintf("delete queued resource %s, but leave it after a failure (--keep-on-failure)", j.Resource)
	case j.Keep == detach.KeepOnFailure:
		return fmt.Sprintf("delete queued resource %s, after a failure %s later (--keep-on-failure)", j.Resource, asTyped(j.KeepFor))
	}
	return "delete queued resource " + j.Resource
}

// links returns pages of Google's console about the job.
func links(bucket *detach.Bucket, j detach.Job) [][2]string {
	const console = "https://console.cloud.google.com/"
	project := "project=" + url.QueryEscape(j.Project)
	all := [][2]string{{"logs and results", console + "storage/browser/" + strings.TrimSuffix(strings.TrimPrefix(bucket.URL(j.Run), "gs://"), "/") + "?" + project}}
	if !j.CloudLogging {
		return all
	}
	query := func(text string) string {
		return console + "logs/query;query=" + strings.ReplaceAll(url.QueryEscape(text), "+", "%20") + ";?" + project
	}
	filter := fmt.Sprintf("resource.type=\"gce_instance\" AND\nlog_id(\"%s_log\")", j.Run)
	return append(all,
		[2]string{"Cloud Logging, all workers", query(filter)},
		[2]string{"Cloud Logging, worker 0 of slice 0", query(filter + fmt.Sprintf(" AND\nlabels.\"agent.googleapis.com/log_file_path\"=\"/var/log/multihost/%s/%s\"", j.Run, detach.LogObject(tpu.WorkerID{}, 1)))})
}

// A detachedRun is a job without a runner, as its bucket describes it.
type detachedRun struct {
	*Deps
	bucket *detach.Bucket
	desc   detach.Description
}

// errElsewhere says that a run belongs to another project or zone than the command.
var errElsewhere = errors.New("started in another project or zone")

// detachedRun finds a job without a runner by its name: in the bucket that the user
// names, otherwise in the one that this machine's record names. It returns nil for
// other runs.
func (d *Deps) detachedRun(ctx context.Context, name string) (*detachedRun, error) {
	if d.OpenBucket == nil {
		return nil, nil // hosts that no cloud knows
	}
	bucket, dir := d.Bucket, d.BucketDir
	if bucket == "" {
		rec, err := loadRecord(d.StateDir, name)
		if err != nil || rec == nil || rec.Bucket == "" {
			return nil, err
		}
		bucket, dir = rec.Bucket, rec.BucketDir
	}
	b, err := d.OpenBucket(ctx, bucket, dir)
	if err != nil {
		return nil, &Error{Stage: StageInput, Err: err}
	}
	desc, err := b.Describe(ctx, name)
	if errors.Is(err, detach.ErrNoRun) {
		return nil, &Error{Stage: StageDiscover, Err: err, Advice: "list the runs with: multihost ps --bucket-name=" + b.Name()}
	}
	if err != nil {
		return nil, err
	}
	if desc.Project != d.Project || desc.Zone != d.Zone {
		return nil, &Error{Stage: StageDiscover, Err: errElsewhere, Text: fmt.Sprintf("run %q was started in project %s, zone %s", name, desc.Project, desc.Zone),
			Advice: fmt.Sprintf("add --project=%s --zone=%s", desc.Project, desc.Zone)}
	}
	return &detachedRun{d, b, desc}, nil
}

// record returns the record that this machine would have if it had started the run. Its
// slices are those that exist now.
func (r *detachedRun) record(ctx context.Context, attempt int) (*Record, error) {
	rec := &Record{Run: r.desc.Run, Attempt: max(1, attempt), Project: r.desc.Project, Zone: r.desc.Zone, Prefix: r.desc.Resource, Login: r.desc.Login,
		Owner: r.desc.Owner, Created: r.desc.Created, Command: r.desc.Command, Workers: len(r.desc.IDs()),
		LogDir: recordDir(r.StateDir, r.desc.Run, attempt), KeepGoing: true, Bucket: r.bucket.Name(), BucketDir: r.bucket.Dir()}
	nodes, err := r.Cloud.Slices(ctx)
	if err != nil {
		return rec, fmt.Errorf("list slices in %q: %w", r.Zone, err)
	}
	for _, name := range r.desc.Nodes {
		slice := RecordedSlice{Name: name, Workers: r.desc.Workers, Type: r.desc.Type}
		for _, n := range nodes {
			if ok, _ := n.Ready(); ok && n.Name == name && n.Labels[provision.LabelRun] == provision.LabelValue(r.desc.Run) {
				slice.UID = n.UID
			}
		}
		rec.Slices = append(rec.Slices, slice)
	}
	return rec, nil
}

// pace is the pause between two reads of the bucket.
func (r *detachedRun) pace() time.Duration {
	every := time.Duration(r.desc.Every * float64(time.Second))
	return min(max(every/4, 500*time.Millisecond), 10*time.Second)
}

func (r *detachedRun) pause(ctx context.Context) error {
	return sleep(ctx, r.Clock, r.pace())
}

// attach follows the run to its end: over SSH while its workers can be reached,
// otherwise from the bucket, whose logs are up to desc.Every old.
func (r *detachedRun) attach(ctx context.Context, o AttachOptions) (Outcome, error) {
	r.comeTo(r.desc.Run)
	begin, told := r.Clock.Now(), ""
	followed := -1 // the attempt that was followed over SSH as far as possible
	var out Outcome
	var sum *event.Summary // of that attempt
	shown, shownOf := map[tpu.WorkerID]int64{}, 0
	var logs logWait
	total := len(r.desc.IDs())
	o.StrictExit = o.StrictExit || r.desc.StrictExit
	for {
		state, err := r.bucket.State(ctx, r.desc.Run)
		if err != nil {
			return Outcome{}, interruptedOr(ctx, err)
		}
		state.StrictExit = o.StrictExit
		rec, err := r.record(ctx, state.Attempt)
		if err != nil && !state.Over(r.desc) {
			return Outcome{}, interruptedOr(ctx, err)
		}
		if err := rec.makeLogDir(); err != nil {
			return Outcome{}, err
		}
		if text := r.summary(state); text != told {
			if told == "" && !state.Over(r.desc) {
				event.Notef(r.Sink, event.Info, "", "run %s lives without a runner, in %s; Ctrl-C leaves it running", r.desc.Run, r.bucket.URL(r.desc.Run))
			}
			told = text
			event.Notef(r.Sink, event.Info, "", "%s", text)
			r.warnRights(state)
		}
		if followed != state.Attempt && r.running(state) == total && !state.Over(r.desc) {
			followed = state.Attempt
			out, sum, err = r.attachOver(ctx, rec, o)
			clear(shown)
			if ctx.Err() != nil {
				if sum != nil {
					r.Sink.Emit(*sum)
				}
				return out, err
			}
			if err == nil {
				continue // the bucket says whether that was the end or another attempt follows
			}
			sum = nil
			event.Notef(r.Sink, event.Warn, "", "cannot follow over SSH (%v): following from the bucket, up to %s late", err, event.Age(time.Duration(r.desc.Every)*time.Second))
			continue
		}
		if shownOf != rec.Attempt {
			shownOf = rec.Attempt
			clear(shown)
		}
		if err := r.bringLogs(ctx, rec, shown); err != nil {
			return Outcome{}, interruptedOr(ctx, err)
		}
		if part := r.partly(rec, state); state.Over(r.desc) && part != "" && r.exists(ctx) {
			if followed != state.Attempt {
				followed = state.Attempt
				if out, sum, err = r.attachOver(ctx, rec, o); err == nil {
					clear(shown)
					continue
				}
				sum = nil
			}
			if logs.left(r.Clock.Now(), o.Patience.Log) > 0 {
				if logs.due(r.Clock.Now()) {
					event.Notef(r.Sink, event.Warn, "", "%s: waiting up to %s (--log-timeout) for the bucket to have the rest", part, asTyped(o.Patience.Log))
				}
				if err := r.pause(ctx); err != nil {
					return Outcome{Started: true}, err
				}
				continue
			}
		}
		if state.Over(r.desc) {
			defer r.sayKept(ctx, state) // after the summary
			if sum != nil && followed == state.Attempt && sum.OK == (state.Blame() == nil) {
				r.sayBackground(sum, state)
				r.Sink.Emit(*sum)
				return out, nil
			}
			return r.conclude(ctx, rec, state, begin)
		}
		if err := r.stillThere(ctx, state); err != nil {
			_ = r.bringLogs(ctx, rec, shown) // workers that were told to shut down have uploaded their last output meanwhile
			return Outcome{}, interruptedOr(ctx, err)
		}
		if err := r.pause(ctx); err != nil {
			return Outcome{Started: true}, err
		}
	}
}

// running counts the workers on which the newest attempt is running, or has ended with
// a log that the bucket has not accepted completely.
func (r *detachedRun) running(state detach.State) int {
	n := 0
	for _, w := range state.Seen {
		if (w.Phase == "running" || w.Phase == "logs") && w.Attempt == state.Attempt {
			n++
		}
	}
	return n
}

func interruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// stillThere returns an error if no worker is left that could bring the run to an end.
func (r *detachedRun) stillThere(ctx context.Context, state detach.State) error {
	res, err := r.Cloud.Get(ctx, r.desc.Resource)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		again, err := r.bucket.State(ctx, r.desc.Run)
		if err != nil || again.Over(r.desc) {
			return err
		}
		return &Error{Stage: StageFollow, Text: fmt.Sprintf("queued resource %s is gone, and only %d of %s ended in the bucket", r.desc.Resource, len(again.Ended), event.Count(len(r.desc.IDs()), "worker")),
			Advice: r.goesOn(again) + "read what there is with: multihost logs " + r.desc.Run}
	case err != nil:
		return err
	case !r.owns(res):
		return &Error{Stage: StageFollow, Text: fmt.Sprintf("queued resource %q is not of run %q", r.desc.Resource, r.desc.Run)}
	case res.Dead():
		if again, err := r.bucket.State(ctx, r.desc.Run); err == nil {
			state = again
		}
		return &Error{Stage: StageFollow, Text: fmt.Sprintf("queued resource %s is %s%s, and no worker is left to ask for another", r.desc.Resource, res.State, wentDown(state)),
			Advice: fmt.Sprintf("type the same multihost job --detach again: the run goes on as its next attempt; or give it up with: multihost stop %s", r.desc.Run)}
	}
	return nil
}

// wentDown returns what workers reported when their machines were told to shut down, to
// follow a queued resource's state: " (s1w[0-3] preempted)", or "".
func wentDown(state detach.State) string {
	workers := map[string][]tpu.WorkerID{}
	for _, w := range state.Seen {
		if w.Phase == detach.Down {
			workers[w.Detail] = append(workers[w.Detail], w.Worker)
		}
	}
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(workers)) {
		parts = append(parts, tpu.Fold(workers[why])+" "+why)
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// summary describes the run's progress in a sentence.
func (r *detachedRun) summary(state detach.State) string {
	total := len(r.desc.IDs())
	if state.Over(r.desc) {
		return fmt.Sprintf("run %s, attempt %d: ended on %s", r.desc.Run, state.Attempt, onAll(total))
	}
	if len(state.Seen) == 0 {
		return fmt.Sprintf("run %s: no worker has reported yet", r.desc.Run)
	}
	phases := map[string][]tpu.WorkerID{}
	var order []string
	for _, w := range state.Seen {
		phase := w.Phase
		switch {
		case phase == detach.Down:
			phase = "down, " + w.Detail + ","
		case w.Detail != "" && (phase == "boot" || phase == "preflight"): // what it waits for
			phase += " (" + w.Detail + ")"
		}
		if len(phases[phase]) == 0 {
			order = append(order, phase)
		}
		phases[phase] = append(phases[phase], w.Worker)
	}
	parts := make([]string, len(order))
	for i, p := range order {
		parts[i] = p + " on " + tpu.Fold(phases[p])
	}
	if missing := total - len(state.Seen); missing > 0 {
		parts = append(parts, event.Count(missing, "worker")+" not seen yet")
	}
	return fmt.Sprintf("run %s, attempt %d: %s", r.desc.Run, max(1, state.Attempt), strings.Join(parts, ", "))
}

// warnRights warns if no worker may delete the queued resource.
func (r *detachedRun) warnRights(state detach.State) {
	for _, w := range state.Seen {
		if w.MayDelete == "yes" || w.MayDelete == "" {
			return
		}
	}
	if len(state.Seen) > 0 {
		event.Notef(r.Sink, event.Warn, deleteHint(r.desc.Resource, r.Deps), "no worker may delete queued resource %s when the run has ended: %s", r.desc.Resource, state.Seen[0].MayDelete)
	}
}

// whyKept says why the slices of a run that has ended stay; "" if the workers delete
// them.
func (r *detachedRun) whyKept(state detach.State) string {
	switch {
	case r.desc.Keep == detach.KeepAlways:
		return "--keep"
	case r.desc.Keep == detach.KeepOnFailure && state.Blame() != nil && r.desc.KeepFor > 0:
		return "--keep-on-failure=" + asTyped(time.Duration(r.desc.KeepFor*float64(time.Second)))
	case r.desc.Keep == detach.KeepOnFailure && state.Blame() != nil:
		return "--keep-on-failure"
	case len(state.Unsent) > 0:
		return "the bucket has not taken the whole log of " + tpu.Fold(state.Unsent)
	}
	return ""
}

// sayKept reports, for a run that has ended, that its queued resource stays. It returns
// whether the resource was to stay.
func (r *detachedRun) sayKept(ctx context.Context, state detach.State) bool {
	why := r.whyKept(state)
	if why == "" {
		return false
	}
	if res, err := r.Cloud.Get(ctx, r.desc.Resource); err == nil && r.owns(res) {
		event.Notef(r.Sink, event.Warn, deleteHint(res.ID, r.Deps), "queued resource %s stays (%s), %s", res.ID, why, res.Standing())
	}
	return true
}

// bringLogs makes the local logs equal to the bucket's and shows what is new to the
// user who attaches. shown holds how far each worker's log has been shown.
func (r *detachedRun) bringLogs(ctx context.Context, rec *Record, shown map[tpu.WorkerID]int64) error {
	ids := r.desc.IDs()
	errs := make([]error, len(ids))
	at := make([]int64, len(ids))
	var group errgroup.Group
	group.SetLimit(16)
	for i, id := range ids {
		from, known := shown[id]
		if !known {
			from = -1
		}
		group.Go(func() error {
			at[i], errs[i] = r.bringLog(ctx, rec, id, from)
			return nil
		})
	}
	_ = group.Wait() // the goroutines return nil
	for i, id := range ids {
		if errs[i] == nil {
			shown[id] = at[i]
		}
	}
	return workersError(StageFollow, ids, errs)
}

// bringLog copies a worker's log from an offset on and returns the offset of its end.
// Offset -1 means the end of the local log. Several processes may do so at the same
// time: each writes every byte at its own offset.
func (r *detachedRun) bringLog(ctx context.Context, rec *Record, id tpu.WorkerID, from int64) (int64, error) {
	file, err := os.OpenFile(rec.logPath(id), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if from < 0 {
		info, err := file.Stat()
		if err != nil {
			return 0, err
		}
		from = info.Size()
	}
	n, err := r.bucket.Log(ctx, r.desc.Run, id, rec.Attempt, from, &localLog{r.Sink, file, id, from, &arrivalWriter{path: arrivalsPath(rec.LogDir, id), now: r.Clock.Now}})
	return from + n, err
}

// A localLog is a log that is written from an offset on and shown at the same time.
type localLog struct {
	sink event.Sink
	file *os.File
	id   tpu.WorkerID
	at   int64

	arrivals *arrivalWriter
}

func (l *localLog) Write(p []byte) (int, error) {
	l.arrivals.mark(l.at)
	n, err := l.file.WriteAt(p, l.at)
	l.at += int64(n)
	if n > 0 {
		l.sink.Emit(event.Output{Slice: l.id.Slice, Worker: l.id.Worker, Data: p[:n]})
	}
	return n, err
}

// conclude reports how the run ended, from what the workers wrote.
func (r *detachedRun) conclude(ctx context.Context, rec *Record, state detach.State, begin time.Time) (Outcome, error) {
	sum := r.judge(rec, state, begin)
	part := r.partly(rec, state)
	if part != "" {
		r.sayPart(ctx, &sum, part)
	}
	rec.Ended, rec.Code, rec.Cut = true, sum.ExitCode, part != ""
	if err := rec.save(r.StateDir); err != nil {
		event.Notef(r.Sink, event.Warn, "", "%v", err)
	}
	r.Sink.Emit(sum)
	return Outcome{Code: sum.CommandCode, Started: true, PartLogs: part != ""}, nil
}

// partly says which logs are incomplete here although their workers have ended; "" if
// none is.
func (r *detachedRun) partly(rec *Record, state detach.State) string {
	var all parts
	for _, e := range state.Ended {
		if have := rec.have(e.Worker); have < e.LogSize {
			all = append(all, &partLog{id: e.Worker, have: have, written: e.LogSize})
		}
	}
	return all.String()
}

// sayPart makes the summary say which logs are incomplete here. A success then becomes
// a failure.
func (r *detachedRun) sayPart(ctx context.Context, sum *event.Summary, part string) {
	sum.Text += "; " + part
	if !sum.OK {
		return
	}
	sum.OK, sum.ExitCode, sum.Next = false, partLogCode, "its slices are gone, and with them the rest"
	if r.exists(ctx) {
		sum.Next = "bring the rest with: multihost attach " + r.desc.Run
	}
}

// exists reports whether the queued resource of the run exists. It returns true if that
// is not known.
func (r *detachedRun) exists(ctx context.Context) bool {
	res, err := r.Cloud.Get(ctx, r.desc.Resource)
	return err != nil && gcp.ClassOf(err) != gcp.NotFound || err == nil && r.owns(res)
}

// judge reports how the run ended on each worker and returns its summary.
func (r *detachedRun) judge(rec *Record, state detach.State, begin time.Time) event.Summary {
	for _, e := range state.Ended {
		r.Sink.Emit(event.WorkerDone{Slice: e.Worker.Slice, Worker: e.Worker.Worker, Code: e.Code, Signal: e.Signal, Reason: e.Reason, End: e.At})
	}
	sum := event.Summary{Run: r.desc.Run, Attempt: rec.Attempt, OK: true, LogDir: rec.LogDir,
		Phases: []event.PhaseTime{{Name: "follow", Elapsed: r.Clock.Now().Sub(begin)}}}
	sum.Text = fmt.Sprintf("run %s succeeded on %s", r.desc.Run, onAll(len(state.Ended)))
	if first := state.Blame(); first != nil {
		how := endText(*first)
		sum.OK, sum.ExitCode, sum.CommandCode = false, first.Code, first.Code
		if first.Reason != "" {
			sum.Text = fmt.Sprintf("run %s did not end by itself on %s: %s", r.desc.Run, first.Worker, first.Reason)
		} else {
			sum.Text = fmt.Sprintf("run %s failed: %s was first, %s", r.desc.Run, first.Worker, how)
			sum.FirstFail = first.Worker.String() + ": " + how
		}
		sum.LastLines = lastLines(rec.logPath(first.Worker), 20, nil)
		sum.Next = "multihost logs " + r.desc.Run + " --worker=" + first.Worker.String()
		if len(sum.LastLines) == 0 { // for example because the command was never started
			sum.Next = "nothing was written there; once that is mended, type the job again with another --run-name"
		}
	}
	if excused := state.Excused(); sum.OK && len(excused) > 0 {
		r.sayExcused(&sum, tpu.Fold(excused))
	}
	r.sayBackground(&sum, state)
	return sum
}

// endText describes in a few words how the command ended on a worker, as launch.Exit
// does.
func endText(e detach.End) string {
	return launch.Exit{Code: e.Code, Signal: e.Signal}.String()
}

// sayBackground reports the processes that the command left, as the workers have
// counted them.
func (r *detachedRun) sayBackground(sum *event.Summary, state detach.State) {
	processes, ids := state.LeftBehind()
	r.sayLeftBehind(sum, processes, ids, backgroundCureDetached)
}

// keptSlices returns the slices that stay although the run has ended on all workers; nil
// if the workers delete them, or there are none.
func (r *detachedRun) keptSlices(ctx context.Context, state detach.State) *kept {
	why := r.whyKept(state)
	res, err := r.Cloud.Get(ctx, r.desc.Resource)
	if why == "" || err != nil || !r.owns(res) {
		return nil
	}
	k := &kept{run: r.desc.Run, res: res, ended: "exit code 0, kept: " + why}
	if first := state.Blame(); first != nil {
		k.ended = fmt.Sprintf("failed: %s was first, %s, kept: %s", first.Worker, endText(*first), why)
	}
	if len(state.Unsent) > 0 {
		k.part = why
	}
	return k
}

// stillOver returns an error unless the bucket says that the run has ended.
func (r *detachedRun) stillOver(ctx context.Context) error {
	state, err := r.bucket.State(ctx, r.desc.Run)
	if err == nil && !state.Over(r.desc) {
		err = fmt.Errorf("run %s has been started again", r.desc.Run)
	}
	if err != nil {
		return &Error{Stage: StageStop, Err: err}
	}
	return nil
}

// stopKept deletes the slices that are kept of a run that has ended.
func (r *detachedRun) stopKept(ctx context.Context, o StopOptions, k kept) error {
	k.again = r.stillOver
	err := r.deleteKept(ctx, o, k)
	if err == nil {
		r.forget()
	}
	return err
}

// stop ends the run for good: the bucket tells all workers, and stop tells those at
// once that can be reached. It returns when every worker has ended, or when no worker
// has reported yet. If the queued resource has no workers, nobody else deletes it, so
// stop does.
func (r *detachedRun) stop(ctx context.Context, o StopOptions) error {
	watch, later := stopwatch{sink: r.Sink, clock: r.Clock}, false
	before, err := r.bucket.State(ctx, r.desc.Run)
	if err != nil && ctx.Err() != nil {
		return interruptedOr(ctx, mayStillRun(&Error{Stage: StageStop, Err: err}, r.desc.Run))
	}
	// If the bucket cannot be read, the workers are told to stop all the same.
	if err == nil && before.Over(r.desc) {
		if k := r.keptSlices(ctx, before); k != nil {
			return r.stopKept(ctx, o, *k)
		}
	}
	err = watch.phase("stop", func() (string, error) {
		if err := r.bucket.Stop(ctx, r.desc.Run, stopBy+r.Owner); err != nil {
			return "", mayStillRun(&Error{Stage: StageStop, Err: err}, r.desc.Run)
		}
		direct := true
		limit := r.Clock.After(o.Grace + 3*time.Duration(r.desc.Every*float64(time.Second)) + 5*time.Minute)
		for {
			state, err := r.bucket.State(ctx, r.desc.Run)
			if err != nil {
				return "", interruptedOr(ctx, mayStillRun(&Error{Stage: StageStop, Err: err}, r.desc.Run))
			}
			if state.Over(r.desc) {
				if r.sayKept(ctx, state) {
					return fmt.Sprintf("run %s: ended on all workers", r.desc.Run), nil
				}
				r.warnRights(state)
				return fmt.Sprintf("run %s: ended on all workers, which delete queued resource %s", r.desc.Run, r.desc.Resource), nil
			}
			res, err := r.Cloud.Get(ctx, r.desc.Resource)
			switch {
			case gcp.ClassOf(err) == gcp.NotFound, err == nil && !r.owns(res):
				return fmt.Sprintf("run %s: queued resource %s is gone, nothing runs", r.desc.Run, r.desc.Resource), nil
			case err == nil && res.Life.Empty():
				return r.withdraw(ctx, res)
			}
			if direct && len(state.Seen) > 0 {
				direct = false
				rec, err := r.record(ctx, state.Attempt)
				if err == nil {
					err = r.stopOn(ctx, rec, o)
				}
				if err != nil && ctx.Err() == nil {
					event.Notef(r.Sink, event.Info, "", "not every worker can be reached (%v): those read it in the bucket", err)
				}
				continue
			}
			if len(state.Seen) == 0 {
				later = true
				return fmt.Sprintf("run %s: no worker has started yet; those that come will not start the command", r.desc.Run), nil
			}
			select {
			case <-r.Clock.After(r.pace()):
			case <-limit:
				standing := ""
				if err == nil {
					standing = res.Standing()
				}
				return "", r.unstopped(state, standing)
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}
	})
	if err == nil && !later {
		r.forget()
	}
	return err
}

// forget makes ps stop asking for a run that was stopped.
func (r *detachedRun) forget() {
	rec, err := loadRecord(r.StateDir, r.desc.Run)
	if err == nil && rec != nil && rec.Bucket == r.bucket.Name() && rec.BucketDir == r.bucket.Dir() {
		rec.Ended = true
		err = rec.save(r.StateDir)
	}
	if err != nil {
		event.Notef(r.Sink, event.Warn, "", "%v", err)
	}
}

// withdraw deletes the queued resource of a run that has no workers.
func (r *detachedRun) withdraw(ctx context.Context, res provision.Resource) (string, error) {
	_, err := r.Cloud.Delete(ctx, res.ID, provision.DeleteOptions{OnlyRun: r.desc.Run, Limit: teardownLimit})
	if err != nil {
		return "", interruptedOr(ctx, &Error{Stage: StageStop, Err: err, Advice: deleteHint(res.ID, r.Deps)})
	}
	return fmt.Sprintf("run %s: no worker was there, and queued resource %s, which was %s, is deleted", r.desc.Run, res.ID, res.State), nil
}

// owns reports whether a queued resource with the run's name belongs to the run.
func (r *detachedRun) owns(res provision.Resource) bool {
	return res.IsOf(r.desc.Run)
}

// detachedRows returns the jobs without a runner: those in the bucket that the user
// names, otherwise those in this zone that this machine has a record of.
func (d *Deps) detachedRows(ctx context.Context, ended bool) ([]Seen, error) {
	var names []string
	if d.Bucket != "" {
		b, err := d.OpenBucket(ctx, d.Bucket, d.BucketDir)
		if err != nil {
			return nil, &Error{Stage: StageInput, Err: err}
		}
		if names, err = b.Runs(ctx); err != nil {
			return nil, err
		}
	} else {
		for _, rec := range localRecords(d.StateDir) {
			if rec.Bucket != "" && rec.Project == d.Project && rec.Zone == d.Zone && (ended || !rec.Ended) {
				names = append(names, rec.Run)
			}
		}
	}
	var rows []Seen
	errs := make([]error, len(names))
	for i, name := range names {
		row, err := d.detachedRow(ctx, name, ended)
		switch {
		case d.Bucket != "" && (errors.Is(err, errElsewhere) || errors.Is(err, detach.ErrNoRun)):
			// The bucket may be used for many zones and hold other objects.
		case errors.Is(err, detach.ErrNoRun) && d.noneLeft(ctx, name):
			// Somebody has cleaned up the bucket.
		case err != nil: // say so, show the rest
			errs[i] = err
		case row != nil:
			rows = append(rows, *row)
		}
	}
	return rows, JoinNamed(names, errs)
}

// noneLeft reports whether the cloud has no queued resource of a run that this machine
// has a record of.
func (d *Deps) noneLeft(ctx context.Context, name string) bool {
	rec, err := loadRecord(d.StateDir, name)
	if err != nil || rec == nil {
		return false
	}
	_, err = d.Cloud.Get(ctx, rec.Prefix)
	return gcp.ClassOf(err) == gcp.NotFound
}

// detachedRow returns nil for a run that is not to be shown.
func (d *Deps) detachedRow(ctx context.Context, name string, ended bool) (*Seen, error) {
	r, err := d.detachedRun(ctx, name)
	if err != nil || r == nil {
		return nil, err
	}
	state, err := r.bucket.State(ctx, name)
	if err != nil || state.Over(r.desc) && !ended {
		return nil, err
	}
	row := r.row(ctx, state)
	if row.State == stoppedState && !ended {
		return nil, nil
	}
	return &row, nil
}

// stoppedState is the state of a stopped run whose workers, if there were any, were
// taken away before they could report how it ended.
const stoppedState = "stopped"

// whenGone says when the workers delete the slices.
func (r *detachedRun) whenGone() string {
	switch {
	case r.desc.Keep == detach.KeepAlways:
		return "never by itself"
	case r.desc.Keep == detach.KeepOnFailure && r.desc.KeepFor == 0:
		return "at its end, never after a failure"
	case r.desc.Keep == detach.KeepOnFailure:
		return "at its end, " + asTyped(time.Duration(r.desc.KeepFor*float64(time.Second))) + " after a failure"
	}
	return "at its end"
}

// row returns the run as a list shows it: from the bucket, or from the queued resource
// if no worker has reported yet or no worker is left.
func (r *detachedRun) row(ctx context.Context, state detach.State) Seen {
	row := Seen{Run: r.desc.Run, Attempt: max(1, state.Attempt), Owner: r.desc.Owner, Created: r.desc.Created, Slices: r.desc.Nodes, Command: r.desc.Command,
		goes: r.whenGone(), age: r.Clock.Now().Sub(r.desc.Created)}
	switch first := state.Blame(); {
	case state.Over(r.desc) && first != nil && first.Reason == "" && len(state.Ended) > 1:
		row.State = fmt.Sprintf("failed: %s was first, %s", first.Worker, endText(*first))
	case state.Over(r.desc) && first != nil:
		row.State = fmt.Sprintf("exit code %d", first.Code)
	case state.Over(r.desc):
		row.State = "exit code 0"
		if excused := state.Excused(); len(excused) > 0 {
			row.State += ", unclean on " + tpu.Fold(excused)
		}
		if processes, _ := state.LeftBehind(); processes > 0 {
			row.State += ", left " + event.Count(processes, "process") + " in the background"
		}
	default:
		row.State = "queued"
		if len(state.Seen) > 0 {
			row.State = state.Seen[0].Phase
		}
		if slices.ContainsFunc(state.Seen, func(w detach.Seen) bool { return w.Phase == detach.Down }) {
			row.State = detach.Down
		}
		res, err := r.Cloud.Get(ctx, r.desc.Resource)
		switch {
		case gcp.ClassOf(err) == gcp.NotFound && state.Stopping != "":
			row.State = stoppedState
		case gcp.ClassOf(err) == gcp.NotFound:
			row.State = "gone"
		case err == nil && (res.Life != provision.Active || len(state.Seen) == 0):
			row.State = strings.ToLower(res.State)
		}
	}
	return row
}
