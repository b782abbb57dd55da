// Package lease has the workers of a job delete its slices when the machine
// that the job was started from is not heard of any more.
//
// What it hides: one script (watch.sh) that lives on every worker beyond any
// connection. It comes there as the startup script of the slices, so that it is
// there before any runner was and after a reboot, and by [Arm] over SSH, which
// also holds where somebody else's startup script is. With the VM's own token
// it deletes the queued resource when
//
//   - no runner has come to a worker within a time of its boot, to none of them;
//   - nobody has renewed the lease for its time, and for as long no command has
//     run on this worker nor, by their guest attributes, on any other; or
//   - the time to live of the slices is over, whatever runs.
//
// The promises are
//
//   - a queued resource is read before it is deleted, and one that does not bear
//     the label of the run is left alone;
//   - while a command runs anywhere, the lease ends nothing, however old it is;
//     whether it runs is asked of the worker, not of the runner;
//   - what cannot be learned ends nothing: where workers cannot tell each other
//     (Armed.Apart), or one has never told anything, only the time to live is
//     heeded;
//   - whoever renews it does, as whatever login, from whatever machine: its terms
//     are kept on the workers.
//
// A worker that has said nothing for half an hour counts as ended. Where somebody
// else's startup script is, a worker that was rebooted is not watched until a
// runner arms it again; the others are, and any of them deletes for all.
package lease

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/sshfan"
)

//go:embed watch.sh
var watchScript string

var watchProgram = sshfan.NewProgram("lease", gcp.VMScript, watchScript)

// Metadata keys that the slices' startup script needs.
const (
	startupKey = "startup-script"
	termsKey   = "multihost-lease"
)

// A Runner runs commands on one worker. *sshfan.Conn is one.
type Runner interface {
	Name() string
	Run(ctx context.Context, cmd sshfan.Cmd) (sshfan.Status, error)
}

// Terms are what the workers are told. Times are rounded up to seconds.
type Terms struct {
	Run      string
	Resource string // address of the queued resource: root of the API, version and name
	Label    string // KEY=VALUE on its slices that proves that it is of this run
	Nodes    []string
	Workers  int // of all slices

	// Adopt is how long after its boot a worker waits for a runner to come for the
	// first time, by Arm; 0: for ever. A worker to which one has come never counts
	// it again, also after a reboot.
	Adopt time.Duration
	// Lease is how long nobody may renew, once the command has ended; 0: for ever.
	Lease time.Duration

	TTL   time.Duration // from Asked to the deletion, whatever runs; 0: none
	Asked time.Time     // when the request was made; zero or later than the first boot: that counts
	Grace time.Duration // between the end of TTL and the deletion, for a command that runs

	KeepOnFailure bool          // leave the slices when the command did not succeed here …
	KeepFor       time.Duration // … for so long; 0 is for ever
}

// On reports whether the terms ask for anything.
func (t Terms) On() bool { return t.Adopt > 0 || t.Lasting() }

// Lasting reports whether the terms ask for anything once a runner has come.
func (t Terms) Lasting() bool { return t.Lease > 0 || t.TTL > 0 }

// Every is the time between two renewals. Three may go astray before a runner
// counts as gone.
func (t Terms) Every() time.Duration {
	every := 5 * time.Minute
	for _, d := range []time.Duration{t.Adopt, t.Lease, t.TTL} {
		if d > 0 {
			every = min(every, max(d/4, 100*time.Millisecond))
		}
	}
	return every
}

// Metadata is what the slices need in their metadata; nil when the keys are
// taken in m already, and then only Arm brings the watch to the workers.
func (t Terms) Metadata(m map[string]string) map[string]string {
	if !t.On() || m[startupKey] != "" || m[startupKey+"-url"] != "" || m[termsKey] != "" {
		return nil
	}
	return map[string]string{startupKey: watchProgram.Text(), termsKey: t.text()}
}

// text is the terms as watch.sh reads them.
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
	var b strings.Builder
	for _, l := range [][2]string{
		{"run", t.Run}, {"resource", t.Resource}, {"label", t.Label}, {"nodes", strings.Join(t.Nodes, " ")}, {"total", strconv.Itoa(t.Workers)},
		{"adopt", seconds(t.Adopt)}, {"lease", seconds(t.Lease)}, {"fresh", seconds(3 * t.Every())}, {"hold", "0"},
		{"ttl", seconds(t.TTL)}, {"asked", strconv.FormatInt(asked, 10)}, {"grace", seconds(t.Grace)}, {"keep", keep}, {"keep_for", seconds(t.KeepFor)}, {"look", seconds(max(look, time.Second))},
	} {
		b.WriteString(l[0] + "=" + l[1] + "\n")
	}
	return b.String()
}

// ReadTerms reads what Metadata has put into the metadata of slices, as far as it
// says when they go: Adopt, Lease, TTL, KeepOnFailure and KeepFor. It reports whether
// there is anything.
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
	Watched bool          // a watch lives there, and somebody has told it the terms since the boot
	Lease   time.Duration // as in Terms
	TTL     time.Duration
	Age     time.Duration // since the request, as far as that is known, by the worker's clock

	KeepOnFailure bool
	KeepFor       time.Duration
}

// Armed is what a worker says when it was armed.
type Armed struct {
	Held
	Right error  // *RightError: it may not delete the queued resource; nil: it may
	Apart string // why it cannot tell the others whether its command runs; "" when it can
}

// A RightError is a worker that may not delete its queued resource.
type RightError struct {
	Status  int    // of HTTP; 0: no answer
	Account string // service account of the worker; "" when it is not known
	Text    string
}

func (e *RightError) Error() string { return e.Text }

// Arm has a watch with these terms live on the worker, and finds out what it may
// do. It may be repeated: one watch lives, and the last terms hold.
func Arm(ctx context.Context, r Runner, t Terms) (Armed, error) {
	records, err := call(ctx, r, t.text()+"end\n", "arm")
	if err != nil {
		return Armed{}, err
	}
	a := Armed{Held: held(records), Right: errors.New("it did not say whether it may")}
	for _, f := range records {
		switch {
		case f[0] == "right" && len(f) > 1 && f[1] == "yes":
			a.Right = nil
		case f[0] == "right" && len(f) > 3:
			e := &RightError{Status: int(number(f[2])), Text: strings.Join(f[4:], " ")}
			if account.MatchString(f[3]) {
				e.Account = f[3]
			}
			a.Right = e
		case f[0] == "apart":
			a.Apart = "it cannot write guest attributes (HTTP status " + strings.Join(f[1:], " ") + ")"
		}
	}
	return a, nil
}

// Adopt is Arm by a runner that waits for other workers: it tells the worker that
// somebody lives, and examines nothing.
func Adopt(ctx context.Context, r Runner, t Terms) (Held, error) {
	records, err := call(ctx, r, t.text()+"end\n", "adopt")
	return held(records), err
}

// account is what may stand in a command to type.
var account = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*@[a-z0-9.-]+$`)

// Renew tells the worker that somebody lives, and may be silent for the given
// time, or for the lease when that is longer. Where nobody has armed the worker
// since its boot, it does nothing.
func Renew(ctx context.Context, r Runner, run string, silent time.Duration) (Held, error) {
	records, err := call(ctx, r, "", "renew", run, strconv.FormatInt(int64(silent/time.Second), 10))
	return held(records), err
}

// Look asks the worker what it knows of the lease.
func Look(ctx context.Context, r Runner, run string) (Held, error) {
	records, err := call(ctx, r, "", "look", run)
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

// answerLimit: a worker asks two servers that may be slow.
const answerLimit = time.Minute

// call runs one operation of the script and returns the words of its answer.
func call(ctx context.Context, r Runner, stdin, op string, args ...string) ([][]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerLimit, fmt.Errorf("no answer within %s", answerLimit))
	defer cancel()
	out := &sshfan.Answer{Nonce: sshfan.NewNonce()}
	errs := &sshfan.Answer{Nonce: out.Nonce}
	cmd := watchProgram.Cmd(strings.NewReader(stdin), append([]string{out.Nonce, op}, args...)...)
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
		records = append(records, strings.Fields(sshfan.Clean(rec.Word+" "+rec.Rest, 4<<10)))
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("%s the lease on %s: no answer (exit code %d): %s", op, r.Name(), status.Code, errs.Trouble())
	}
	return records, nil
}
