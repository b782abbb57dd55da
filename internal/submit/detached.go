// Package submit starts a job without runner: it uploads the job to a bucket and requests
// the slices. Their workers do the rest.
//
// # Decisions
//
//   - Each start of a job has its own files in the bucket. A start first uploads them. Next
//     it writes run.json, if run.json still has the generation that was read. Then it
//     deletes the remains of earlier starts and writes the number of the attempt. The
//     request for slices comes last. If the runner dies in between, the next start can
//     continue with what exists.
//   - Starts have no lock, because the owner of a lock might be dead. Of two starts, the
//     later one takes over. A step of a start takes effect only if the objects that it has
//     read are unchanged. So the earlier start fails after the later one has made a change.
//     Its request for slices is refused, too, because the metadata of existing slices names
//     the other start.
package submit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/announce"
	"multihost/internal/attempt"
	"multihost/internal/codesync"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/settings"
	"multihost/internal/stage"
	"multihost/internal/teardown"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// Deps holds what the package works with.
type Deps struct {
	*workers.Reach
	*record.Keeper
	detach.Source
	Networks job.Networks
	Agents   program.Set // the programs for the workers

	// Checked is called before the first request, after all checks that need no request. It
	// may be nil.
	Checked func()
}

// DetachOptions are the additional options of a job without runner.
type DetachOptions struct {
	Bucket, Dir  string
	Roots        gcp.Roots
	Every        time.Duration // time between two uploads of a worker's log
	Patience     time.Duration // as in detach.Job
	Stale        time.Duration // as in detach.Job
	CloudLogging bool
}

// Detach starts a job without runner. It uploads the files for the workers to the bucket and
// requests the slices. If a run of that name has lost its slices, the run continues with the
// next attempt. If Detach returns without error, the queued resource exists, and the workers do
// the rest. After an error, Detach has removed the queued resource and the files of this start,
// or reports what is left.
func Detach(ctx context.Context, d Deps, o job.JobOptions, do DetachOptions) (stage.Outcome, error) {
	r, err := prepareDetached(ctx, d, o, do)
	if err != nil {
		return stage.Outcome{}, err
	}
	defer r.Close()
	if r.earlier != nil {
		event.Notef(d.Sink, event.Info, "", "run %s has lost its slices (%s): it goes on as attempt %d", r.job.Run, r.loss(), r.desc.Attempt)
	}
	sayBounds(d, o.Request)
	right, over := announce.AskRight(ctx, d.Reach, o.Request, !o.Keep || o.TTL > 0)
	defer over()
	tell := announce.Deps{Reach: d.Reach, Networks: d.Networks}
	first := func() error {
		mtu, err := announce.Check(ctx, tell, o.Request, o.Network)
		if err != nil {
			return err
		}
		announce.TellRight(d.Reach, right(), o.Request.ID, announce.WhenRunEnds)
		return announce.Announce(ctx, tell, announce.Asking(o.Request, d.Project, d.Zone, mtu, announce.BilledUntil(o.Bill(), true), false))
	}
	if err := job.MakeNetwork(ctx, d.Networks, r.Watch, o.Network, first); err != nil {
		return stage.Outcome{}, err
	}
	if err := r.upload(ctx); err != nil {
		return stage.Outcome{}, err
	}
	if err := r.clear(ctx); err != nil {
		return stage.Outcome{}, err
	}
	// Save the record first. If this process is killed before the answer arrives, the user can
	// still find the run by its name.
	forget, err := r.record().SaveAhead(d.StateDir)
	if err != nil {
		event.Notef(d.Sink, event.Warn, "", "the record of the job cannot be kept: %v", err)
	}
	if left, err := r.request(ctx, o.Request); err != nil {
		if !left {
			forget()
		}
		return stage.Outcome{}, err
	}
	sayDetached(d, r.bucket, r.job)
	warnOfCopies(ctx, d, r.bucket)
	return stage.Outcome{Started: true, Detached: true}, nil
}

// A departure is one start of a job without runner. It has everything to upload and to request.
type departure struct {
	*attempt.Run
	bucket *detach.Bucket
	job    detach.Job
	desc   detach.Description
	kit    map[string][]byte

	earlier *detach.Earlier    // the run to continue; nil: there is no run of this name
	lost    provision.Resource // what is left of the earlier run's queued resource
}

// prepareDetached makes everything that the start of a job without runner needs. It changes
// nothing in the cloud. The caller closes the run.
func prepareDetached(ctx context.Context, d Deps, o job.JobOptions, do DetachOptions) (_ *departure, err error) {
	if err := cmp.Or(detach.CheckMetadata(o.Request.Metadata), d.Agents.Check()); err != nil {
		return nil, &stage.Error{Stage: stage.Input, Err: err}
	}
	r := &departure{Run: &attempt.Run{
		Deps: attempt.Deps{Reach: d.Reach, Keeper: d.Keeper, Networks: d.Networks, Roots: do.Roots, Checked: d.Checked},
		O:    o.Run, Watch: &stage.Stopwatch{Sink: d.Sink, Clock: d.Clock},
	}}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	for _, v := range o.Run.Env {
		if v.Secret {
			return nil, &stage.Error{Stage: stage.Input, Err: &secretError{v.Name}}
		}
	}
	if err := r.Check(ctx, o.Request.Type.Name); err != nil {
		return nil, err
	}
	r.ChecksDone()
	if r.bucket, err = d.OpenBucket(ctx, do.Bucket, do.Dir); err != nil {
		return nil, &stage.Error{Stage: stage.Input, Err: err}
	}
	r.job, r.desc = detachedJob(d, o, do, r.bucket)
	if r.kit, err = makeKit(r.Run, o, r.Flags()); err != nil {
		return nil, &stage.Error{Stage: stage.Input, Err: err}
	}
	return r, r.lookBack(ctx, o.Request)
}

// record returns the local record of the job.
func (r *departure) record() *record.Record {
	return &record.Record{Run: r.job.Run, Attempt: r.desc.Attempt, Project: r.Project, Zone: r.Zone, Prefix: r.job.Resource, Login: r.job.Login, Owner: r.Owner,
		Created: r.desc.Created, Command: r.desc.Command, Workers: len(r.desc.IDs()), LogDir: record.RecordDir(r.StateDir, r.job.Run, r.desc.Attempt),
		KeepGoing: true, Bucket: r.bucket.Name(), BucketDir: r.bucket.Dir()}
}

func detachedJob(d Deps, o job.JobOptions, do DetachOptions, bucket *detach.Bucket) (detach.Job, detach.Description) {
	label, value := o.Request.RunLabel()
	j := detach.Job{
		Run: o.Run.Run, Project: d.Project, Zone: d.Zone, Resource: o.Request.ID, Undoing: d.Cloud.Undoing(o.Request.ID, o.Request.NodeNames()...), Label: label + "=" + value,
		Nodes: o.Request.NodeNames(), Workers: o.Request.Type.Workers, Apart: o.Request.Apart, MaxRun: o.Request.MaxRunDuration, Gather: o.Request.SlicesDeadline, Login: d.Access.Login,
		Storage: do.Roots.Storage, SecretManager: do.Roots.SecretManager, TTL: o.TTL,
		Bucket: bucket.Name(), Dir: bucket.Dir(), Every: do.Every,
	}
	j.Agents, j.Patience, j.Stale = d.Agents, do.Patience, do.Stale
	j.LogTimeout = max(o.Run.Patience.Log, time.Second) // in the job's description, 0 would mean the default
	j.Grace, j.Timeout, j.FailFast = o.Run.Grace, o.Run.Timeout, o.Run.FailFast
	j.Preflight, j.KillStale, j.NUMA = o.Run.Preflight, string(o.Run.KillStale), "off"
	j.Adopt = o.Run.Adopt
	if !o.Run.StrictExit {
		j.TailWords = follow.RuntimeWords
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
		Run: j.Run, Project: d.Project, Zone: d.Zone, Resource: j.Resource, Kind: j.Undoing.Commands.Kind, Type: o.Request.Type.Name, Nodes: j.Nodes, Workers: j.Workers,
		Login: j.Login, Owner: d.Owner, Created: d.Clock.Now().UTC(), Command: attempt.CommandText(o.Run), Every: max(do.Every, time.Second).Seconds(),
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

// makeKit returns the files with which workers start the command of a job without runner.
func makeKit(r *attempt.Run, o job.JobOptions, flags []config.EnvVar) (map[string][]byte, error) {
	env := attempt.LaunchEnv(slices.Concat(r.O.Env, flags))
	k, err := launch.Spec{Run: r.O.Run, Attempt: 1, Owner: r.Owner, WorkDir: r.O.Run, Argv: r.O.Argv, Script: r.O.Script, Env: env, MaxLog: r.O.MaxLog, Venv: r.O.Venv}.Kit()
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
	if r.O.Preflight == "check" {
		mode = preflight.Check
	}
	files["unpack"] = []byte(codesync.Unpack())
	files["preflight"] = []byte(preflight.Kit(preflight.Options{Mode: mode, Platform: r.O.Platform, Install: r.O.Install, BetweenSlices: settings.MTUBetween(o.Request.NodeCount), ExpectChips: o.Request.Type.ChipsPerWorker()}))
	return files, nil
}

// secretError says that the command needs a secret of this machine, which a job without
// runner cannot have.
type secretError struct{ name string }

func (e *secretError) Error() string {
	return fmt.Sprintf("secret %q: a job without runner cannot take it from this machine: it would have to lie in the bucket or the metadata", e.name)
}

func (e *secretError) Hint() string {
	return fmt.Sprintf("put it into Secret Manager and name it: --secret-env=%s=sm://PROJECT/SECRET", e.name)
}

func (r *departure) upload(ctx context.Context) error {
	return r.Watch.Phase("upload", func() (string, error) {
		if err := r.put(ctx); err != nil {
			return "", err
		}
		what := "nothing but the command"
		if r.Tree != nil {
			what = fmt.Sprintf("%s (%s)", event.Count(r.Tree.Count, "file"), event.Bytes(r.Tree.Bytes))
		}
		return what + " to " + r.bucket.URL(r.job.Run), nil
	})
}

// put uploads what the workers need, and makes this start the current one.
func (r *departure) put(ctx context.Context) error {
	var write func(io.Writer) error
	if r.Tree != nil {
		write = func(w io.Writer) error { return r.Tree.Archive(ctx, w) }
	}
	return r.overtaken(r.bucket.Create(ctx, &r.job, r.desc, r.kit, write, r.earlier))
}

// request requests the slices. If that fails, it removes the files of this start from the
// bucket, or reports what is left. left is true if the queued resource may still exist.
func (r *departure) request(ctx context.Context, request provision.Request) (left bool, err error) {
	id := request.ID
	err = r.Watch.Phase("request", func() (string, error) {
		made, err := r.create(ctx, request)
		if err != nil {
			clean, cancel := r.Detached(ctx, time.Minute)
			defer cancel()
			if made { // the resource's workers need the bucket, so delete the resource first
				if _, failed := r.Cloud.Delete(clean, id, provision.DeleteOptions{OnlyRun: r.job.Run, Limit: time.Minute}); failed != nil {
					left = true
					event.Notef(r.Sink, event.Warn, teardown.Hint(r.Reach, id), "%s may exist and go on by itself, with its files in %s: %v", provision.NameOf(r.Cloud, id), r.bucket.URL(r.job.Run), failed)
					return "", err
				}
			}
			if failed := r.bucket.Withdraw(clean, r.job, r.earlier == nil); failed != nil {
				err = errors.Join(err, failed)
			}
			return "", err
		}
		return fmt.Sprintf("%s: %d × %s", provision.NameOf(r.Cloud, id), max(1, request.NodeCount), request.Type.Name), nil
	})
	return left, err
}

// create requests the slices, unless another start has become the current one.
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
		err = &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("%s is there already", provision.QuotedNameOf(r.Cloud, request.ID)), Advice: "choose another --run-name, or " + teardown.Hint(r.Reach, request.ID)}
	}
	return made, err
}

// withMetadata returns the request with the metadata for its workers.
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

// sayBounds tells the user, before the request, what may take the slices away before the
// command ends. Workers cannot request new slices.
func sayBounds(d Deps, o provision.Request) {
	const again = "type the same multihost job --detach again then: the run goes on as its next attempt, from the command's own checkpoint"
	if o.Asks().Reclaimable() {
		event.Notef(d.Sink, event.Info, again, "%s slices may be taken away, and the workers of a job without runner cannot ask for others", o.Asks())
	}
	if o.MaxRunDuration > 0 {
		event.Notef(d.Sink, event.Info, again, "the slices are deleted with their disks %s after they are made (--max-run-duration): shortly before, the workers stop the command and send its logs to the bucket; what else it has to keep must be in a bucket by then",
			stage.AsTyped(o.MaxRunDuration))
	}
}

// sayDetached tells the user how to follow and end the job.
func sayDetached(d Deps, bucket *detach.Bucket, j detach.Job) {
	elsewhere := fmt.Sprintf("from another machine add --bucket-name=%s --project=%s --zone=%s", bucket.Name(), d.Project, d.Zone)
	if bucket.Dir() != "" {
		elsewhere += " --bucket-dir=" + bucket.Dir()
	}
	event.Notef(d.Sink, event.Info, "follow it with: multihost attach "+j.Run+"; end it with: multihost stop "+j.Run+"; "+elsewhere,
		"job %s goes on without this machine: its workers start the command and, when all have ended, %s", j.Run, afterwards(d.Cloud, j))
	for _, l := range links(bucket, j) {
		event.Notef(d.Sink, event.Info, "", "%s: %s", l[0], l[1])
	}
}

// warnOfCopies warns if the bucket keeps copies of overwritten objects. A log that grows for a
// month would be stored ten thousand times. Without permission to read the bucket's settings,
// there is no warning.
func warnOfCopies(ctx context.Context, d Deps, bucket *detach.Bucket) {
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), workers.WarnLimit)
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

// afterwards says what the workers of a job without runner do when all of them have ended.
func afterwards(p provision.Provider, j detach.Job) string {
	switch {
	case j.Keep == detach.KeepAlways:
		return fmt.Sprintf("leave %s, which is billed until somebody deletes it (--keep)", provision.NameOf(p, j.Resource))
	case j.Keep == detach.KeepOnFailure && j.KeepFor == 0:
		return fmt.Sprintf("delete %s, but leave it after a failure (--keep-on-failure)", provision.NameOf(p, j.Resource))
	case j.Keep == detach.KeepOnFailure:
		return fmt.Sprintf("delete %s, after a failure %s later (--keep-on-failure)", provision.NameOf(p, j.Resource), stage.AsTyped(j.KeepFor))
	}
	return "delete " + provision.NameOf(p, j.Resource)
}

// links returns addresses of pages about the job in Google's console.
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
