package launch

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/config"
	"multihost/internal/remote"
)

// Status asks the worker for the state of one attempt. If nobody saw the end, because of a
// reboot or a killed supervisor, Status records on the worker that the command is lost.
func Status(ctx context.Context, r remote.Runner, ref Ref) (State, error) {
	if err := ref.check(); err != nil {
		return State{}, err
	}
	records, err := call(ctx, r, "status", statusScript, ref.args()...)
	if err != nil {
		return State{}, err
	}
	return parseState(ref, records), nil
}

// parseState reads an answer of status.sh or release.sh about one attempt.
func parseState(ref Ref, records []remote.Record) State {
	s := State{Ref: ref, Phase: Unknown, LogLimit: -1}
	var b builder
	for _, rec := range records {
		if b.take(rec) {
			continue
		}
		switch rec.Word {
		case "log":
			f := rec.Fields(2)
			s.LogSize, s.LogTime = number(f[0]), seconds(f[1])
		case "disk":
			s.Disk = parseDisk(rec.Rest)
		case "limit":
			s.LogLimit = number(rec.Rest)
		case "dropped":
			s.Dropped = number(rec.Rest)
		case "processes":
			f := rec.Fields(2)
			s.Left, s.CPU = int(number(f[0])), time.Duration(min(number(f[1]), 1<<43))*time.Millisecond
		}
	}
	for _, i := range b.infos {
		if i.Ref != ref {
			continue // about another attempt
		}
		s.Phase, s.Dir, s.PID, s.Supervisor = i.Phase, i.Dir, i.PID, i.Supervisor
		s.Supervised, s.Armed, s.Started, s.Exit = i.supervised, i.Armed, i.Started, i.Exit
	}
	s.Now = b.now
	return s
}

// parseDisk reads "FREE ALL SIZE": free blocks, all blocks, and bytes of a block.
func parseDisk(text string) Disk {
	f := remote.Record{Rest: text}.Fields(3)
	const most = 1 << 40 // limit in blocks, so that no product overflows
	size := min(number(f[2]), 1<<22)
	return Disk{Free: min(number(f[0]), most) * size, Size: min(number(f[1]), most) * size}
}

// seconds reads a Unix time, for example 1700000000.123456789.
func seconds(s string) time.Time {
	whole, frac, _ := strings.Cut(s, ".")
	n := number(whole)
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(n, number((frac + "000000000")[:9]))
}

// List returns the active and ended runs that the worker knows, oldest first. It returns
// the runs of every login whose files can be read.
//
// Like Status, List records an end that nobody saw.
func List(ctx context.Context, r remote.Runner) ([]Info, error) { return list(ctx, r) }

// Look does what List does, but records nothing on the worker. A run whose end nobody saw is
// then Lost and has no Exit.
func Look(ctx context.Context, r remote.Runner) ([]Info, error) { return list(ctx, reading{r}, "look") }

// reading is a Runner for operations that change nothing on the worker.
type reading struct{ remote.Runner }

func (r reading) Run(ctx context.Context, cmd remote.Cmd) (remote.Status, error) {
	cmd.ReadOnly = true
	return r.Runner.Run(ctx, cmd)
}

func list(ctx context.Context, r remote.Runner, args ...string) ([]Info, error) {
	records, err := call(ctx, r, "list", listScript, args...)
	if err != nil {
		return nil, err
	}
	return parseInfos(records), nil
}

func parseInfos(records []remote.Record) []Info {
	var b builder
	for _, rec := range records {
		b.take(rec)
	}
	infos := make([]Info, 0, len(b.infos))
	for _, i := range b.infos {
		if i.check() != nil {
			continue // our script never reports such a name or attempt
		}
		i.Now = b.now
		infos = append(infos, i.Info)
	}
	sortByTime(infos)
	return infos
}

func sortByTime(infos []Info) {
	less := func(a, b Info) int {
		if c := a.Armed.Compare(b.Armed); c != 0 {
			return c
		}
		if c := strings.Compare(a.Run, b.Run); c != 0 {
			return c
		}
		return a.Attempt - b.Attempt
	}
	slices.SortFunc(infos, less)
}

type builtInfo struct {
	Info
	supervised bool
	coded      bool // the record of the end has an exit code
	lost       bool // the record of the end says that the command was lost
}

type builder struct {
	infos []builtInfo
	now   time.Time
}

// take adds a record about a run, or the worker's time. It returns false for other records.
func (b *builder) take(rec remote.Record) bool {
	switch rec.Word {
	case "now":
		b.now = instant(rec.Rest)
		return true
	case "run":
		f := rec.Fields(2)
		b.infos = append(b.infos, builtInfo{Info: Info{Ref: Ref{Run: remote.Clean(f[0], config.MaxRunName), Attempt: int(number(f[1]))}, Phase: Unknown}})
		return true
	}
	if len(b.infos) == 0 {
		return false
	}
	return b.infos[len(b.infos)-1].take(rec)
}

// take adds a record about the run. It returns false for other records.
func (i *builtInfo) take(rec remote.Record) bool {
	switch rec.Word {
	case "dir":
		i.Dir = remote.Clean(rec.Rest, 4096)
	case "phase":
		i.Phase = parsePhase(rec.Rest)
	case "supervisor":
		f := rec.Fields(3)
		i.Supervisor, i.supervised, i.Armed = int(number(f[0])), f[1] == "1", instant(f[2])
	case "started":
		f := rec.Fields(2)
		i.PID, i.Started = int(number(f[0])), instant(f[1])
	case "exit":
		f := rec.Fields(2)
		i.ended(f[0], f[1])
	case "mine":
		i.Mine = rec.Rest == "1"
	case "login":
		i.Login = remote.Clean(rec.Rest, 100)
	case "owner":
		i.Owner = remote.Clean(rec.Rest, 200)
	case "command":
		i.Command = remote.Clean(rec.Rest, 500)
	case "venv":
		i.Venv = rec.Rest == "1"
	case "slices":
		i.Slices = int(min(number(rec.Rest), 1<<20))
	case "followers":
		i.Followers = int(min(number(rec.Rest), 1<<20))
	case "verdict":
		i.Verdict = remote.Clean(rec.Rest, 200)
	case "seen":
		i.Seen = rec.Rest == "1"
	case "stopped":
		i.Stopped = parseStopped(rec.Rest)
	default:
		return false
	}
	return true
}

// parseStopped reads "TIME REASON".
func parseStopped(text string) Stopped {
	at, reason, _ := strings.Cut(text, " ")
	return Stopped{At: instant(at), Reason: remote.Clean(reason, 500)}
}

// ended adds one line from the record of the end.
func (i *builtInfo) ended(key, value string) {
	if i.Exit == nil {
		i.Exit = &Exit{}
	}
	switch key {
	case "code":
		n, err := strconv.ParseUint(value, 10, 8)
		if i.coded = err == nil; i.coded {
			i.Exit.Code = int(n)
		}
	case "lost":
		i.lost = value == "1"
	default:
		i.Exit.set(key, value)
	}
	if i.Exit.Lost = i.lost || !i.coded; !i.coded {
		i.Exit.Code = 255 // an unknown exit code is no success
	}
}

func parsePhase(s string) Phase {
	switch p := Phase(s); p {
	case Starting, Running, Exited, Aborted, Lost:
		return p
	}
	return Unknown
}

var digits = regexp.MustCompile(`^[0-9]{1,6}$`)

var signalName = regexp.MustCompile(`^[A-Z0-9+-]{1,12}$`)

func (e *Exit) set(key, value string) {
	switch key {
	case "signal":
		if signalName.MatchString(value) {
			e.Signal = value
		}
	case "end":
		e.End = instant(value)
	case "size":
		e.LogSize = number(value)
	case "dropped":
		e.Dropped = number(value)
	case "oom":
		e.OOM = value == "1"
	case "process":
		if digits.MatchString(value) {
			e.Process = value
		}
	case "reason":
		e.Reason = remote.Clean(value, 1000)
	}
}

func parseProcess(rec remote.Record) Process {
	f := rec.Fields(10)
	p := Process{
		PID:      int(number(f[0])),
		Mine:     f[1] == "1",
		Age:      time.Duration(min(number(f[2]), 1<<33)) * time.Second,
		User:     remote.Clean(f[3], 100),
		RunAlive: f[7] == "1",
		Device:   dash(f[8]),
		Command:  remote.Clean(f[9], 300),
	}
	if engine, id, found := strings.Cut(f[4], ":"); found {
		p.Engine, p.Container = remote.Clean(engine, 20), remote.Clean(id, 100)
	}
	if ref := (Ref{f[5], int(number(f[6]))}); ref.check() == nil {
		p.Run = ref
	}
	return p
}

func dash(s string) string {
	if s == "-" {
		return ""
	}
	return remote.Clean(s, 200)
}
