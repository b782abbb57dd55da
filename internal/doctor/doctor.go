// Package doctor examines everything that a run depends on, from the
// credentials on this machine to the paths between workers, and says of each
// whether it is as it must be and with which command it is cured.
//
// Examining changes nothing, neither in the cloud nor on workers. All checks
// that do not need one another run at once, each within a limit, and one that
// cannot be made says why and keeps no other from being made.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/network"
	"multihost/internal/qr"
	"multihost/internal/sshfan"
	"multihost/internal/tpu"
)

// A Level is how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning" // a run works, but slower or less safely, or not in every way
	Error   Level = "error"   // a run cannot work
	Unknown Level = "unknown" // it could not be checked; the text says why
)

// The checks, in the order in which they are shown.
const (
	CheckProject     = "project"
	CheckZone        = "zone"
	CheckCredentials = "credentials"
	CheckKey         = "ssh key"
	CheckAPIs        = "apis"
	CheckPermissions = "permissions"
	CheckQuota       = "quota"
	CheckNetwork     = "network"
	CheckMTU         = "network mtu"
	CheckSSHRule     = "firewall ssh"
	CheckWorkerRules = "firewall between workers"
	CheckSlices      = "slices"
	CheckLogin       = "login"
	CheckSSH         = "ssh"
	CheckHostKeys    = "host keys"
	CheckClock       = "clock"
	CheckDevices     = "devices"
	CheckHolders     = "tpu users"
	CheckSettings    = "settings"
	CheckDisk        = "disk"
	CheckVersions    = "versions"
	CheckPacket      = "packet size"
	CheckPorts       = "ports"
)

// groups are the headings under which checks are shown.
var groups = []struct {
	name   string
	checks []string
}{
	{"this machine", []string{CheckProject, CheckZone, CheckCredentials, CheckKey}},
	{"project", []string{CheckAPIs, CheckPermissions, CheckQuota}},
	{"network", []string{CheckNetwork, CheckMTU, CheckSSHRule, CheckWorkerRules}},
	{"slices", []string{CheckSlices, CheckLogin}},
	{"workers", []string{CheckSSH, CheckHostKeys, CheckClock, CheckDevices, CheckHolders, CheckSettings, CheckDisk, CheckVersions}},
	{"between workers", []string{CheckPacket, CheckPorts}},
}

// A Finding is one line of the examination.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Workers string `json:"workers,omitempty"` // folded: s[0-1]w[0-3]
	Text    string `json:"text"`
	Cure    string `json:"cure,omitempty"` // the command to type
	Advice  string `json:"advice,omitempty"`
	Fixable bool   `json:"fixable,omitempty"` // --fix does it

	count int
	fix   func(ctx context.Context) error
}

// A Report is what an examination found, in the order of the checks.
type Report struct {
	Findings []Finding `json:"findings"`
	Fixed    []string  `json:"fixed,omitempty"` // what was done, in words
	OK       int       `json:"ok"`
	Warnings int       `json:"warnings"`
	Errors   int       `json:"errors"`
	Unknown  int       `json:"unknown"`
}

// A Setting is a value that the configuration gave, and where it came from.
type Setting struct{ Value, Source string }

// Options say what to examine. What is nil or empty is left out.
type Options struct {
	Project, Zone Setting
	Account       string // of the configuration; "": whose the credentials are

	Cloud    *gcp.Client // nil: there is no project
	Queue    *qr.Client
	Networks *network.Client
	Hosts    job.HostList // machines in place of slices

	Prefix  string      // of slices to examine; "": none
	Slices  tpu.Numbers // of those, the ones with these numbers in their names
	Network string      // "": that of the slices, else network.DefaultName
	Type    tpu.Type    // of slices that are wanted; zero: no quota is asked about
	Count   int         // of them

	Login   string // on workers
	OSLogin qr.OSLoginOptions
	Way     job.Way
	Jump    bool // through a bastion
	KeyPath string
	// Key loads the SSH key; fs.ErrNotExist says that there is none. MakeKey
	// makes it; nil: the user has named a file that is not ours to make.
	Key     func() (*sshfan.Identity, error)
	MakeKey func() error
	// Visit connects to workers. Without Fix it writes nothing anywhere: no pins of
	// host keys here, no scripts there.
	Visit func(ctx context.Context, id *sshfan.Identity, sel tpu.Selection, logins map[string]string, only func(tpu.WorkerID) bool) (*job.Visit, error)

	Again []string // flags of this command that commands to type need, too
	Fix   bool     // do what is safe: see Finding.Fixable
	Sink  event.Sink
	Clock gcp.Clock
}

// checkLimit bounds what one question to an API may take. Without it an API
// that is away would hold each check for minutes.
const checkLimit = 30 * time.Second

// rounds bounds the examinations with Fix: a fix may bring up the next one (a
// key that was made has still to be sent).
const rounds = 4

// Examine does it. The error is the cause of ctx; everything else is a finding.
func Examine(ctx context.Context, o Options) (Report, error) {
	ctx = gcp.Unattended(ctx)
	tried := map[string]bool{}
	var fixed []string
	for round := 1; ; round++ {
		e := &examination{Options: o}
		e.run(ctx)
		if ctx.Err() != nil {
			return Report{}, context.Cause(ctx)
		}
		r := e.report()
		if !o.Fix || round == rounds {
			r.Fixed = fixed
			return r, nil
		}
		did := fixAll(ctx, o.Sink, r, tried)
		fixed = append(fixed, did...)
		if len(did) == 0 {
			r.Fixed = fixed
			return r, ctx.Err()
		}
	}
}

// fixAll does what findings offer, each once, and returns what went well.
func fixAll(ctx context.Context, sink event.Sink, r Report, tried map[string]bool) (done []string) {
	for _, f := range r.Findings {
		key := f.Check + "\x00" + f.Text
		if f.fix == nil || tried[key] || ctx.Err() != nil {
			continue
		}
		tried[key] = true
		if err := f.fix(ctx); err != nil {
			event.Notef(sink, event.Warn, gcp.Hint(err), "%s: it could not be cured: %v", f.Check, err)
			continue
		}
		done = append(done, f.Check+": "+f.Text)
		event.Notef(sink, event.Info, "", "cured: %s: %s", f.Check, f.Text)
	}
	return done
}

// An examination is one round.
type examination struct {
	Options

	mu       sync.Mutex // guards findings
	findings []Finding

	key     *sshfan.Identity // nil: there is none to use
	account string           // whose the credentials are; "": not known
	denied  bool             // there are no credentials: nobody asks an API
	sel     tpu.Selection
}

func (e *examination) add(f Finding) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f.Fixable = f.fix != nil
	e.findings = append(e.findings, f)
}

func (e *examination) ok(check, format string, args ...any) {
	e.add(Finding{Check: check, Level: OK, Text: fmt.Sprintf(format, args...)})
}

func (e *examination) unknown(check, format string, args ...any) {
	e.add(Finding{Check: check, Level: Unknown, Text: "not checked: " + fmt.Sprintf(format, args...)})
}

// fail adds what became of a question to an API that was not answered. That of a
// caller who may not ask, or of an API that is not enabled, is no finding of its
// own: the checks of APIs and permissions tell of it.
func (e *examination) fail(check string, err error) {
	switch gcp.ClassOf(err) {
	case gcp.Permission:
		e.add(Finding{Check: check, Level: Unknown, Text: "not checked: " + err.Error(), Advice: gcp.Hint(err)})
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		e.unknown(check, "no answer within %s: %v", event.Duration(checkLimit), err)
		return
	}
	e.add(Finding{Check: check, Level: Error, Text: err.Error(), Advice: gcp.Hint(err)})
}

// run makes all checks.
func (e *examination) run(ctx context.Context) {
	var local sync.WaitGroup
	local.Go(e.checkKey)
	local.Go(func() { e.checkSettings(ctx) })
	local.Wait()

	found := e.findSlices(ctx)
	var all sync.WaitGroup
	if e.Cloud != nil && !e.denied {
		for _, check := range []func(context.Context){e.checkAPIs, e.checkPermissions, e.checkNetwork, e.checkQuota} {
			all.Go(func() { e.bounded(ctx, check) })
		}
	}
	if found {
		all.Go(func() { e.checkWorkers(ctx) })
	}
	all.Wait()
}

// viaIAP reports whether workers are reached through Identity-Aware Proxy: that
// was asked for, or they have no external addresses.
func (e *examination) viaIAP() bool {
	if e.Way != job.Auto || len(e.sel.Slices) == 0 {
		return e.Way == job.IAP
	}
	first := e.sel.Slices[0]
	return e.Hosts == nil && !e.Jump && len(first.Workers) > 0 && first.Workers[0].External == ""
}

func (e *examination) bounded(ctx context.Context, check func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	check(ctx)
}

// report brings the findings into the order of the checks.
func (e *examination) report() Report {
	order := map[string]int{}
	for _, g := range groups {
		for _, c := range g.checks {
			order[c] = len(order)
		}
	}
	rank := map[Level]int{Error: 0, Warning: 1, Unknown: 2, OK: 3}
	slices.SortStableFunc(e.findings, func(a, b Finding) int {
		if c := order[a.Check] - order[b.Check]; c != 0 {
			return c
		}
		if c := rank[a.Level] - rank[b.Level]; c != 0 {
			return c
		}
		return strings.Compare(a.Workers+a.Text, b.Workers+b.Text)
	})
	r := Report{Findings: e.findings}
	for _, f := range r.Findings {
		switch f.Level {
		case OK:
			r.OK++
		case Warning:
			r.Warnings++
		case Error:
			r.Errors++
		case Unknown:
			r.Unknown++
		}
	}
	return r
}

// String is the report for people: a line for each finding, and under it what
// cures it.
func (r Report) String() string {
	var b strings.Builder
	heading := ""
	for _, f := range r.Findings {
		if h := groupOf(f.Check); h != heading {
			heading = h
			fmt.Fprintf(&b, "%s\n", heading)
		}
		fmt.Fprintf(&b, "  %-8s%s: ", f.Level, f.Check)
		if f.Workers != "" {
			b.WriteString(f.Workers)
			if f.count > 1 {
				fmt.Fprintf(&b, " (%d)", f.count)
			}
			b.WriteString(": ")
		}
		fmt.Fprintf(&b, "%s\n", f.Text)
		if f.Advice != "" {
			fmt.Fprintf(&b, "          %s\n", f.Advice)
		}
		if f.Cure != "" {
			fmt.Fprintf(&b, "          cure: %s\n", f.Cure)
		}
	}
	parts := []string{fmt.Sprintf("%d ok", r.OK)}
	for _, p := range []struct {
		n    int
		noun string
	}{{r.Warnings, "warning"}, {r.Errors, "error"}} {
		if p.n > 0 {
			parts = append(parts, event.Count(p.n, p.noun))
		}
	}
	if r.Unknown > 0 {
		parts = append(parts, fmt.Sprintf("%d not checked", r.Unknown))
	}
	fmt.Fprintf(&b, "%s\n", strings.Join(parts, ", "))
	return b.String()
}

func groupOf(check string) string {
	for _, g := range groups {
		if slices.Contains(g.checks, check) {
			return g.name
		}
	}
	return ""
}

// command is a command line of multihost with the flags that this one was given.
func (e *examination) command(words ...string) string {
	return sshfan.CommandLine(append(append([]string{"multihost"}, words...), e.Again...)...)
}

// doctorAgain is this command with --fix.
func (e *examination) doctorAgain() string {
	words := []string{"doctor", "--fix"}
	if e.Prefix != "" {
		words = append(words, "--tpu-prefix="+e.Prefix)
	}
	return e.command(words...)
}
