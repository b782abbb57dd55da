// Package lease makes the workers of a job delete its slices when they no longer
// hear from the machine that started the job.
//
// A watch of multihost-agent (package watch) runs on every worker, and needs no connection.
// [Arm] brings it there over SSH and starts it. Before the first runner connects, the
// startup script of the slices guards them (guard.sh). It knows the same limits, and the
// watch replaces it as soon as a runner has brought the agent. After a reboot it starts the
// watch at once. The watch or the guard deletes the queued resource with the VM's own token
// in three cases:
//
//   - No runner has come to any worker within a given time after its boot.
//   - Nobody has renewed the lease in time, and in that time no command was active on any
//     worker, according to the guest attributes of the other workers.
//   - The time to live of the slices has passed, even if a command is active.
//
// The promises:
//
//   - The watch reads each part of a resource before it deletes it. A part without the
//     label of the run stays, and the watch still deletes the other parts.
//   - While a command is active anywhere, an expired lease deletes nothing, however old it
//     is. The worker, and not the runner, decides whether a command is active.
//   - Doubt deletes nothing. If workers cannot tell each other whether their commands are
//     active (Armed.Apart), or if one has never reported, only the time to live counts.
//   - Any login may renew the lease from any machine, and say when the slices are deleted:
//     the workers keep its terms. Terms about calls with the VM's token, and about the
//     workers to ask, are valid from three sources only. These are root, the metadata, and
//     the login whose runner has started the watch.
//
// A worker that has reported nothing for half an hour counts as ended. If the slices have
// another startup script, a rebooted worker has no watch until a runner arms it again. The
// other workers still have theirs, and any one of them deletes all slices.
//
// A worker may be unable to run the agent (no file system with exec, full disks, an unknown
// architecture). It then tells the reason to the runner that arms it, and its guard stays.
// That is why the guard needs only the startup script, and no agent.
//
// # Decisions
//
//   - A lease is a file on the workers, which the runner touches over its connections every
//     few minutes. That costs 0.55 ms of the runner's CPU for a worker: 0.4 % of a core for
//     2048 workers.
//   - The time of a lease also counts from the end of the command, so that a user who comes
//     back after hours has time to read the logs.
//   - The provider gives as data how to ask the other workers (provision.Peers). A TPU node
//     has the reports of all its workers in one answer. VMs must be asked one by one, and
//     every VM could ask all others. So a watch waits a random time before it asks. The
//     more VMs there are, the less often it asks.
//   - The worker's lock shows whether a command is active, of any run, attempt or login. So
//     the watch follows attempts without messages from the runner.
//   - The watch and the program of a job without runner share only package agent: calls of
//     the API, and deletions that look first. A job with a runner needs no bucket, and a
//     watch must be so small that nothing in it can end a training.
//   - Our own startup script does not count as a difference between requests
//     (provision.Request.OwnMetadata). So the same job given again with another --lease
//     finds its slices, and tells their workers over SSH.
package lease

import (
	"bytes"
	"context"
	_ "embed" // the script
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"multihost/internal/agent"
	"multihost/internal/agent/program"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/remote"
)

var (
	//go:embed lease.sh
	leaseScript string
	//go:embed guard.sh
	guardScript string
	//go:embed text.sh
	textScript string
)

var leaseProgram = remote.NewProgram("lease", remote.Prelude(), program.Place, textScript, leaseScript)

// startup returns the startup script of slices.
func startup(agents program.Set) string {
	return gcp.VMScript + "\nsums=" + remote.Quote(agents.Sums()) + "\n" + program.Place + "\n" + textScript + "\n" + guardScript
}

// Metadata keys of the slices' startup script, and of its terms.
const (
	startupKey = "startup-script"
	termsKey   = "multihost-lease"
)

// Terms are the settings of the lease for the workers. Times are rounded up to seconds.
type Terms struct {
	Run     string
	Undoing provision.Undoing // how the workers delete the resource
	Label   string            // label KEY=VALUE of the slices, which proves that the resource belongs to this run
	Nodes   []string          // the names of the slices
	Workers int               // in all slices

	// Adopt is how long after its boot a worker waits for the first runner, which calls the
	// function Arm or Adopt. 0: no limit. Once a runner has come to a worker, this limit is
	// void there, even after a reboot.
	Adopt time.Duration
	// Lease is the longest time without renewal after the end of the command; 0: no limit.
	Lease time.Duration

	TTL   time.Duration // longest time from Asked to the deletion, even if a command is active; 0: no limit
	Asked time.Time     // time of the request; if zero or later than the first boot, TTL starts at that boot
	Grace time.Duration // for an active command, between the end of TTL and the deletion

	KeepOnFailure bool          // keep the slices if the command did not succeed here …
	KeepFor       time.Duration // … for this long; 0: no limit
}

// On reports whether the terms have any limit.
func (t Terms) On() bool { return t.Adopt > 0 || t.Lasting() }

// Lasting reports whether a limit remains after a runner has come.
func (t Terms) Lasting() bool { return t.Lease > 0 || t.TTL > 0 }

// Check returns an error if workers need the agent for the terms and agents has none.
func (t Terms) Check(agents program.Set) error {
	if err := agents.Check(); err != nil && t.On() {
		return &noAgentError{err}
	}
	return nil
}

type noAgentError struct{ error }

func (e *noAgentError) Unwrap() error { return e.error }

func (e *noAgentError) Hint() string {
	return "build it with: make build; or let nobody delete the slices if this machine dies: --lease=0, without --ttl"
}

// Every returns the time between two renewals. A runner is gone only after three missing
// renewals in a row.
func (t Terms) Every() time.Duration {
	every := 5 * time.Minute
	for _, d := range []time.Duration{t.Adopt, t.Lease, t.TTL} {
		if d > 0 {
			every = min(every, max(d/4, 100*time.Millisecond))
		}
	}
	return every
}

// Metadata returns the entries for the slices' metadata. It returns nil for terms without a
// limit, and if m already has a startup script or terms. Then only Arm brings the watch to
// the workers.
func (t Terms) Metadata(agents program.Set, m map[string]string) map[string]string {
	if !t.On() || m[startupKey] != "" || m[startupKey+"-url"] != "" || m[termsKey] != "" {
		return nil
	}
	return map[string]string{startupKey: startup(agents), termsKey: t.text()}
}

// text returns the terms in the format of package watch and guard.sh.
func (t Terms) text() string {
	seconds := func(d time.Duration) string {
		return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
	}
	keep := "never"
	if t.KeepOnFailure {
		keep = "on-failure"
	}
	look := 20 * time.Second
	asked := int64(0)
	if !t.Asked.IsZero() {
		asked = t.Asked.Unix()
	}
	for _, d := range []time.Duration{t.Adopt, t.Lease, t.TTL} {
		if d > 0 {
			look = min(look, d/4)
		}
	}
	peers, _ := json.Marshal(agent.Peers(t.Undoing.Peers))
	var b strings.Builder
	for _, l := range [][2]string{
		{"run", t.Run}, {"peers", string(peers)}, {"nodes", strings.Join(t.Nodes, " ")}, {"total", strconv.Itoa(t.Workers)},
		{"adopt", seconds(t.Adopt)}, {"lease", seconds(t.Lease)}, {"fresh", seconds(3 * t.Every())}, {"hold", "0"},
		{"ttl", seconds(t.TTL)}, {"asked", strconv.FormatInt(asked, 10)}, {"grace", seconds(t.Grace)}, {"keep", keep}, {"keep_for", seconds(t.KeepFor)}, {"look", seconds(max(look, time.Second))},
	} {
		b.WriteString(l[0] + "=" + l[1] + "\n")
	}
	return b.String() + t.deletions()
}

// deletions returns lines for the workers: the requests that delete the parts of the
// resource, and the proof to look for before each.
func (t Terms) deletions() string {
	label, value, _ := strings.Cut(t.Label, "=")
	var b strings.Builder
	for _, part := range t.Undoing.Parts {
		text, _ := json.Marshal(agent.Deletion{
			Read: part.Look, Method: http.MethodDelete, URL: part.Delete, Probe: part.Probe,
			Proof: agent.Field(part.Proof(label, value)), Going: agent.Field(part.Going),
		})
		b.WriteString("deletion=" + string(text) + "\n")
	}
	return b.String()
}

// ReadTerms reads terms from the metadata of slices, only the fields that say when the
// slices are deleted: Adopt, Lease, TTL, KeepOnFailure and KeepFor. ok is false if m has no
// terms.
func ReadTerms(m map[string]string) (t Terms, ok bool) {
	for line := range strings.Lines(m[termsKey]) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "adopt":
			t.Adopt = seconds(value)
		case "lease":
			t.Lease = seconds(value)
		case "ttl":
			t.TTL = seconds(value)
		case "keep":
			t.KeepOnFailure = value == "on-failure"
		case "keep_for":
			t.KeepFor = seconds(value)
		}
	}
	return t, m[termsKey] != ""
}

// Held is what a worker knows of the lease of a run.
type Held struct {
	Watched bool          // a watch is active there, and has got the terms from a runner since the boot
	Lease   time.Duration // as in Terms
	TTL     time.Duration
	Age     time.Duration // worker's time since the request, or if that is not known, since the first boot

	KeepOnFailure bool
	KeepFor       time.Duration
}

// Armed is a worker's answer to Arm.
type Armed struct {
	Held
	Right error // nil: the worker may delete the resource; *RightError: it may not
	Apart error // why workers cannot tell each other whether the command is active; nil: they can
}

// A RightError says what a worker may not do, and why.
type RightError struct {
	Status  int    // HTTP status; 0: no answer
	Account string // of the worker; "": not known
	Text    string
}

func (e *RightError) Error() string { return e.Text }

// Fault returns fault.Unavailable.
func (e *RightError) Fault() fault.Kind { return fault.Unavailable }

// Arm starts a watch with these terms on the worker, and finds out what the worker may do.
// Arm may be repeated: only one watch is active, with the last terms. sums are the hashes
// of this multihost's agents. If the worker lacks its agent, the error is a *LacksError,
// and nothing has changed there.
func Arm(ctx context.Context, r remote.Runner, sums string, t Terms) (Armed, error) {
	records, err := call(ctx, r, sums, t.text()+"end\n", "arm")
	if err != nil {
		return Armed{}, err
	}
	a := Armed{Held: held(records), Right: errors.New("it did not say whether it may")}
	for _, f := range records {
		switch {
		case f[0] == "right" && len(f) > 1 && f[1] == "yes":
			a.Right = nil
		case f[0] == "right" && len(f) > 3:
			a.Right = refusal("", f[2:])
		case f[0] == "apart":
			a.Apart = errors.New("it cannot write guest attributes (HTTP status " + strings.Join(f[1:], " ") + ")")
		case f[0] == "deaf" && len(f) > 2:
			a.Apart = refusal("it cannot read the guest attributes of others: ", f[1:])
		}
	}
	return a, nil
}

// Adopt is Arm for a runner that still waits for other workers. It tells the worker that
// the runner is active, and does not find out what the worker may do.
func Adopt(ctx context.Context, r remote.Runner, sums string, t Terms) (Held, error) {
	records, err := call(ctx, r, sums, t.text()+"end\n", "adopt")
	return held(records), err
}

// refusal returns the error in a worker's answer: an HTTP status, the service account of
// the worker, and a text.
func refusal(what string, words []string) error {
	e := &RightError{Status: int(number(words[0])), Text: what + strings.Join(words[2:], " ")}
	if account.MatchString(words[1]) {
		e.Account = words[1]
	}
	return e
}

// account matches account names that are safe in a command to type.
var account = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*@[a-z0-9.-]+$`)

// Renew tells the worker that the runner is active, and that it may be silent for the given
// time. The lease, if it is longer, is the limit instead. If nobody has armed the worker
// since its boot, Renew changes nothing.
func Renew(ctx context.Context, r remote.Runner, sums string, run string, silent time.Duration) (Held, error) {
	records, err := call(ctx, r, sums, "", "renew", run, strconv.FormatInt(int64(silent/time.Second), 10))
	return held(records), err
}

// Look asks the worker what it knows of the lease.
func Look(ctx context.Context, r remote.Runner, sums string, run string) (Held, error) {
	records, err := call(ctx, r, sums, "", "look", run)
	return held(records), err
}

func held(records [][]string) Held {
	var h Held
	for _, f := range records {
		if f[0] == "lease" && len(f) == 7 {
			h = Held{Watched: f[1] == "yes", Lease: seconds(f[2]), TTL: seconds(f[3]), Age: seconds(f[4]), KeepOnFailure: f[5] == "on-failure", KeepFor: seconds(f[6])}
		}
	}
	return h
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func seconds(s string) time.Duration { return time.Duration(min(number(s), 1<<33)) * time.Second }

// A LacksError says that a worker does not have the agent.
type LacksError struct {
	Worker  string
	Machine string // type of the worker's machine, by its name in uname -m
}

func (e *LacksError) Error() string { return e.Worker + " does not have multihost-agent" }

// Fault returns fault.Unavailable.
func (e *LacksError) Fault() fault.Kind { return fault.Unavailable }

// Send brings the agent to a worker. If the worker cannot keep or run it, the error says
// why. If agents has none for such a machine, the error is a *program.MissingError.
func Send(ctx context.Context, r remote.Runner, agents program.Set, machine string) error {
	p, err := agents.ForMachine(machine)
	if err != nil {
		return err
	}
	_, err = run(ctx, r, sendLimit, agents.Sums(), bytes.NewReader(p.Packed), "put")
	return err
}

// answerLimit limits a worker's answer. The worker asks two servers that may be slow.
const answerLimit = time.Minute

// sendLimit limits sending the agent, some megabytes, over the slowest link.
const sendLimit = 10 * time.Minute

// call runs one operation of the agent and returns the words of each line of its answer.
func call(ctx context.Context, r remote.Runner, sums, stdin, op string, args ...string) ([][]string, error) {
	records, err := run(ctx, r, answerLimit, sums, strings.NewReader(stdin), op, args...)
	if err == nil && records[0][0] == "lacks" {
		return nil, &LacksError{r.Name(), strings.Join(records[0][1:], " ")}
	}
	return records, err
}

// run runs one operation of the script. Without an error, there is at least one record, and
// each record has a word.
func run(ctx context.Context, r remote.Runner, limit time.Duration, sums string, stdin io.Reader, op string, args ...string) ([][]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
	defer cancel()
	out := &remote.Answer{Nonce: remote.NewNonce()}
	errs := &remote.Answer{Nonce: out.Nonce}
	cmd := leaseProgram.Cmd(stdin, append([]string{out.Nonce, op, sums}, args...)...)
	cmd.Stdout, cmd.Stderr = out, errs
	status, err := r.Run(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("%s the lease on %s: %w", op, r.Name(), err)
	}
	if failed := out.Failure(); failed != "" {
		return nil, fmt.Errorf("%s the lease on %s: %s", op, r.Name(), failed)
	}
	var records [][]string
	for _, rec := range out.Records() {
		if words := strings.Fields(remote.Clean(rec.Word+" "+rec.Rest, 4<<10)); len(words) > 0 {
			records = append(records, words)
		}
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("%s the lease on %s: no answer (exit code %d): %s", op, r.Name(), status.Code, errs.Trouble())
	}
	return records, nil
}
