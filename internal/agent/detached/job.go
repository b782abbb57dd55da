//go:build unix

package detached

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"multihost/internal/agent"
)

// A Job is the description of a job for its workers. Package detach writes it as lines
// KEY=VALUE. A zero duration means no limit, unless the key has a default.
type Job struct {
	Run, Project, Zone string
	Resource           string // name of the resource to delete at the end, for people
	Deletions          []agent.Deletion
	Nodes              []string // names of the slices, in order
	Slices, Workers    int      // workers of each slice
	Apart              bool     // each slice is a group of VMs, which do not know the other slices
	Login              string

	Bucket, Prefix, Storage, Upload, SecretManager string
	Start                                          string // name of this start of the run
	KitSum, CodeSum                                string // SHA-256; CodeSum "none": there is no code

	Period     time.Duration // between two uploads of the log, and between two reports
	Look       time.Duration // between two looks
	Patience   time.Duration // how long the worker retries a fetch
	LogTimeout time.Duration // how long a worker retries while the bucket refuses its log
	Stale      time.Duration // a worker that reports nothing for this time is dead
	TTL        time.Duration
	MaxRun     time.Duration // the provider deletes the VMs after this time
	Gather     time.Duration // with Apart: how long the workers wait for each other; 0: no limit
	Requested  time.Time     // zero: not known
	Keep       string        // never, on-failure or always
	KeepFor    time.Duration
	Grace      time.Duration
	Timeout    time.Duration

	Preflight, KillStale, NUMA                   string
	Adopt, Venv, MaxText, FailFast, CloudLogging bool
	Secrets                                      []Secret
	Tail                                         *regexp.Regexp // nil: no failure is excused
}

// A Secret is a variable of the command whose value is in Secret Manager.
type Secret struct{ Name, Project, ID, Version string }

func (s Secret) String() string { return s.Project + "/" + s.ID + "/" + s.Version }

var (
	runName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	secretItem = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)=sm://([^/]+)/([^/]+)/([^/]+)$`)
)

// errNoRun means that the description has no legal name of a run.
var errNoRun = errors.New("it has no run")

// parseJob reads the description. It ignores unknown keys.
func parseJob(text string) (Job, error) {
	values := map[string]string{}
	j := Job{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), "=")
		if key != "deletion" {
			values[key] = value
			continue
		}
		var d agent.Deletion
		if err := json.Unmarshal([]byte(value), &d); err != nil {
			return Job{}, fmt.Errorf("it has a deletion that cannot be read: %w", err)
		}
		j.Deletions = append(j.Deletions, d)
	}
	r := reader{values: values}
	j.Run, j.Project, j.Zone, j.Resource = values["run"], values["project"], values["zone"], values["resource"]
	if !runName.MatchString(j.Run) {
		return Job{}, errNoRun
	}
	j.Nodes, j.Slices, j.Workers, j.Login = strings.Fields(values["nodes"]), r.number("slices", 1), r.number("workers", 1), values["login"]
	j.Bucket, j.Prefix, j.Storage, j.Upload, j.SecretManager = values["bucket"], values["prefix"], values["storage"], values["upload"], values["secretmanager"]
	j.Start, j.KitSum, j.CodeSum = values["claim"], values["kit_sum"], values["code_sum"]
	j.Period, j.Look, j.Patience = r.seconds("period", 60), r.seconds("look", 20), r.seconds("patience", 600)
	j.LogTimeout, j.Stale, j.TTL = r.seconds("log_timeout", 1800), r.seconds("stale", 1800), r.seconds("ttl", 0)
	j.MaxRun, j.Gather = r.seconds("max_run", 0), r.seconds("gather", 0)
	if at := r.number("requested", 0); at > 0 {
		j.Requested = time.Unix(int64(at), 0)
	}
	j.Keep, j.KeepFor, j.Timeout = r.word("keep", "never"), r.seconds("keep_for", 0), r.seconds("timeout", 0)
	j.Grace = time.Duration(r.number("grace", 30000)) * time.Millisecond
	j.Preflight, j.KillStale, j.NUMA = r.word("preflight", "apply"), r.word("kill_stale", "orphans"), r.word("numa", "off")
	j.Adopt, j.Venv, j.MaxText, j.CloudLogging = values["adopt"] == "yes", values["venv"] == "yes", values["maxtext"] == "yes", values["cloud_logging"] == "yes"
	j.Apart, j.FailFast = values["apart"] == "yes", values["fail_fast"] != "no"
	for _, item := range strings.Fields(values["secrets"]) {
		m := secretItem.FindStringSubmatch(item)
		if m == nil {
			return Job{}, fmt.Errorf("it has secrets that cannot be read: %.100q", item)
		}
		j.Secrets = append(j.Secrets, Secret{m[1], m[2], m[3], m[4]})
	}
	if words := values["tail_words"]; words != "" {
		var err error
		if j.Tail, err = regexp.Compile(words); err != nil {
			return Job{}, fmt.Errorf("it has words that are no expression: %w", err)
		}
	}
	return j, r.err
}

// reader reads values and keeps the first error.
type reader struct {
	values map[string]string
	err    error
}

func (r *reader) number(key string, otherwise int) int {
	text := r.values[key]
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if (err != nil || n < 0) && r.err == nil {
		r.err = fmt.Errorf("its %s is no number: %.40q", key, text)
	}
	return n
}

// place reads the number of this slice or worker. The parameter all has the number of
// slices or workers. If it is 1, the value may be missing.
func (r *reader) place(key string, all int) int {
	if all > 1 && r.values[key] == "" && r.err == nil {
		r.err = fmt.Errorf("its %s is missing", key)
	}
	return r.number(key, 0)
}

func (r *reader) seconds(key string, otherwise int) time.Duration {
	return time.Duration(r.number(key, otherwise)) * time.Second
}

func (r *reader) word(key, otherwise string) string {
	if text := r.values[key]; text != "" {
		return text
	}
	return otherwise
}
