package doctor

import (
	"context"

	"multihost/internal/stage"
	"multihost/internal/workers"

	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

//go:embed facts.sh
var factsScript string

// Limits beyond which a value is reported.
const (
	clockLimit = 10 * time.Second // clock offset at which certificates and tokens are refused
	slowTrip   = time.Second
	scarce     = 10 // less than 1/scarce of a disk is free
)

// lookLimit limits all checks on one worker. It is long because Python reads its packages
// from a disk that may be busy.
const lookLimit = 90 * time.Second

// A seen has the results of the checks on one worker.
type seen struct {
	id   tpu.WorkerID
	conn remote.Conn

	trip     time.Duration // duration of one command
	offset   time.Duration // offset of the clock
	facts    map[string]string
	tools    []string
	report   preflight.Report
	holders  []launch.Process
	wrongMTU bool // the interface has a wrong MTU, which was reported

	blind string // why processes of other users are invisible
	errs  map[string]error
}

// A finder groups workers by the text of their finding.
type finder struct {
	texts []string
	at    map[string][]tpu.WorkerID
}

func (f *finder) add(text string, id tpu.WorkerID) {
	if f.at == nil {
		f.at = map[string][]tpu.WorkerID{}
	}
	if _, known := f.at[text]; !known {
		f.texts = append(f.texts, text)
	}
	f.at[text] = append(f.at[text], id)
}

// emit adds a finding for each text.
func (e *examination) emit(f *finder, check string, level Level, cure func(text string, ids []tpu.WorkerID) string) {
	for _, text := range f.texts {
		ids := f.at[text]
		finding := Finding{Check: check, Level: level, Workers: tpu.Fold(ids), Text: text, count: len(ids)}
		if cure != nil {
			finding.Cure = cure(text, ids)
		}
		e.add(finding)
	}
}

// fine adds the finding of a successful check.
func (e *examination) fine(check string, ids []tpu.WorkerID, format string, args ...any) {
	e.add(Finding{Check: check, Level: OK, Workers: tpu.Fold(ids), count: len(ids), Text: fmt.Sprintf(format, args...)})
}

// target returns the flag that names the slices or the hosts, for commands to type.
func (e *examination) target() string {
	if e.Hosts != nil {
		return "--hosts=" + e.Hosts.String()
	}
	return "--tpu-prefix=" + e.Prefix
}

// exec returns the command that runs words on some of the workers.
func (e *examination) exec(ids []tpu.WorkerID, sudo bool, words ...string) string {
	line := []string{"multihost", "exec", e.target()}
	if len(ids) < len(e.sel.Workers()) {
		line = append(line, "--workers="+tpu.Fold(ids))
	}
	if sudo {
		line = append(line, "--sudo")
	}
	line = append(line, e.flagsOf("exec")...)
	return remote.CommandLine(append(line, "--")...) + " " + remote.CommandLine(words...)
}

type workerChecks struct{ *examination }

func (e workerChecks) checkWorkers(ctx context.Context) {
	if e.key == nil && e.Cluster == nil {
		e.unknown(CheckSSH, "without an SSH key nobody is let in")
		return
	}
	logins, open := e.checkLogin(ctx)
	if len(open) == 0 {
		e.unknown(CheckSSH, "the workers do not know the key yet")
		return
	}
	visit, err := e.Visit(ctx, e.key, e.sel, logins, func(id tpu.WorkerID) bool { return open[id.Slice] })
	if err != nil {
		if ctx.Err() == nil {
			e.add(Finding{Check: e.way(), Level: Error, Text: err.Error()})
		}
		return
	}
	defer visit.Close()
	all := e.look(ctx, visit)
	if ctx.Err() != nil {
		return
	}
	e.judgeSSH(visit, all)
	e.checkSilent(ctx, visit)
	if len(all) == 0 {
		return
	}
	if e.Cluster == nil { // pods have no host keys
		e.checkHostKeys(ctx, all)
	}
	e.judgeClocks(all)
	e.judgeDevices(all)
	e.judgeHolders(all)
	e.judgeSettings(all)
	e.judgeDisks(all)
	e.judgeVersions(all)
	pairChecks(e).checkPairs(ctx, all)
}

// checkLogin reports whether and how the workers accept the key. It returns the login for
// each slice, by name, and the indexes of the slices that accept the key.
func (e workerChecks) checkLogin(ctx context.Context) (logins map[string]string, open map[int]bool) {
	logins, open = map[string]string{}, map[int]bool{}
	if e.Hosts != nil {
		e.ok(CheckLogin, "by the key alone; it has to be on the machines")
		return logins, map[int]bool{0: true}
	}
	if e.Cluster != nil { // in pods, the permission to run commands replaces the login
		for _, s := range e.sel.Slices {
			open[s.Index] = true
		}
		return logins, open
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	ways := &finder{}
	notes := map[string][]string{} // slices by trouble
	var closed []tpu.Slice
	for _, s := range e.sel.Slices {
		door, err := e.door(ctx, s)
		if err != nil {
			e.add(Finding{Check: CheckLogin, Level: Error, Text: fmt.Sprintf("slice %s: %v", s.Name, err), Advice: hint(err)})
			continue
		}
		place := door.Place
		if !door.Open {
			closed = append(closed, s)
			notes[place] = append(notes[place], s.Name)
			continue
		}
		logins[s.Name], open[s.Index] = door.Login, true
		for w := range s.Workers {
			ways.add(fmt.Sprintf("as %s, by a key in the %s", door.Login, place), tpu.WorkerID{Slice: s.Index, Worker: w})
		}
	}
	e.emit(ways, CheckLogin, OK, nil)
	if len(closed) == 0 {
		return logins, open
	}
	for _, place := range slices.Sorted(maps.Keys(notes)) {
		names := notes[place]
		e.add(Finding{Check: CheckLogin, Level: Warning,
			Text:   fmt.Sprintf("the key is not in the %s of %s yet", place, tpu.FewNames(names)),
			Advice: "every command that logs in puts it there; so does:", Cure: e.doctorAgain(),
			fix: func(ctx context.Context) error {
				var asked []string
				var errs []error
				for _, s := range closed {
					if slices.Contains(names, s.Name) {
						_, _, err := e.Provider.Admit(ctx, s, e.login())
						asked, errs = append(asked, s.Name), append(errs, err)
					}
				}
				return stage.JoinNamed(asked, errs)
			}})
	}
	return logins, open
}

// login returns the key and the login to examine.
func (e workerChecks) login() provision.Login {
	return provision.Login{Name: e.Login, PublicKey: e.key.PublicKey(), Account: e.LoginAccount}
}

// door returns whether and how a slice accepts the key. If the provider does not know, the
// key counts as accepted.
func (e workerChecks) door(ctx context.Context, s tpu.Slice) (provision.Door, error) {
	keeper, ok := provision.As[provision.Doorkeeper](e.Provider)
	if !ok {
		return provision.Door{Login: e.Login, Open: true, Place: "place that the provider chooses"}, nil
	}
	return keeper.Door(ctx, s, e.login())
}

// hint returns the hint of an error, or "".
func hint(err error) string {
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		return hinted.Hint()
	}
	return ""
}

// look examines all workers with a connection at the same time.
func (e workerChecks) look(ctx context.Context, visit *workers.Visit) []*seen {
	var all []*seen
	for _, w := range visit.Workers {
		if w.Err == nil {
			all = append(all, &seen{id: w.ID, conn: w.Conn, errs: map[string]error{}})
		}
	}
	mtu := e.expectedMTU(ctx)
	var group sync.WaitGroup
	for _, s := range all {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, lookLimit)
			defer cancel()
			s.examine(ctx, e.preflightFor(s.id, mtu))
		})
	}
	group.Wait()
	return all
}

// expectedMTU returns the MTU of the slices' network, or 0 if not known.
func (e workerChecks) expectedMTU(ctx context.Context) int {
	if e.Networks == nil || len(e.sel.Slices) == 0 || e.sel.Slices[0].Network == "" {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	info, err := e.Networks.Show(ctx, e.sel.Slices[0].Network)
	if err != nil {
		return 0 // checkNetwork reports the error
	}
	return info.MTU
}

func (e workerChecks) preflightFor(id tpu.WorkerID, mtu int) preflight.Options {
	o := preflight.Options{Mode: preflight.Check, ExpectMTU: mtu, ExpectChips: preflight.NoDevices}
	if t, err := tpu.ParseType(e.sel.Slices[id.Slice].Type); err == nil {
		o.ExpectChips = t.ChipsPerWorker()
	}
	return o
}

// examine makes the checks of one worker. s.errs has the errors of single checks.
func (s *seen) examine(ctx context.Context, o preflight.Options) {
	begin := time.Now()
	_, err := s.conn.Run(ctx, remote.Cmd{Line: "true", ReadOnly: true})
	s.trip, s.errs[CheckSSH] = time.Since(begin), err
	if err != nil {
		return
	}
	s.offset = s.conn.ClockOffset()
	var group sync.WaitGroup
	var facts, settings, holders error
	group.Go(func() { s.facts, s.tools, facts = readFacts(ctx, s.conn) })
	group.Go(func() { s.report, settings = preflight.Run(ctx, s.conn, o) })
	group.Go(func() {
		report, err := launch.FreeTPU(ctx, s.conn, launch.FreeOptions{Policy: launch.FreeCheck})
		var busy *launch.HoldersError
		if errors.As(err, &busy) {
			s.holders, err = busy.Holders, nil
		}
		s.blind, holders = report.Blind, err
	})
	group.Wait()
	s.errs[CheckVersions], s.errs[CheckSettings], s.errs[CheckHolders] = facts, settings, holders
}

// fields returns the word of a record and its fields, which tabs separate.
func fields(r remote.Record) []string {
	words := []string{r.Word}
	if text := strings.ToValidUTF8(r.Rest, "\uFFFD"); text != "" {
		words = append(words, strings.Split(text, "\t")...)
	}
	return words
}

// whole returns the fields of the records of an answer. ok reports whether the answer has
// its last line, so is complete.
func whole(a *remote.Answer) (all [][]string, ok bool) {
	for _, r := range a.Records() {
		if r.Word == "end" {
			return all, true
		}
		all = append(all, fields(r))
	}
	return all, false
}

var errNoAnswer = errors.New("the answer is not whole")

func readFacts(ctx context.Context, conn remote.Conn) (facts map[string]string, tools []string, err error) {
	out := &remote.Answer{Nonce: remote.NewNonce()}
	if _, err := conn.Run(ctx, remote.Cmd{Line: remote.Bash(remote.Prelude()+factsScript, out.Nonce), Stdout: out, ReadOnly: true}); err != nil {
		return nil, nil, err
	}
	lines, ok := whole(out)
	if !ok {
		return nil, nil, errNoAnswer
	}
	facts = map[string]string{}
	for _, f := range lines {
		switch {
		case len(f) != 2:
		case f[0] == "tool":
			tools = append(tools, f[1])
		default:
			facts[f[0]] = f[1]
		}
	}
	return facts, tools, nil
}

// judgeSSH reports which workers were reached, and the duration of a command there.
func (e workerChecks) judgeSSH(visit *workers.Visit, all []*seen) {
	failed := &finder{}
	cures := map[string]error{}
	for _, w := range visit.Workers {
		if w.Err != nil {
			text := cause(w.Err)
			failed.add(text, w.ID)
			cures[text] = w.Err
		}
	}
	for _, text := range failed.texts {
		ids := failed.at[text]
		check := e.way()
		var key *remote.HostKeyError
		if errors.As(cures[text], &key) {
			check = CheckHostKeys
		}
		e.add(e.sshFinding(check, text, ids, cures[text]))
	}
	var ids []tpu.WorkerID
	var slowest, fastest *seen
	late := &finder{}
	for _, s := range all {
		if s.errs[CheckSSH] != nil {
			late.add(cause(s.errs[CheckSSH]), s.id)
			continue
		}
		ids = append(ids, s.id)
		if slowest == nil || s.trip > slowest.trip {
			slowest = s
		}
		if fastest == nil || s.trip < fastest.trip {
			fastest = s
		}
	}
	e.emit(late, e.way(), Error, nil)
	if slowest == nil {
		return
	}
	text := fmt.Sprintf("one command takes %s", event.Duration(slowest.trip))
	if len(ids) > 1 {
		text = fmt.Sprintf("one command takes %s to %s (%s)", event.Duration(fastest.trip), event.Duration(slowest.trip), slowest.id)
	}
	if visit.Way != "" {
		text += ", by the way " + string(visit.Way)
	}
	f := Finding{Check: e.way(), Level: OK, Workers: tpu.Fold(ids), count: len(ids), Text: text}
	if slowest.trip > slowTrip {
		f.Level = Warning
		f.Text += "; something slows logins down there, such as a start-up file or a busy disk"
		f.Cure = e.exec([]tpu.WorkerID{slowest.id}, false, "top", "-bn1")
	}
	e.add(f)
}

// cause returns the text of an error without the parts that differ between workers.
func cause(err error) string {
	var told interface{ Cause() string }
	if errors.As(err, &told) {
		return told.Cause()
	}
	return err.Error()
}

func (e workerChecks) sshFinding(check, text string, ids []tpu.WorkerID, err error) Finding {
	f := Finding{Check: check, Level: Error, Workers: tpu.Fold(ids), count: len(ids), Text: text, Advice: hint(err)}
	var key *remote.HostKeyError
	switch {
	case errors.As(err, &key) && key.Accept != "" && !key.Contradicted:
		f.Cure = e.again(key.Accept)
	case errors.Is(err, remote.ErrKeyRefused) && e.Hosts == nil:
		f.Cure = e.doctorAgain()
		f.fix = func(ctx context.Context) error {
			var asked []string
			var errs []error
			for _, s := range e.sel.Slices {
				s.Metadata = nil // read it again, because another writer may have changed it
				_, _, err := e.Provider.Admit(ctx, s, e.login())
				asked, errs = append(asked, s.Name), append(errs, err)
			}
			return stage.JoinNamed(asked, errs)
		}
	}
	return f
}

// way returns the check of the connections to workers.
func (e workerChecks) way() string {
	if e.Cluster != nil {
		return CheckExec
	}
	return CheckSSH
}

// checkHostKeys reports the workers for which the API gives the host keys.
func (e workerChecks) checkHostKeys(ctx context.Context, all []*seen) {
	if e.Hosts != nil {
		e.fine(CheckHostKeys, idsOf(all), "the keys that earlier commands have pinned, if any; no cloud knows these machines, so the first command that connects pins the keys that it finds")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, s := range all {
		group.Go(func() { _, _, errs[i] = e.Provider.HostKeys(ctx, e.sel.Slices[s.id.Slice], s.id.Worker) })
	}
	group.Wait()
	var known []tpu.WorkerID
	untold, other := &finder{}, &finder{}
	for i, s := range all {
		switch {
		case errs[i] == nil:
			known = append(known, s.id)
		case errors.Is(errs[i], provision.ErrNoHostKeys):
			untold.add("the API does not know the keys, so the first command that connects trusts and pins the keys that it finds; an organization policy (compute.disableGuestAttributesAccess) may forbid them", s.id)
		default:
			other.add("not checked: "+errs[i].Error(), s.id)
		}
	}
	e.emit(untold, CheckHostKeys, Warning, nil)
	e.emit(other, CheckHostKeys, Unknown, nil)
	if len(known) > 0 {
		e.fine(CheckHostKeys, known, "as the API tells them")
	}
}

func idsOf(all []*seen) []tpu.WorkerID {
	ids := make([]tpu.WorkerID, len(all))
	for i, s := range all {
		ids[i] = s.id
	}
	return ids
}

func (e workerChecks) judgeClocks(all []*seen) {
	off := &finder{}
	var worst time.Duration
	var fine []tpu.WorkerID
	for _, s := range all {
		if s.errs[CheckSSH] != nil {
			continue
		}
		if s.offset.Abs() >= clockLimit {
			way := "ahead of"
			if s.offset < 0 {
				way = "behind"
			}
			off.add(fmt.Sprintf("%s %s this machine's; tokens and certificates may be refused", event.Duration(s.offset.Abs().Round(10*time.Second)), way), s.id)
			continue
		}
		fine = append(fine, s.id)
		worst = max(worst, s.offset.Abs())
	}
	everybody := len(off.texts) == 1 && len(fine) == 0 && len(all) > 1
	e.emit(off, CheckClock, Warning, func(_ string, ids []tpu.WorkerID) string {
		if everybody {
			return "sudo systemctl restart chrony" // this machine's clock is wrong
		}
		return e.exec(ids, true, "systemctl", "restart", "chrony")
	})
	if len(fine) > 0 {
		e.fine(CheckClock, fine, "at most %s off", event.Duration(worst))
	}
}

// setting returns one result of the preflight.
func (s *seen) setting(name string) (preflight.Result, bool) {
	for _, r := range s.report.Results {
		if r.Setting == name {
			return r, true
		}
	}
	return preflight.Result{}, false
}

func (e workerChecks) judgeDevices(all []*seen) {
	if e.Hosts != nil {
		return
	}
	missing := &finder{}
	fine := map[int][]tpu.WorkerID{} // by number
	for _, s := range all {
		r, ok := s.setting("tpu_devices")
		switch {
		case !ok:
		case r.Outcome == preflight.Failed:
			missing.add(r.Reason, s.id)
		default:
			fine[s.report.Devices] = append(fine[s.report.Devices], s.id)
		}
	}
	for _, text := range missing.texts {
		ids := missing.at[text]
		e.add(Finding{Check: CheckDevices, Level: Error, Workers: tpu.Fold(ids), count: len(ids), Text: text,
			Advice: "a reboot may bring the chips back; if it does not, the slice has to be made anew", Cure: e.exec(ids, true, "systemctl", "reboot")})
	}
	for _, n := range slices.Sorted(maps.Keys(fine)) {
		e.fine(CheckDevices, fine[n], "%s each, as the type has", event.Count(n, "TPU device"))
	}
}

func (e workerChecks) judgeHolders(all []*seen) {
	if e.Hosts != nil {
		return
	}
	used, blind, unasked := &finder{}, &finder{}, &finder{}
	pids := map[string]map[tpu.WorkerID][]string{}
	cures := map[string]launch.Process{}
	var free []tpu.WorkerID
	for _, s := range all {
		switch {
		case s.errs[CheckHolders] != nil:
			unasked.add("not checked: "+cause(s.errs[CheckHolders]), s.id)
			continue
		case s.blind != "":
			blind.add("processes of other users are not seen: "+s.blind, s.id)
		case len(s.holders) == 0:
			free = append(free, s.id)
		}
		for _, p := range s.holders {
			text := fmt.Sprintf("%s of %s uses the TPU", short(p.Command), p.User)
			switch {
			case p.RunAlive:
				text = fmt.Sprintf("run %s uses the TPU", p.Run.Run)
			case p.Run.Run != "":
				text = fmt.Sprintf("%s, left of run %s, uses the TPU", short(p.Command), p.Run.Run)
			}
			if pids[text] == nil {
				pids[text] = map[tpu.WorkerID][]string{}
			}
			if len(pids[text][s.id]) == 0 {
				used.add(text, s.id)
			}
			pids[text][s.id] = append(pids[text][s.id], strconv.Itoa(p.PID))
			cures[text] = p
		}
	}
	e.emit(used, CheckHolders, Warning, func(text string, ids []tpu.WorkerID) string {
		p := cures[text]
		if p.RunAlive {
			return e.command("stop", p.Run.Run)
		}
		if len(ids) == 1 {
			return e.exec(ids, true, append([]string{"kill"}, pids[text][ids[0]]...)...)
		}
		return e.exec(ids, true, "bash", "-c", killHolders)
	})
	e.emit(blind, CheckHolders, Unknown, nil)
	e.emit(unasked, CheckHolders, Unknown, nil)
	if len(free) > 0 {
		e.fine(CheckHolders, free, "nobody")
	}
}

// killHolders kills every process that has a TPU device open. It needs only a shell.
const killHolders = `for f in /proc/[0-9]*/fd/*; do case $(readlink "$f") in /dev/accel[0-9]*|/dev/vfio/[0-9]*) f=${f#/proc/}; kill "${f%%/*}";; esac; done`

func short(command string) string {
	if len(command) > 60 {
		return command[:57] + "..."
	}
	return command
}

func (e workerChecks) judgeSettings(all []*seen) {
	unknown, wrong := &finder{}, &finder{}
	var fine []tpu.WorkerID
	absent := map[string][]tpu.WorkerID{}
	for _, s := range all {
		if err := s.errs[CheckSettings]; err != nil {
			unknown.add("not checked: "+cause(err), s.id)
			continue
		}
		var names []string
		for _, r := range s.report.Failures() {
			switch {
			case r.Setting == "tpu_devices":
			case r.Setting == "mtu":
				e.mtuWrong(s, r)
				s.wrongMTU = true
			default:
				names = append(names, r.Setting)
			}
		}
		if len(names) > 0 {
			wrong.add(fmt.Sprintf("%d of %d are not as training wants them; every start sets them", len(names), len(s.report.Results)), s.id)
		} else {
			fine = append(fine, s.id)
		}
		if s.facts != nil {
			for _, tool := range []string{"numactl", "ethtool"} {
				if !slices.Contains(s.tools, tool) {
					absent[tool] = append(absent[tool], s.id)
				}
			}
		}
	}
	e.emit(unknown, CheckSettings, Unknown, nil)
	// Every start sets them, so it is no fault that they are not set yet.
	e.emit(wrong, CheckSettings, OK, nil)
	if len(wrong.texts) == 0 && len(fine) > 0 {
		e.fine(CheckSettings, fine, "as training wants them")
	}
	for _, tool := range slices.Sorted(maps.Keys(absent)) {
		ids := absent[tool]
		e.add(Finding{Check: CheckSettings, Level: Warning, Workers: tpu.Fold(ids), count: len(ids), Text: tool + " is not installed",
			Cure: e.command("preflight", "apply", "--install", e.target())})
	}
}

// mtuWrong adds the finding for a worker whose interface has another MTU than its network.
func (e workerChecks) mtuWrong(s *seen, r preflight.Result) {
	device, rest, _ := strings.Cut(r.Reason, " has mtu ")
	if rest == "" || strings.ContainsAny(device, " /") {
		e.add(Finding{Check: CheckPacket, Level: Warning, Workers: s.id.String(), count: 1, Text: r.Reason})
		return
	}
	e.add(Finding{Check: CheckPacket, Level: Error, Workers: s.id.String(), count: 1, Text: r.Reason,
		Cure: e.exec([]tpu.WorkerID{s.id}, true, "ip", "link", "set", "dev", device, "mtu", r.Want)})
}

func (e workerChecks) judgeDisks(all []*seen) {
	low := &finder{}
	var fine []tpu.WorkerID
	least := int64(-1)
	for _, s := range all {
		if s.facts == nil {
			continue
		}
		scarceHere := false
		for _, disk := range []string{"home", "tmp"} {
			free, size := room(s.facts[disk])
			if size <= 0 {
				continue
			}
			if disk == "home" && (least < 0 || free < least) {
				least = free
			}
			if free < size/scarce {
				scarceHere = true
				where := map[string]string{"home": "the home", "tmp": "/tmp"}[disk]
				low.add(fmt.Sprintf("the disk of %s is more than nine tenths full", where), s.id)
			}
		}
		if !scarceHere {
			fine = append(fine, s.id)
		}
	}
	e.emit(low, CheckDisk, Warning, func(text string, ids []tpu.WorkerID) string {
		if strings.Contains(text, "/tmp") {
			return e.exec(ids, false, "bash", "-c", "df -h /tmp; du -xsh /tmp/* | sort -h | tail")
		}
		// The store only saves transfers, so it may be deleted. We must not delete anything
		// else in the home.
		return e.exec(ids, false, "bash", "-c", "rm -rf ~/.multihost/store; df -h ~; du -xsh ~/* | sort -h | tail")
	})
	if len(fine) > 0 {
		e.fine(CheckDisk, fine, "%s or more free for homes", event.Bytes(max(least, 0)))
	}
}

// room parses "FREE SIZE", in bytes.
func room(text string) (free, size int64) {
	a, b, _ := strings.Cut(text, " ")
	free, err1 := strconv.ParseInt(a, 10, 64)
	size, err2 := strconv.ParseInt(b, 10, 64)
	if errors.Join(err1, err2) != nil {
		return 0, 0
	}
	return free, size
}

// shown are the facts that should be the same on all workers.
var shown = []string{"kernel", "python", "jax", "jaxlib", "libtpu", "libtpu-nightly"}

func (e workerChecks) judgeVersions(all []*seen) {
	unknown := &finder{}
	var asked []*seen
	for _, s := range all {
		if err := s.errs[CheckVersions]; err != nil {
			unknown.add("not checked: "+cause(err), s.id)
			continue
		}
		if s.facts != nil {
			asked = append(asked, s)
		}
	}
	e.emit(unknown, CheckVersions, Unknown, nil)
	if len(asked) == 0 {
		return
	}
	var same []string
	for _, name := range shown {
		values := &finder{}
		for _, s := range asked {
			value := s.facts[name]
			if value == "" {
				value = "none"
			}
			values.add(value, s.id)
		}
		if len(values.texts) == 1 {
			if values.texts[0] != "none" {
				same = append(same, name+" "+values.texts[0])
			} else if name == "jax" {
				same = append(same, "no jax")
			}
			continue
		}
		e.unlike(name, values)
	}
	if len(same) > 0 {
		e.fine(CheckVersions, idsOf(asked), "%s", strings.Join(same, ", "))
	}
}

// unlike adds the finding for a version that differs between workers. The most frequent
// version counts as the right one.
func (e workerChecks) unlike(name string, values *finder) {
	most := values.texts[0]
	var parts []string
	for _, v := range values.texts {
		if len(values.at[v]) > len(values.at[most]) {
			most = v
		}
		parts = append(parts, fmt.Sprintf("%s on %s", v, tpu.Fold(values.at[v])))
	}
	var odd []tpu.WorkerID
	for _, v := range values.texts {
		if v != most {
			odd = append(odd, values.at[v]...)
		}
	}
	f := Finding{Check: CheckVersions, Level: Warning, Workers: tpu.Fold(odd), count: len(odd), Text: fmt.Sprintf("%s differs: %s", name, strings.Join(parts, ", "))}
	switch {
	case name == "kernel" || name == "python":
		f.Advice = "slices of one runtime version are alike unless somebody changed them; make the odd one anew"
	case most == "none":
		f.Cure = e.exec(odd, false, "python3", "-m", "pip", "uninstall", "-y", name)
	default:
		f.Cure = e.exec(odd, false, "python3", "-m", "pip", "install", name+"=="+most)
	}
	e.add(f)
}
