// Package doctor checks everything that a run needs, from the credentials on this machine
// to the paths between workers. For each check it reports whether all is right, or the
// command that corrects it.
//
// The checks change nothing, neither in the cloud nor on workers. Independent checks run at
// the same time, each within a time limit. A check that cannot be made says why, and does
// not prevent the others.
//
// # Decisions
//
//   - The checks make no key and send none, so they skip workers that do not know the
//     user's key. --fix sends the key and adds our firewall rules. It never overrules a
//     rule that denies.
//   - Package network judges firewall rules. Package gcp reads the project's APIs,
//     permissions and quotas. Cloud Quotas has no client in google.golang.org/api, so
//     its one list is read as JSON.
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
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/hosts"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/sshkey"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A Level says how bad a finding is.
type Level string

const (
	OK      Level = "ok"
	Warning Level = "warning" // a run works, but slower, less safely, or not with every feature
	Error   Level = "error"   // a run cannot work
	Unknown Level = "unknown" // the check could not be made, and the text says why
)

// The checks, in the order of the report.
const (
	CheckProject     = "project"
	CheckZone        = "zone"
	CheckCredentials = "credentials"
	CheckKey         = "ssh key"
	CheckAPIs        = "apis"
	CheckPermissions = "permissions"
	CheckQuota       = "quota"
	CheckMachine     = "machine type"
	CheckImage       = "image"
	CheckReservation = "reservation"
	CheckNetwork     = "network"
	CheckMTU         = "network mtu"
	CheckSSHRule     = "firewall ssh"
	CheckWorkerRules = "firewall between workers"
	CheckCluster     = "cluster"
	CheckPools       = "node pools"
	CheckAPI         = "api server"
	CheckRights      = "rights"
	CheckJobSet      = "jobset"
	CheckKueue       = "kueue"
	CheckQueue       = "queue"
	CheckNodes       = "nodes"
	CheckSlices      = "slices"
	CheckLogin       = "login"
	CheckSSH         = "ssh"
	CheckExec        = "exec" // for pods, in place of CheckSSH
	CheckConsole     = "serial console"
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

// groups are the headings of the checks in the report.
var groups = []struct {
	name   string
	checks []string
}{
	{"this machine", []string{CheckProject, CheckZone, CheckCredentials, CheckKey}},
	{"project", []string{CheckAPIs, CheckPermissions, CheckQuota, CheckMachine, CheckImage, CheckReservation}},
	{"network", []string{CheckNetwork, CheckMTU, CheckSSHRule, CheckWorkerRules}},
	{"cluster", []string{CheckCluster, CheckPools, CheckAPI, CheckRights, CheckJobSet, CheckKueue, CheckQueue, CheckNodes}},
	{"slices", []string{CheckSlices, CheckLogin}},
	{"workers", []string{CheckSSH, CheckExec, CheckConsole, CheckHostKeys, CheckClock, CheckDevices, CheckHolders, CheckSettings, CheckDisk, CheckVersions}},
	{"between workers", []string{CheckPacket, CheckPorts}},
}

// A Finding is one line of the report.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Workers string `json:"workers,omitempty"` // folded: s[0-1]w[0-3]
	Text    string `json:"text"`
	Cure    string `json:"cure,omitempty"` // the command to type
	Advice  string `json:"advice,omitempty"`
	Fixable bool   `json:"fixable,omitempty"` // --fix can correct it

	Lines []string `json:"lines,omitempty"` // console lines, without control characters

	count int
	fix   func(ctx context.Context) error
}

// A Report has the findings of an examination, in the order of the checks.
type Report struct {
	Findings []Finding `json:"findings"`
	Fixed    []string  `json:"fixed,omitempty"` // corrections by --fix, in words
	OK       int       `json:"ok"`
	Warnings int       `json:"warnings"`
	Errors   int       `json:"errors"`
	Unknown  int       `json:"unknown"`
}

// Fault returns the kind of a report's first error. If there is no error, failed is false.
func (r Report) Fault() (kind fault.Kind, failed bool) {
	i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Level == Error })
	if i < 0 {
		return fault.Unknown, false
	}
	switch r.Findings[i].Check {
	case CheckProject, CheckZone, CheckKey:
		return fault.Configuration, true
	case CheckCredentials, CheckPermissions, CheckRights, CheckAPIs, CheckLogin, CheckHostKeys:
		return fault.Permission, true
	case CheckQuota, CheckReservation:
		return fault.Temporary, true
	case CheckDevices, CheckPacket:
		return fault.Preflight, true
	}
	return fault.Unavailable, true
}

// A Setting is a value of the configuration and its source.
type Setting struct{ Value, Source string }

// Options say what to examine. A check with a nil or empty option is skipped.
type Options struct {
	Project, Zone Setting
	Account       string // of the configuration; "": account of the credentials

	Cloud    *gcp.Client        // nil: no project
	Provider provision.Provider // of the existing slices and of the wanted ones; nil if Cloud is nil
	Networks *network.Client
	Hosts    hosts.HostList // hosts in place of slices
	Cluster  *Cluster       // the slices are held by its pods; nil: they are not

	Prefix  string      // name prefix of the slices to examine; "": none
	Slices  tpu.Numbers // only the slices with these numbers in their names
	Network string      // "": of the slices, else network.DefaultName
	Type    tpu.Type    // of the wanted slices; zero: do not check the quota
	Count   int         // of wanted slices

	Reservation string // for the wanted slices; "": none

	Login        string // login on workers
	LoginAccount string // the user's account at the slices' provider; "": account of the credentials
	Way          overssh.Way
	Jump         bool // connect through a bastion
	KeyPath      string
	// Key loads the SSH key, or returns fs.ErrNotExist. MakeKey makes one. It is nil if the
	// user named a key file, because multihost does not make such a file.
	Key     func() (*sshkey.Identity, error)
	MakeKey func() error
	// Visit connects to workers. Without Fix it writes nothing: neither host key
	// pins on this machine nor scripts on workers.
	Visit func(ctx context.Context, id *sshkey.Identity, sel tpu.Selection, logins map[string]string, only func(tpu.WorkerID) bool) (*workers.Visit, error)

	// Again returns the flags of this command that another command of multihost needs too, of
	// those that it has. words are its name and what follows. Nil: none.
	Again func(words ...string) []string

	Fix   bool // make the safe corrections: see Finding.Fixable
	Sink  event.Sink
	Clock gcp.Clock
}

// checkLimit limits the API calls of one check. Otherwise an API that does not answer would
// block each check for minutes.
const checkLimit = 30 * time.Second

// rounds limits the examinations with Fix. One correction may make another one necessary:
// for example, a new key must then go to the workers.
const rounds = 4

// Examine makes all checks. With o.Fix, it also makes the corrections in the findings and
// checks again. It returns an error only when ctx ends: the cause of ctx. Everything else
// is a finding.
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

// fixAll makes each correction in the findings once. It returns those that succeeded. The
// parameter tried has the corrections of earlier rounds.
func fixAll(ctx context.Context, sink event.Sink, r Report, tried map[string]bool) (done []string) {
	for _, f := range r.Findings {
		key := f.Check + "\x00" + f.Text
		if f.fix == nil || tried[key] || ctx.Err() != nil {
			continue
		}
		tried[key] = true
		if err := f.fix(ctx); err != nil {
			event.Notef(sink, event.Warn, gcp.Hint(err), "%s: it could not be repaired: %v", f.Check, err)
			continue
		}
		done = append(done, f.Check+": "+f.Text)
		event.Notef(sink, event.Info, "", "cured: %s: %s", f.Check, f.Text)
	}
	return done
}

// An examination is one round of checks.
type examination struct {
	Options

	mu       sync.Mutex // guards findings
	findings []Finding

	key     *sshkey.Identity // nil: no usable key
	account string           // of the credentials; "": not known
	denied  bool             // no valid credentials: no check calls an API
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

// fail adds the finding for a failed API call. If the caller lacks a permission or the API
// is not enabled, the finding is Unknown, because the checks of permissions and APIs report
// these errors. It is also Unknown if the API did not answer within checkLimit.
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

func (e *examination) run(ctx context.Context) {
	project, workers := projectChecks{e}, workerChecks{e}
	var local sync.WaitGroup
	if e.Cluster == nil {
		local.Go(project.checkKey)
	}
	local.Go(func() { project.checkSettings(ctx) })
	local.Wait()

	found := project.findSlices(ctx)
	var all sync.WaitGroup
	if e.Cluster != nil {
		for _, check := range (clusterChecks{e}).all() {
			all.Go(func() { e.bounded(ctx, check) })
		}
	} else if e.Cloud != nil && !e.denied {
		for _, check := range []func(context.Context){project.checkAPIs, project.checkPermissions, networkChecks{e}.checkNetwork, project.checkQuota, project.checkMachine, project.checkImage, project.checkReservation} {
			all.Go(func() { e.bounded(ctx, check) })
		}
	}
	if found {
		all.Go(func() { workers.checkWorkers(ctx) })
	}
	if e.Cluster == nil {
		all.Go(func() { workers.checkConsoles(ctx) })
	}
	all.Wait()
}

// viaIAP reports whether connections to workers go through Identity-Aware Proxy: the
// options ask for it, or the workers have no external addresses.
func (e *examination) viaIAP() bool {
	if e.Way != overssh.Auto || len(e.sel.Slices) == 0 {
		return e.Way == overssh.IAP
	}
	first := e.sel.Slices[0]
	return e.Hosts == nil && e.Cluster == nil && !e.Jump && len(first.Workers) > 0 && first.Workers[0].External == ""
}

func (e *examination) bounded(ctx context.Context, check func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	check(ctx)
}

// report sorts the findings in the order of the checks and counts them.
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

// String returns the report for people: a line for each finding, and below it the command
// that corrects it.
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
		for _, line := range f.Lines {
			fmt.Fprintf(&b, "          | %s\n", line)
		}
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

// command returns a command line of multihost with the flags of Options.Again.
func (e *examination) command(words ...string) string {
	return remote.CommandLine(slices.Concat([]string{"multihost"}, words, e.flagsOf(words...))...)
}

func (e *examination) flagsOf(words ...string) []string {
	if e.Again == nil {
		return nil
	}
	return e.Again(words...)
}

// doctorAgain returns this command with --fix.
func (e *examination) doctorAgain() string {
	words := []string{"doctor", "--fix"}
	if e.Prefix != "" {
		words = append(words, "--tpu-prefix="+e.Prefix)
	}
	return e.command(words...)
}
