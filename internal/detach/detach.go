// Package detach starts jobs that run without the machine that started them.
//
// It has two parts. A bucket has the job and its progress. At each boot, every worker runs
// a script (boot.sh) that fetches multihost-agent from the bucket and runs it. Package
// agent/detached is this program. It fetches the job with the worker's own token. It starts
// the command under the supervisor that a runner would use (package launch, packed as a
// kit). It stores the worker's log and end in the bucket, begins a new attempt after a
// reboot, and deletes the queued resource when every worker has ended. A machine that shuts
// down also runs it, for a last report. No worker is special: any living worker does what
// is necessary.
//
// In the bucket, below [DIR/]RUN/:
//
//	run.json                               what the job is; whoever makes it owns the name
//	starts/ID/multihost-agent-SHA256.gz    what the workers run, for each of their architectures
//	starts/ID/kit.tar.gz                   supervisor, preflight, command, its environment
//	starts/ID/script_dir_zip_RUN.tar.gz    the code
//	starts/ID/seats/N/sSwW.SUM.VM          of slices made apart: which VM has come to attempt N
//	main_command_log_slice_S_worker_W      the log of each worker, at every moment a prefix
//	attempt-N/main_command_log_…           the same of a later attempt
//	workers/sSwW                           each worker's report, once a minute and when its machine ends
//	ended/N/sSwW.CODE                      how attempt N ended there
//	control/attempt                        the newest attempt that any worker began
//	control/stop                           why the run is to end
//	control/failed-N                       that a worker failed in attempt N, so the others are to stop
//	control/unsent-N-sSwW                  why the bucket does not have this worker's whole log of attempt N
//
// If the slices of a run were taken away, the run is started again under its name. Each
// start has its own files below starts/. After the upload of these files, a new run.json
// that names them replaces the old one. A start replaces only the version of run.json that
// it has read. So of two concurrent starts one gets an error. Later changes by a start
// depend on that version, too.
//
// No object contains a secret.
//
// # Decisions
//
//   - boot.sh has the SHA-256 of multihost-agent in its text. So a person who can write to
//     the bucket cannot choose the program that root runs. Without the program, the script
//     writes nothing to the bucket and decides nothing about an attempt. It deletes the
//     slices only if no worker has ever reported anything, or if nothing can be read for a
//     long time.
//   - The shutdown script is the startup script with an argument (--going). The text stands
//     twice in the metadata, because a machine that ends in half a minute has no time to
//     fetch anything. The script marks the attempt before it sends anything. While the mark
//     exists, the worker reports no end, and the next boot takes the machine for the cause
//     of an end.
package detach

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed" // the startup script
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/agent"
	"multihost/internal/agent/program"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

//go:embed boot.sh
var bootScript string

// Metadata keys that a job's workers read.
const (
	startupKey  = "startup-script"
	shutdownKey = "shutdown-script"
	jobKey      = "multihost-job"
)

// Keep says when the queued resource stays after the run.
type Keep string

const (
	KeepNever     Keep = "never"
	KeepOnFailure Keep = "on-failure"
	KeepAlways    Keep = "always"
)

// A Job is the description of a job for its workers. A zero duration means the default in
// the field's comment.
type Job struct {
	Run      string
	Project  string
	Zone     string
	Resource string // the workers' queued resource
	Label    string // label KEY=VALUE of its slices, which proves that the resource belongs to this run
	Nodes    []string
	Workers  int  // workers of each slice
	Apart    bool // each slice is a group of VMs with its name, which do not know the other slices
	Login    string

	Bucket, Dir string

	Undoing provision.Undoing // how workers delete the resource

	Storage, SecretManager string // addresses of the APIs, without version

	Every    time.Duration // between two uploads of the log; default: 1 min
	Patience time.Duration // how long a worker retries a fetch; default: 10 min
	// LogTimeout is how long a worker whose command has ended retries while the bucket
	// refuses its log; default: 30 min. After that, the slices stay for the time Stale.
	LogTimeout time.Duration
	Stale      time.Duration // a worker without reports for this time is dead; default: 30 min
	TTL        time.Duration // longest time from Requested to the deletion; 0: no limit
	MaxRun     time.Duration // the provider deletes the slices after this time; 0: never
	// Gather is how long the workers of a job with Apart wait until all are ready for an
	// attempt; 0: no limit.
	Gather time.Duration
	// Requested is the time of the request for slices. If it is zero, or later than a
	// worker's first boot, the time of that boot counts.
	Requested time.Time
	Keep      Keep
	KeepFor   time.Duration // how long KeepOnFailure keeps the slices; 0: until somebody deletes the resource
	Grace     time.Duration // time between TERM and KILL
	Timeout   time.Duration // limit of the command; 0: none

	Preflight    string // apply, require, check or off
	KillStale    string // which processes that hold the TPU are ended: orphans (default) or all
	NUMA         string // bind or preferred, for two nodes and numactl; default: off
	Adopt        bool   // take over a directory that no run made
	Venv         bool   // run the command in a Python virtual environment
	MaxText      bool   // give the command the variables that MaxText's multihost_job.py sets
	FailFast     bool
	CloudLogging bool
	Secrets      []Secret
	Agents       program.Set // programs for workers
	// TailWords is an extended regular expression. A worker's failure soon after worker 0's
	// success is excused if the expression matches the end of its output, or if it died by
	// SIGABRT. Empty: nothing is excused.
	TailWords string

	claim, kitSum, codeSum string
}

// A Secret is a variable of the command whose value every worker reads from
// Secret Manager with its own token.
type Secret struct{ Name, Project, ID, Version string }

var secretRef = regexp.MustCompile(`^sm://([a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]+)/([A-Za-z0-9_-]+)(?:/([0-9]+|latest|[A-Za-z][A-Za-z0-9_-]*))?$`)

// ParseSecret parses NAME=sm://PROJECT/SECRET[/VERSION]. The default is the latest version.
func ParseSecret(text string) (Secret, error) {
	name, ref, _ := strings.Cut(text, "=")
	m := secretRef.FindStringSubmatch(ref)
	if m == nil || len(m[2]) > 255 || !variable.MatchString(name) {
		return Secret{}, fmt.Errorf("secret %q: want NAME=sm://PROJECT/SECRET or NAME=sm://PROJECT/SECRET/VERSION", text)
	}
	s := Secret{Name: name, Project: m[1], ID: m[2], Version: m[3]}
	if s.Version == "" {
		s.Version = "latest"
	}
	return s, nil
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (s Secret) String() string {
	return fmt.Sprintf("%s=sm://%s/%s/%s", s.Name, s.Project, s.ID, s.Version)
}

var (
	dirName    = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$`)
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]+[a-z0-9]$`)
)

// CleanBucket returns --bucket-name and --bucket-dir in Job's form: without gs:// and
// without slashes at the ends.
func CleanBucket(bucket, dir string) (string, string, error) {
	bucket, inside, _ := strings.Cut(strings.TrimPrefix(bucket, "gs://"), "/")
	dir = strings.Trim(strings.Trim(inside, "/")+"/"+strings.Trim(dir, "/"), "/")
	if !bucketName.MatchString(bucket) || len(bucket) > 222 {
		return "", "", fmt.Errorf("bucket %q: no bucket is called that", bucket)
	}
	if dir != "" && (!dirName.MatchString(dir) || len(dir) > 500) {
		return "", "", fmt.Errorf("directory %q in the bucket: want letters, digits, '.', '_', '-' and '/'", dir)
	}
	return bucket, dir, nil
}

// prefix returns the prefix of the names of the job's objects.
func (j Job) prefix() string { return prefixOf(j.Dir, j.Run) }

func prefixOf(dir, run string) string {
	if dir != "" {
		dir += "/"
	}
	return dir + run + "/"
}

// CodeObject returns the name of the packed code, which MaxText's job script uses too.
func (j Job) CodeObject() string { return "script_dir_zip_" + j.Run + ".tar.gz" }

// agents returns the programs for workers, by object name.
func (j Job) agents() map[string]program.Program {
	all := map[string]program.Program{}
	for _, arch := range program.Archs() {
		if p, err := j.Agents.For(arch); err == nil { // a set may lack an architecture
			all[j.object("multihost-agent-"+p.SHA256+".gz")] = p
		}
	}
	return all
}

// object returns the name of an object that only the workers of this start use.
func (j Job) object(name string) string { return "starts/" + j.claim + "/" + name }

// Metadata returns the metadata for the job's slices.
func (j Job) Metadata() map[string]string {
	script := gcp.VMScript + program.Place + "sums='" + j.Agents.Sums() + "'\n"
	return map[string]string{
		startupKey: script + bootScript,
		// The same script again: the guest agent passes no arguments, and half a minute
		// leaves no time to fetch anything. Both use a tenth of the 256 KB that a value may
		// have.
		shutdownKey: script + "set -- --going\n" + bootScript,
		jobKey:      j.text(),
	}
}

// CheckMetadata returns an error if the metadata already uses a key of Metadata.
func CheckMetadata(m map[string]string) error {
	for _, key := range []string{startupKey, shutdownKey, jobKey} {
		if m[key] != "" {
			return fmt.Errorf("metadata %q: a job without runner needs it for itself; start your script from the command", key)
		}
	}
	return nil
}

// text returns the job in the format of package agent/detached and boot.sh.
func (j Job) text() string {
	seconds := func(d, otherwise time.Duration) string {
		if d == 0 {
			d = otherwise
		}
		return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
	}
	yes := map[bool]string{true: "yes", false: "no"}
	every := j.Every
	if every == 0 {
		every = time.Minute
	}
	keep := j.Keep
	if keep == "" {
		keep = KeepNever
	}
	requested := ""
	if !j.Requested.IsZero() {
		requested = strconv.FormatInt(j.Requested.Unix(), 10)
	}
	secrets := make([]string, len(j.Secrets))
	for i, s := range j.Secrets {
		secrets[i] = s.String()
	}
	lines := [][2]string{
		{"run", j.Run}, {"project", j.Project}, {"zone", j.Zone}, {"resource", j.Resource},
		{"slices", strconv.Itoa(len(j.Nodes))}, {"workers", strconv.Itoa(j.Workers)}, {"nodes", strings.Join(j.Nodes, " ")}, {"apart", yes[j.Apart]}, {"login", j.Login},
		{"bucket", j.Bucket}, {"prefix", j.prefix()}, {"claim", j.claim}, {"kit_sum", j.kitSum}, {"code_sum", j.codeSum},
		{"storage", j.Storage + "/storage/v1"}, {"upload", j.Storage + "/upload/storage/v1"}, {"secretmanager", j.SecretManager + "/v1"},
		{"period", seconds(every, 0)}, {"look", seconds(min(every, 20*time.Second), 0)}, {"patience", seconds(j.Patience, 10*time.Minute)}, {"log_timeout", seconds(j.LogTimeout, 30*time.Minute)},
		{"stale", seconds(j.Stale, 30*time.Minute)}, {"ttl", seconds(j.TTL, 0)}, {"max_run", seconds(j.MaxRun, 0)}, {"gather", seconds(j.Gather, 0)}, {"requested", requested},
		{"keep", string(keep)}, {"keep_for", seconds(j.KeepFor, 0)}, {"grace", strconv.FormatInt(j.Grace.Milliseconds(), 10)}, {"timeout", seconds(j.Timeout, 0)},
		{"preflight", j.Preflight}, {"kill_stale", j.KillStale}, {"numa", j.NUMA}, {"adopt", yes[j.Adopt]}, {"venv", yes[j.Venv]}, {"maxtext", yes[j.MaxText]}, {"fail_fast", yes[j.FailFast]}, {"cloud_logging", yes[j.CloudLogging]},
		{"secrets", strings.Join(secrets, " ")}, {"tail_words", j.TailWords},
	}
	for _, d := range j.deletions() {
		lines = append(lines, [2]string{"deletion", d})
	}
	var b strings.Builder
	for _, l := range lines {
		if l[1] != "" {
			b.WriteString(l[0] + "=" + l[1] + "\n")
		}
	}
	return b.String()
}

// deletions returns the deletions at the end, each as JSON: the parts of the resource, if
// they have the run's label.
func (j Job) deletions() (all []string) {
	label, value, _ := strings.Cut(j.Label, "=")
	for _, part := range j.Undoing.Parts {
		text, err := json.Marshal(agent.Deletion{
			Read: part.Look, Method: http.MethodDelete, URL: part.Delete, Probe: part.Probe,
			Proof: agent.Field(part.Proof(label, value)), Going: agent.Field(part.Going),
		})
		if err != nil {
			panic(err) // strings always become JSON
		}
		all = append(all, string(text))
	}
	return all
}

// pack returns kit.tar.gz with the files, and its SHA-256.
func pack(files map[string][]byte) ([]byte, string, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(files[name]))}); err != nil {
			return nil, "", err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, "", err
		}
	}
	if err := w.Close(); err != nil {
		return nil, "", err
	}
	if err := z.Close(); err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(b.Bytes())
	return b.Bytes(), hex.EncodeToString(sum[:]), nil
}

// A Description is the content of run.json: all that a person who finds the job in the
// bucket needs to know.
type Description struct {
	Run         string    `json:"run"`
	Project     string    `json:"project"`
	Zone        string    `json:"zone"`
	Resource    string    `json:"queued_resource"`
	Kind        string    `json:"resource_kind,omitempty"` // the provider's word for a resource; older starts lack it
	Type        string    `json:"accelerator_type"`
	Nodes       []string  `json:"slices"`
	Workers     int       `json:"workers_per_slice"`
	Login       string    `json:"login"`
	Owner       string    `json:"owner"`
	Created     time.Time `json:"created"`
	Command     string    `json:"command"` // first line, secrets masked
	Environment []string  `json:"environment,omitempty"`
	Every       float64   `json:"seconds_between_uploads"`
	Keep        Keep      `json:"keep,omitempty"`            // see Job
	KeepFor     float64   `json:"seconds_to_keep,omitempty"` // see Job
	StrictExit  bool      `json:"strict_exit,omitempty"`     // no failure is excused
	Claim       string    `json:"claim,omitempty"`           // name of the start
	Attempt     int       `json:"attempt,omitempty"`         // first attempt of the start

	// Digests of the command and of its environment. A run can continue only with the same
	// ones.
	CommandSum string `json:"command_sha256,omitempty"`
	EnvSum     string `json:"environment_sha256,omitempty"`
	Venv       string `json:"venv,omitempty"` // true or false; older starts lack it
}

// Limits of a job. The largest slice has some thousand workers.
const (
	maxNodes   = 4096
	maxWorkers = 1 << 16 // workers of all slices
	maxAttempt = 1 << 20
)

var (
	cloudName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	kindName  = regexp.MustCompile(`^[a-z ]{0,40}$`)
	loginName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$`)
)

// check returns an error if the description cannot be the run's. Names in it become paths
// and logins, so they must be safe.
func (d Description) check(run string) error {
	switch {
	case d.Run != run:
		return fmt.Errorf("it is about run %q", d.Run)
	case !cloudName.MatchString(d.Resource):
		return fmt.Errorf("%q is no name of a resource", d.Resource)
	case !kindName.MatchString(d.Kind):
		return fmt.Errorf("no resource is called a %q", d.Kind)
	case !loginName.MatchString(d.Login):
		return fmt.Errorf("no login is called %q", d.Login)
	case len(d.Nodes) == 0 || len(d.Nodes) > maxNodes || d.Workers < 1 || d.Workers > maxWorkers/len(d.Nodes):
		return fmt.Errorf("no job has %d slices of %d workers", len(d.Nodes), d.Workers)
	case d.Attempt < 0 || d.Attempt > maxAttempt:
		return fmt.Errorf("no start begins with attempt %d", d.Attempt)
	}
	for _, name := range d.Nodes {
		if !cloudName.MatchString(name) {
			return fmt.Errorf("no slice is called %q", name)
		}
	}
	return nil
}

// IDs returns the workers of the job, in order.
func (d Description) IDs() []tpu.WorkerID {
	var ids []tpu.WorkerID
	for s := range d.Nodes {
		for w := range d.Workers {
			ids = append(ids, tpu.WorkerID{Slice: s, Worker: w})
		}
	}
	return ids
}

func (d Description) encode() ([]byte, error) { return json.MarshalIndent(d, "", "  ") }

// LogObject returns the name of the object with one worker's log.
func LogObject(id tpu.WorkerID, attempt int) string {
	name := fmt.Sprintf("main_command_log_slice_%d_worker_%d", id.Slice, id.Worker)
	if attempt > 1 {
		name = fmt.Sprintf("attempt-%d/%s", attempt, name)
	}
	return name
}
