package detach

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/api/googleapi"
	storage "google.golang.org/api/storage/v1"

	"multihost/internal/agent/program"
	"multihost/internal/config"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/tpu"
)

// A Bucket is a bucket's directory of jobs. It is safe for concurrent use.
type Bucket struct {
	gcp  *gcp.Client
	svc  *storage.Service
	name string
	dir  string
}

// Open returns the Bucket for directory dir of a bucket. It calls no API.
func Open(ctx context.Context, c *gcp.Client, bucket, dir string) (*Bucket, error) {
	bucket, dir, err := CleanBucket(bucket, dir)
	if err != nil {
		return nil, err
	}
	opts, err := c.StorageOptions()
	if err != nil {
		return nil, err
	}
	// The service lives as long as the Client, not as long as this call.
	svc, err := storage.NewService(context.WithoutCancel(ctx), opts...)
	if err != nil {
		return nil, fmt.Errorf("open bucket %q: %w", bucket, err)
	}
	return &Bucket{gcp: c, svc: svc, name: bucket, dir: dir}, nil
}

// Name returns the bucket's name.
func (b *Bucket) Name() string { return b.name }

// Dir returns the directory of the jobs in the bucket; "" is the root.
func (b *Bucket) Dir() string { return b.dir }

// URL returns the place of a run's objects, for messages.
func (b *Bucket) URL(run string) string { return "gs://" + b.name + "/" + prefixOf(b.dir, run) }

// Objects returns the names of Create's objects, below URL.
func (b *Bucket) Objects(j Job) []string {
	names := slices.Concat([]string{"run.json"}, slices.Sorted(maps.Keys(j.agents())), []string{j.object("kit.tar.gz")})
	if j.codeSum != "none" {
		names = append(names, j.object(j.CodeObject()))
	}
	return names
}

// ErrNoRun says that the bucket has no such run.
var ErrNoRun = fault.New(fault.Unavailable, "no such run in the bucket")

// An ExistsError says that the name of a run is taken, or that another start of the run
// has replaced this one.
type ExistsError struct{ URL, Owner string }

func (e *ExistsError) Error() string {
	text := "a run of that name is in " + e.URL
	if e.Owner != "" {
		text += ", which " + e.Owner + " has started at the same time"
	}
	return text
}

// Fault returns fault.Unavailable.
func (e *ExistsError) Fault() fault.Kind { return fault.Unavailable }

// Create uploads the files that the workers of a start need: their program, the kit's
// files, and the code. The function write writes the code; nil means no code. It then makes
// this start the current one by writing run.json. The start replaces earlier; nil means the
// run's first start. Of several concurrent calls, one succeeds, and the others get an
// *ExistsError. Each start has its own names for uploads, so readers of an earlier start
// are not disturbed. Create fills in the missing fields of j.
//
// With a client that only reads, Create makes nothing and returns a *gcp.ReadOnlyError.
// After another error nothing of this start is left in the bucket, unless the error says
// so.
func (b *Bucket) Create(ctx context.Context, j *Job, d Description, kit map[string][]byte, write func(io.Writer) error, earlier *Earlier) (err error) {
	d.Claim = d.Created.UTC().Format("20060102t150405z-") + strings.ToLower(rand.Text()[:10])
	text, err := d.encode()
	if err != nil {
		return err
	}
	packed, sum, err := pack(kit)
	if err != nil {
		return fmt.Errorf("pack the kit: %w", err)
	}
	j.claim, j.kitSum, j.codeSum = d.Claim, sum, "none"
	err = b.put(ctx, d.Run, j.object("kit.tar.gz"), bytes.NewReader(packed), nil)
	var refused *gcp.ReadOnlyError
	if errors.As(err, &refused) {
		j.claim = unknownClaim
		return cmp.Or(j.foreseeCode(write), err)
	}
	defer func() {
		if err != nil {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			err = errors.Join(err, b.Withdraw(clean, *j, earlier == nil))
		}
	}()
	if err == nil {
		err = b.putAgents(ctx, *j)
	}
	if err == nil && write != nil {
		j.codeSum, err = b.upload(ctx, d.Run, j.object(j.CodeObject()), write)
	}
	if err != nil {
		return err
	}
	var generation int64
	if earlier != nil {
		generation = earlier.generation
	}
	err = b.put(ctx, d.Run, "run.json", bytes.NewReader(text), &generation)
	if statusCode(err) == http.StatusPreconditionFailed {
		return b.Holds(ctx, *j) // an earlier try may have succeeded without an answer
	}
	return err
}

// putAgents uploads the programs for workers at the same time.
func (b *Bucket) putAgents(ctx context.Context, j Job) error {
	group, ctx := errgroup.WithContext(ctx)
	for name, p := range j.agents() {
		group.Go(func() error { return b.putPieces(ctx, j.Run, name, bytes.NewReader(p.Packed), nil, program.Largest) })
	}
	return group.Wait()
}

// unknownClaim is the name of the start in a dry run, because only a real start has a name.
const unknownClaim = "ID"

// foreseeCode fills in the fields of j that the upload of the code would fill in.
func (j *Job) foreseeCode(write func(io.Writer) error) error {
	if write == nil {
		return nil
	}
	hash := sha256.New()
	err := write(hash)
	j.codeSum = hex.EncodeToString(hash.Sum(nil))
	return err
}

// Holds returns an *ExistsError if the start of j is not the current one.
func (b *Bucket) Holds(ctx context.Context, j Job) error {
	d, err := b.Describe(ctx, j.Run)
	if err == nil && d.Claim != j.claim || errors.Is(err, ErrNoRun) {
		return &ExistsError{b.URL(j.Run), d.Owner}
	}
	return err
}

// Withdraw removes what Create has uploaded. After the run's first start (the parameter
// first), Withdraw removes everything of the run, except objects of another start that has
// replaced this one.
func (b *Bucket) Withdraw(ctx context.Context, j Job, first bool) error {
	err := b.withdraw(ctx, j, first)
	if err != nil {
		return fmt.Errorf("what was uploaded is left in %s: %w", b.URL(j.Run), err)
	}
	return nil
}

func (b *Bucket) withdraw(ctx context.Context, j Job, first bool) error {
	var own, rest, description []*storage.Object
	err := b.list(ctx, j.prefix(), "", func(page *storage.Objects) {
		for _, o := range page.Items {
			switch name := strings.TrimPrefix(o.Name, j.prefix()); {
			case name == "run.json":
				description = append(description, o)
			case strings.HasPrefix(name, j.object("")):
				own = append(own, o)
			default:
				rest = append(rest, o)
			}
		}
	})
	if err != nil {
		return err
	}
	var taken *ExistsError
	if err := b.Holds(ctx, j); first && !errors.As(err, &taken) {
		if err != nil {
			return err
		}
		// First remove run.json. That fails if another start has replaced it.
		if err := b.remove(ctx, description); err != nil {
			if statusCode(err) != http.StatusPreconditionFailed {
				return err
			}
			rest = nil
		}
		own = append(own, rest...)
	}
	if err := b.remove(ctx, own); statusCode(err) != http.StatusPreconditionFailed {
		return err
	}
	return nil
}

// remove deletes objects only in the listed version. An object that was written since then
// stays, and the error has the status of a failed precondition.
func (b *Bucket) remove(ctx context.Context, objects []*storage.Object) (err error) {
	for _, o := range objects {
		gone := b.gcp.Do(ctx, fmt.Sprintf("delete gs://%s/%s", b.name, o.Name), func(ctx context.Context) error {
			return b.svc.Objects.Delete(b.name, o.Name).IfGenerationMatch(o.Generation).Context(ctx).Do()
		})
		if statusCode(gone) != http.StatusNotFound {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// An Earlier is an existing run with the name of a new start.
type Earlier struct {
	Description
	State      State
	generation int64 // of run.json
}

// Earlier reads the state of a run in the bucket, or returns nil if the bucket has no such
// run.
func (b *Bucket) Earlier(ctx context.Context, run string) (*Earlier, error) {
	e, name := &Earlier{}, prefixOf(b.dir, run)+"run.json"
	err := b.list(ctx, name, "", func(page *storage.Objects) {
		for _, o := range page.Items {
			if o.Name == name {
				e.generation = o.Generation
			}
		}
	})
	if err != nil || e.generation == 0 {
		return nil, err
	}
	if e.Description, err = b.Describe(ctx, run); err != nil {
		return nil, err
	}
	e.State, err = b.State(ctx, run)
	return e, err
}

// Ended says how the run ended, by itself or by its user's stop. It returns "" if the run
// continues, has never begun or has lost its workers, or if something kept the workers from
// running the command.
func (e *Earlier) Ended() string {
	first := e.State.Blame()
	switch {
	case e.State.Taken() && (first != nil || !e.State.Over(e.Description)):
		return ""
	case e.State.Taken():
		return "it has succeeded" // a stopped worker has another code
	case e.State.Stopping != "":
		return "it was stopped: " + e.State.Stopping
	case !e.State.Over(e.Description):
		return ""
	case first == nil:
		return "it has succeeded"
	case first.Reason == "" && first.Signal != "":
		return fmt.Sprintf("%s was killed by SIG%s", first.Worker, first.Signal)
	case first.Reason == "":
		return fmt.Sprintf("%s failed, exit code %d", first.Worker, first.Code)
	case strings.Contains(first.Reason, "(--timeout)"):
		return "it was stopped: " + first.Reason
	}
	return ""
}

// Taken reports whether the workers stopped the run because their slices were about to be
// deleted, and nobody else stopped it. The run can then continue on other slices.
func (s State) Taken() bool { return taken(s.Stopping) }

func taken(stop string) bool { return takenText.MatchString(strings.TrimSpace(stop)) }

// takenText is the workers' reason for such a stop.
var takenText = regexp.MustCompile(`^the slices are deleted [0-9]+ s after they were made \(--max-run-duration\)$`)

// Next returns the number of the attempt with which the run continues.
func (e *Earlier) Next() int {
	begin, last := max(1, e.Attempt), e.State.begun
	// An attempt that only the start announced may have begun on no worker.
	if e.State.announced > begin {
		last = max(last, e.State.announced)
	}
	return max(begin, last+1)
}

// Renew prepares the bucket for the workers of a start that continues with an attempt, when
// the workers of the earlier start are gone. It removes old reports, because the new
// workers would count as silent until they report. It also removes the stop of workers
// whose slices were about to be deleted. A user's stop stays, because it may be about this
// start. If another start is the current one, the error is an *ExistsError.
func (b *Bucket) Renew(ctx context.Context, j Job, attempt int) error {
	var reports []*storage.Object
	var announced int64
	stop, why, err := b.stopOf(ctx, j.prefix())
	if err != nil {
		return err
	}
	if stop != nil && taken(why) {
		reports = append(reports, stop)
	}
	for _, dir := range []string{"workers/", "control/attempt"} {
		err := b.list(ctx, j.prefix()+dir, "", func(page *storage.Objects) {
			for _, o := range page.Items {
				if dir == "workers/" {
					reports = append(reports, o)
				} else if o.Name == j.prefix()+dir {
					announced = o.Generation
				}
			}
		})
		if err != nil {
			return err
		}
	}
	// While this start is the current one, workers of other starts report nothing, so the
	// listed reports are old.
	if err := b.Holds(ctx, j); err != nil {
		return err
	}
	err = b.remove(ctx, reports)
	if err != nil || attempt == 1 { // without a number, workers begin with attempt 1
		return err
	}
	number := strconv.Itoa(attempt)
	err = b.put(ctx, j.Run, "control/attempt", strings.NewReader(number+"\n"), &announced)
	if statusCode(err) == http.StatusPreconditionFailed {
		if err := b.Holds(ctx, j); err != nil {
			return err
		}
		// An earlier try may have succeeded without an answer.
		if there, readErr := b.read(ctx, j.prefix()+"control/attempt", 0); readErr == nil && strings.TrimSpace(string(there)) == number {
			return nil
		}
	}
	return err
}

// upload streams the bytes from write into an object, and returns their SHA-256. It does
// not retry the whole upload: Google's client resumes it piece by piece.
func (b *Bucket) upload(ctx context.Context, run, name string, write func(io.Writer) error) (string, error) {
	r, w := io.Pipe()
	hash := sha256.New()
	packing := make(chan error, 1)
	go func() {
		err := write(io.MultiWriter(w, hash))
		w.CloseWithError(err)
		packing <- err
	}()
	o := &storage.Object{Name: prefixOf(b.dir, run) + name}
	_, err := b.svc.Objects.Insert(b.name, o).Media(r, googleapi.ContentType("application/gzip")).Context(ctx).Do()
	r.CloseWithError(io.ErrClosedPipe)
	if packErr := <-packing; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		return "", packErr
	}
	if err != nil {
		return "", fmt.Errorf("upload %s%s: %w", b.URL(run), name, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// put writes one small object. generation, if not nil, is the generation of the existing
// object, or 0 if there must be none.
func (b *Bucket) put(ctx context.Context, run, name string, r io.ReadSeeker, generation *int64) error {
	return b.putPieces(ctx, run, name, r, generation, googleapi.MinUploadChunkSize)
}

// putPieces is put in pieces of this many bytes, one request for each.
func (b *Bucket) putPieces(ctx context.Context, run, name string, r io.ReadSeeker, generation *int64, piece int) error {
	what := fmt.Sprintf("write %s%s", b.URL(run), name)
	return b.gcp.Do(ctx, what, func(ctx context.Context) error {
		if _, err := r.Seek(0, io.SeekStart); err != nil {
			return err
		}
		call := b.svc.Objects.Insert(b.name, &storage.Object{Name: prefixOf(b.dir, run) + name})
		if generation != nil {
			call.IfGenerationMatch(*generation)
		}
		// Each upload allocates a buffer of one piece, 16 MB by default.
		_, err := call.Media(r, googleapi.ContentType("text/plain"), googleapi.ChunkSize(piece)).Context(ctx).Do()
		return err
	})
}

// read returns at most maxPiece bytes of an object from offset on.
func (b *Bucket) read(ctx context.Context, name string, offset int64) ([]byte, error) {
	return b.readPiece(ctx, name, offset, maxPiece)
}

// readPiece is read with another limit of bytes.
func (b *Bucket) readPiece(ctx context.Context, name string, offset, most int64) ([]byte, error) {
	var data []byte
	err := b.gcp.Do(ctx, fmt.Sprintf("read gs://%s/%s", b.name, name), func(ctx context.Context) error {
		call := b.svc.Objects.Get(b.name, name).Context(ctx)
		switch {
		case most < maxPiece:
			call.Header().Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+most-1))
		case offset > 0:
			call.Header().Set("Range", fmt.Sprintf("bytes=%d-", offset))
		}
		resp, err := call.Download()
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		data, err = io.ReadAll(io.LimitReader(resp.Body, most))
		return err
	})
	return data, err
}

// maxPiece limits the bytes of one read of a log.
const maxPiece = 32 << 20

// list calls f for each page of the objects whose names begin with prefix.
func (b *Bucket) list(ctx context.Context, prefix, delimiter string, f func(page *storage.Objects)) error {
	token := ""
	for {
		var page *storage.Objects
		err := b.gcp.Do(ctx, fmt.Sprintf("list gs://%s/%s", b.name, prefix), func(ctx context.Context) (err error) {
			page, err = b.svc.Objects.List(b.name).Prefix(prefix).Delimiter(delimiter).PageToken(token).Context(ctx).Do()
			return err
		})
		if err != nil {
			return err
		}
		f(page)
		if token = page.NextPageToken; token == "" {
			return nil
		}
	}
}

// Keeps returns for how long the bucket keeps and bills an overwritten object; 0: not at
// all. Every upload of a log overwrites an object. The result versions reports whether the
// bucket keeps old versions.
func (b *Bucket) Keeps(ctx context.Context) (softDeleted time.Duration, versions bool, err error) {
	err = b.gcp.Do(ctx, "read bucket "+b.name, func(ctx context.Context) error {
		is, err := b.svc.Buckets.Get(b.name).Context(ctx).Do()
		if err != nil {
			return err
		}
		if p := is.SoftDeletePolicy; p != nil {
			softDeleted = time.Duration(p.RetentionDurationSeconds) * time.Second
		}
		versions = is.Versioning != nil && is.Versioning.Enabled
		return nil
	})
	return softDeleted, versions, err
}

// Runs returns the names of the directories in the bucket that may be runs.
func (b *Bucket) Runs(ctx context.Context) ([]string, error) {
	prefix := b.dir
	if prefix != "" {
		prefix += "/"
	}
	var runs []string
	err := b.list(ctx, prefix, "/", func(page *storage.Objects) {
		for _, p := range page.Prefixes {
			if name := path.Base(p); config.CheckRunName(name) == nil {
				runs = append(runs, name)
			}
		}
	})
	return runs, err
}

// Describe reads run.json of a run, or returns ErrNoRun. It checks the content, because
// anybody with access to the bucket, also any worker, could have written it.
func (b *Bucket) Describe(ctx context.Context, run string) (Description, error) {
	var d Description
	if err := config.CheckRunName(run); err != nil {
		return d, err
	}
	data, err := b.read(ctx, prefixOf(b.dir, run)+"run.json", 0)
	if statusCode(err) == http.StatusNotFound {
		return d, fmt.Errorf("find run %q in gs://%s/%s: %w", run, b.name, b.dir, ErrNoRun)
	}
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return d, fmt.Errorf("read %srun.json: %w", b.URL(run), err)
	}
	if err := d.check(run); err != nil {
		return Description{}, fmt.Errorf("read %srun.json: %w", b.URL(run), err)
	}
	return d, nil
}

// Stop asks the workers of a run to end it. An existing reason stays, unless the run could
// continue in spite of it, as after [State.Taken].
func (b *Bucket) Stop(ctx context.Context, run, reason string) error {
	for {
		stop, why, err := b.stopOf(ctx, prefixOf(b.dir, run))
		if err != nil || stop != nil && !taken(why) {
			return err
		}
		var generation int64
		if stop != nil {
			generation = stop.Generation
		}
		err = b.put(ctx, run, "control/stop", strings.NewReader(reason+"\n"), &generation)
		if statusCode(err) != http.StatusPreconditionFailed { // otherwise it has changed meanwhile
			return err
		}
	}
}

// stopOf returns the object that asks the workers below a prefix to stop, and its text, or
// nil.
func (b *Bucket) stopOf(ctx context.Context, prefix string) (stop *storage.Object, why string, err error) {
	name := prefix + "control/stop"
	err = b.list(ctx, name, "", func(page *storage.Objects) {
		for _, o := range page.Items {
			if o.Name == name {
				stop = o
			}
		}
	})
	if stop == nil || err != nil {
		return nil, "", err
	}
	text, err := b.read(ctx, name, 0)
	if statusCode(err) == http.StatusNotFound { // removed meanwhile
		return nil, "", nil
	}
	return stop, string(text), err
}

// An End says how the newest attempt ended on one worker.
type End struct {
	Worker  tpu.WorkerID
	Code    int // never 0 for an unknown end
	Signal  string
	At      time.Time // by the worker's clock, corrected if it differs from the clock of Cloud Storage
	LogSize int64
	Reason  string // why the command was stopped or did not start
	Tail    bool   // looks like a training's tail: see State.Excused
	Behind  int    // processes that the command left in the background, all ended

	rough bool // At was corrected, by whole seconds
}

// Down is the phase of a worker whose machine has got an order to shut down. The detail is
// the reason: "preempted", "maintenance of its host", or, if not known, "told to end".
const Down = "down"

// A Seen is a worker's last report about itself.
type Seen struct {
	Worker    tpu.WorkerID
	Phase     string // boot, preflight, start, running, logs, ended, failed, deleting, kept, left or Down
	Attempt   int
	At        time.Time // by the clock of Cloud Storage
	MayDelete string    // "yes", "no: …" or "unknown: …"
	Detail    string
}

// A State is the state of a run in its bucket.
type State struct {
	Attempt  int // newest attempt that any worker began; 0: none
	Seen     []Seen
	Ended    []End          // ends of that attempt, ordered by worker
	Stopping string         // why the run must end
	Unsent   []tpu.WorkerID // workers whose log of that attempt is not whole in the bucket; their slices stay for a while
	// With StrictExit, Excused and Blame excuse nothing. The reader of the state sets it.
	StrictExit bool

	begun, announced int // begun: newest attempt that a worker has reported; announced: attempt in control/attempt
}

// Over reports whether the newest attempt has ended on every worker of d.
func (s State) Over(d Description) bool { return len(s.Ended) >= len(d.IDs()) && len(s.Ended) > 0 }

// GivenUp reports whether the newest attempt was given up or stopped, as far as is known.
// Each worker that has reported anything has ended, none of them by its command. If no
// other worker can come any more, the attempt has ended.
func (s State) GivenUp() bool {
	ended := map[tpu.WorkerID]bool{}
	for _, e := range s.Ended {
		if e.Reason == "" || e.Code == 0 {
			return false
		}
		ended[e.Worker] = true
	}
	return len(ended) > 0 && !slices.ContainsFunc(s.Seen, func(w Seen) bool { return !ended[w.Worker] })
}

// FailFast is the reason of a workers' stop after another worker has failed. It names no
// worker: the first one to fail is known only when all have ended.
const FailFast = "fail-fast: a worker failed"

// Within ExcuseWindow after worker 0's success, a failure of another worker is excused.
// Workers may fail while they exit, because their runtime loses its leader.
const ExcuseWindow = time.Minute

// Excused returns the workers whose failure is only the tail of a training that worker 0
// has ended with success. Within ExcuseWindow after that success, such a worker died by
// SIGABRT, or its output ended with the words of the distributed runtime. If a worker was
// stopped or an end is not known, no worker is excused. The result is valid once the
// attempt has ended on every worker.
func (s State) Excused() []tpu.WorkerID {
	var ids []tpu.WorkerID
	for i, excused := range s.excused() {
		if excused {
			ids = append(ids, s.Ended[i].Worker)
		}
	}
	return ids
}

// excused says for each end whether it is excused.
func (s State) excused() []bool {
	out := make([]bool, len(s.Ended))
	lead := slices.IndexFunc(s.Ended, func(e End) bool { return e.Worker == tpu.WorkerID{} && e.Code == 0 && !e.At.IsZero() })
	if s.StrictExit || lead < 0 || slices.ContainsFunc(s.Ended, func(e End) bool { return e.Reason != "" }) {
		return out
	}
	for i, e := range s.Ended {
		early := time.Duration(0)
		if e.rough || s.Ended[lead].rough {
			early = 2 * time.Second
		}
		after := e.At.Sub(s.Ended[lead].At)
		out[i] = e.Code != 0 && e.Tail && after >= -early && after < ExcuseWindow
	}
	return out
}

// LeftBehind returns the number of processes that the command left in the background when
// it ended by itself, and their workers.
func (s State) LeftBehind() (n int, ids []tpu.WorkerID) {
	for _, e := range s.Ended {
		if e.Behind > 0 && e.Reason == "" {
			n, ids = n+e.Behind, append(ids, e.Worker)
		}
	}
	return n, ids
}

// Blame returns the end that decides how the run ended, or nil if every worker ended with 0
// or is excused. It is the earliest failure of a worker that was not stopped. Without one,
// it is the earliest failure that fail-fast did not cause, and without that, the earliest
// failure.
func (s State) Blame() *End {
	excused := s.excused()
	var first *End
	rank := func(e *End) int {
		switch e.Reason {
		case "":
			return 0
		case FailFast:
			return 2
		}
		return 1
	}
	for i := range s.Ended {
		e := &s.Ended[i]
		if e.Code == 0 || excused[i] {
			continue
		}
		if first == nil || cmp.Or(rank(e)-rank(first), e.At.Compare(first.At)) < 0 {
			first = e
		}
	}
	return first
}

// readers limits how many objects are read at the same time.
const readers = 32

// A listing is what the names of a run's objects say.
type listing struct {
	workers []*storage.Object               // workers' reports about themselves
	ends    map[int]map[tpu.WorkerID]string // how commands ended, by attempt
	unsent  map[int][]tpu.WorkerID          // workers whose log is not whole, by attempt
	begun   int                             // newest attempt that has ended on a worker
	stop    bool                            // somebody has asked the run to stop
}

// add adds an object. name is its name below the run's prefix.
func (l *listing) add(name string, o *storage.Object) {
	dir, _, _ := strings.Cut(name, "/")
	switch dir {
	case "workers":
		l.workers = append(l.workers, o)
	case "ended":
		attempt, id, ok := parseEnd(name)
		if !ok {
			return
		}
		if l.ends[attempt] == nil {
			l.ends[attempt] = map[tpu.WorkerID]string{}
		}
		l.ends[attempt][id] = o.Name
		l.begun = max(l.begun, attempt)
	case "control":
		l.stop = l.stop || name == "control/stop"
		if attempt, id, ok := parseUnsent(name); ok {
			l.unsent[attempt] = append(l.unsent[attempt], id)
		}
	}
}

// listing lists the objects below prefix.
func (b *Bucket) listing(ctx context.Context, prefix string) (*listing, error) {
	l := &listing{ends: map[int]map[tpu.WorkerID]string{}, unsent: map[int][]tpu.WorkerID{}}
	for _, dir := range []string{"ended/", "workers/", "control/"} {
		err := b.list(ctx, prefix+dir, "", func(page *storage.Objects) {
			for _, o := range page.Items {
				l.add(strings.TrimPrefix(o.Name, prefix), o)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// State reads the state of a run. It may miss objects that workers write meanwhile.
func (b *Bucket) State(ctx context.Context, run string) (State, error) {
	prefix := prefixOf(b.dir, run)
	l, err := b.listing(ctx, prefix)
	if err != nil {
		return State{}, err
	}
	s := State{begun: l.begun}
	if data, err := b.read(ctx, prefix+"control/attempt", 0); err == nil {
		s.announced, _ = strconv.Atoi(strings.TrimSpace(string(data)))
	} else if statusCode(err) != http.StatusNotFound {
		return s, err
	}
	if l.stop {
		data, err := b.read(ctx, prefix+"control/stop", 0)
		if err := ignoreMissing(err); err != nil {
			return s, err
		}
		s.Stopping = cmp.Or(strings.TrimSpace(string(data)), "asked to stop")
	}
	var mu sync.Mutex
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(readers)
	for _, o := range l.workers {
		group.Go(func() error {
			seen, err := b.seen(reading, o)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				s.Seen = append(s.Seen, seen)
			}
			return ignoreMissing(err)
		})
	}
	if err := group.Wait(); err != nil {
		return s, err
	}
	for _, w := range s.Seen {
		s.begun = max(s.begun, w.Attempt)
	}
	s.Attempt = max(s.begun, s.announced)
	s.Unsent = l.unsent[s.Attempt]
	slices.SortFunc(s.Unsent, tpu.CompareWorkers)
	group, reading = errgroup.WithContext(ctx)
	group.SetLimit(readers)
	for id, name := range l.ends[s.Attempt] {
		group.Go(func() error {
			data, err := b.read(reading, name, 0)
			mu.Lock()
			defer mu.Unlock()
			s.Ended = append(s.Ended, parseExit(id, name, string(data)))
			return ignoreMissing(err)
		})
	}
	if err := group.Wait(); err != nil {
		return s, err
	}
	byWorker := func(x, y tpu.WorkerID) int { return cmp.Or(x.Slice-y.Slice, x.Worker-y.Worker) }
	slices.SortFunc(s.Ended, func(x, y End) int { return byWorker(x.Worker, y.Worker) })
	slices.SortFunc(s.Seen, func(x, y Seen) int { return byWorker(x.Worker, y.Worker) })
	return s, nil
}

func ignoreMissing(err error) error {
	if statusCode(err) == http.StatusNotFound {
		return nil
	}
	return err
}

func (b *Bucket) seen(ctx context.Context, o *storage.Object) (Seen, error) {
	var s Seen
	data, err := b.read(ctx, o.Name, 0)
	if err != nil {
		return s, err
	}
	id, err := tpu.ParseWorkerID(path.Base(o.Name))
	if err != nil {
		return s, nil
	}
	s.read(string(data))
	s.Worker = id
	s.At, _ = time.Parse(time.RFC3339, o.Updated)
	return s, nil
}

// read fills s from the text of a report. It returns the run in the text, or "".
func (s *Seen) read(text string) (run string) {
	for key, value := range fields(text) {
		switch key {
		case "run":
			run = value
		case "worker":
			s.Worker, _ = tpu.ParseWorkerID(value)
		case "phase":
			s.Phase = value
		case "attempt":
			s.Attempt, _ = strconv.Atoi(value)
		case "may_delete":
			s.MayDelete = value
		case "detail":
			s.Detail = value
		}
	}
	return run
}

// ReportKey is the guest attribute of a worker's reports, besides the bucket. A worker can
// use it before it has its program, and when the bucket refuses its reports.
const ReportKey = "state"

// ParseReport reads the text of that guest attribute. The result has no At. Without its
// program, a worker reports attempt 0, and does not say which worker it is. ok is true if
// the report is about the run.
func ParseReport(run, text string) (s Seen, ok bool) {
	ok = s.read(text) == run
	return s, ok
}

// parseEnd parses ended/N/sSwW.CODE.
func parseEnd(name string) (attempt int, id tpu.WorkerID, ok bool) {
	parts := strings.Split(name, "/")
	if len(parts) != 3 {
		return 0, id, false
	}
	worker, _, _ := strings.Cut(parts[2], ".")
	attempt, err := strconv.Atoi(parts[1])
	if err != nil {
		return 0, id, false
	}
	id, err = tpu.ParseWorkerID(worker)
	return attempt, id, err == nil
}

// parseUnsent parses control/unsent-N-sSwW.
func parseUnsent(name string) (attempt int, id tpu.WorkerID, ok bool) {
	name, ok = strings.CutPrefix(name, "control/unsent-")
	number, worker, _ := strings.Cut(name, "-")
	attempt, err := strconv.Atoi(number)
	if err != nil {
		return 0, id, false
	}
	id, err = tpu.ParseWorkerID(worker)
	return attempt, id, ok && err == nil
}

func parseExit(id tpu.WorkerID, name, text string) End {
	e, lost := End{Worker: id}, false
	_, code, _ := strings.Cut(path.Base(name), ".")
	var err error
	if e.Code, err = strconv.Atoi(code); err != nil {
		lost = true
	}
	var end, skew int64
	for key, value := range fields(text) {
		switch key {
		case "signal":
			e.Signal = value
		case "end":
			end, _ = strconv.ParseInt(value, 10, 64)
		case "skew":
			skew, _ = strconv.ParseInt(value, 10, 32)
		case "size":
			e.LogSize, _ = strconv.ParseInt(value, 10, 64)
		case "reason":
			e.Reason = value
		case "lost":
			lost = lost || value == "1"
		case "tail":
			e.Tail = value == "1"
		case "behind":
			e.Behind, _ = strconv.Atoi(value)
		}
	}
	if end > 0 {
		e.At = time.Unix(0, end).Add(-time.Duration(skew) * time.Second)
		e.rough = skew != 0
	}
	if lost {
		e.Tail = false
		if e.Code == 0 {
			e.Code = lostCode
		}
	}
	return e
}

// lostCode is the exit code of a worker whose end is not known, as over SSH.
const lostCode = 69

func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\n"), "=")
		m[key] = value
	}
	return m
}

// Log writes the bucket's copy of a worker's log to w, from offset on, and returns the
// number of bytes. A log that does not exist yet is empty.
func (b *Bucket) Log(ctx context.Context, run string, id tpu.WorkerID, attempt int, offset int64, w io.Writer) (int64, error) {
	return b.LogInPieces(ctx, run, id, attempt, offset, maxPiece, w)
}

// LogInPieces is Log with at most one piece in memory: a write to w may wait for other
// logs.
func (b *Bucket) LogInPieces(ctx context.Context, run string, id tpu.WorkerID, attempt int, offset, piece int64, w io.Writer) (int64, error) {
	piece = min(piece, maxPiece)
	total := int64(0)
	for {
		data, err := b.readPiece(ctx, prefixOf(b.dir, run)+LogObject(id, attempt), offset+total, piece)
		switch code := statusCode(err); {
		case code == http.StatusNotFound, code == http.StatusRequestedRangeNotSatisfiable:
			return total, nil
		case err != nil:
			return total, err
		}
		n, err := w.Write(data)
		total += int64(n)
		if err != nil || int64(len(data)) < piece {
			return total, err
		}
	}
}

// LogSize returns the number of bytes of a worker's log in the bucket.
func (b *Bucket) LogSize(ctx context.Context, run string, id tpu.WorkerID, attempt int) (int64, error) {
	name, size := prefixOf(b.dir, run)+LogObject(id, attempt), int64(0)
	err := b.gcp.Do(ctx, fmt.Sprintf("get gs://%s/%s", b.name, name), func(ctx context.Context) error {
		o, err := b.svc.Objects.Get(b.name, name).Context(ctx).Do()
		if err == nil {
			size = int64(min(o.Size, math.MaxInt64))
		}
		return err
	})
	if statusCode(err) == http.StatusNotFound {
		return 0, nil
	}
	return size, err
}

// LogPart fills p with the bytes of a worker's log from offset on.
func (b *Bucket) LogPart(ctx context.Context, run string, id tpu.WorkerID, attempt int, offset int64, p []byte) error {
	name := prefixOf(b.dir, run) + LogObject(id, attempt)
	return b.gcp.Do(ctx, fmt.Sprintf("read gs://%s/%s", b.name, name), func(ctx context.Context) error {
		call := b.svc.Objects.Get(b.name, name).Context(ctx)
		call.Header().Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+int64(len(p))-1))
		resp, err := call.Download()
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.ReadFull(resp.Body, p)
		return err
	})
}

func statusCode(err error) int {
	var e *googleapi.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}
