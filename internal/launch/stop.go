package launch

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"multihost/internal/remote"
)

type StopOptions struct {
	Grace  time.Duration // time between TERM and KILL; may be 0
	Reach  time.Duration // limit for reaching the worker; 0: the connection's own limits
	Reason string        // who stops the run and why: "fail-fast by ann@laptop"
	Mark   bool          // set Info.Stopped of the attempt, even if it has ended
}

// Stop ends every process of the run on the worker. These are
//
//   - the processes of its session;
//   - the processes whose environment names the run;
//   - the processes whose output is the run's pipe;
//   - the processes without a parent in the control group of the SSH session that started
//     the run;
//   - the descendants of all these.
//
// Stop sends TERM, waits for the grace time, sends KILL, and waits at most 10 s more. It may
// be repeated, and several Stops may run at the same time. The worker keeps the first
// reason. The report has the processes that are left. An unknown or an ended run is no
// error.
func Stop(ctx context.Context, r remote.Runner, ref Ref, opts StopOptions) (StopReport, error) {
	if err := ref.check(); err != nil {
		return StopReport{}, err
	}
	reason := remote.Clean(opts.Reason, 500)
	if reason == "" {
		reason = "stopped"
	}
	return stop(ctx, r, ref, opts, reason)
}

// Sweep ends the processes that an ended run left behind on the worker, as Stop does, and
// reports who then holds the TPU. If nothing is left, it costs one look at the process
// table. If the run is active, Sweep leaves it alone and returns ErrStillRuns.
func Sweep(ctx context.Context, r remote.Runner, ref Ref, opts StopOptions) (StopReport, error) {
	if err := ref.check(); err != nil {
		return StopReport{}, err
	}
	report, err := stop(ctx, r, ref, opts, "")
	if err == nil && (report.Phase == Starting || report.Phase == Running) {
		err = fmt.Errorf("sweep %q on %s: %w", ref.Label(), r.Name(), ErrStillRuns)
	}
	return report, err
}

func stop(ctx context.Context, r remote.Runner, ref Ref, opts StopOptions, reason string) (StopReport, error) {
	args := append(ref.args(), milliseconds(opts.Grace), reason)
	if opts.Mark {
		args = append(args, "1")
	}
	records, err := callWithin(ctx, opts.Grace+answerLimit, opts.Reach, r, "stop", stopScript, args...)
	if err != nil {
		return StopReport{}, err
	}
	state := parseState(ref, records)
	report := StopReport{Phase: state.Phase, Exit: state.Exit}
	for _, rec := range records {
		switch rec.Word {
		case "counts":
			f := rec.Fields(2)
			report.Found, report.Killed = int(number(f[0])), int(number(f[1]))
		case "blind":
			report.Blind = remote.Clean(rec.Rest, 200)
		case "unmarked":
			report.Unmarked = true
		case "survivor":
			report.Survivors = append(report.Survivors, parseProcess(rec))
		case "holder":
			report.Devices = append(report.Devices, parseProcess(rec))
		}
	}
	return report, nil
}

func milliseconds(grace time.Duration) string { return strconv.FormatInt(grace.Milliseconds(), 10) }

// FreePolicy says whose processes FreeTPU may end.
type FreePolicy string

// The policies of FreeTPU. None of them ends a process of an active run.
const (
	FreeOrphans FreePolicy = "orphans" // processes of this login's own ended runs
	FreeAll     FreePolicy = "all"     // also processes of other users and of containers
	FreeCheck   FreePolicy = "check"   // no processes
)

type FreeOptions struct {
	Policy FreePolicy // empty means FreeOrphans
	Grace  time.Duration
	Look   bool // end no process: FreeReport.Stopped then has the processes that would end
}

// FreeReport is the result of FreeTPU on one worker.
type FreeReport struct {
	Devices     int       // TPU device files on the worker
	Blind       string    // why root is not available, so that holders of other users are not seen; "" when root is available
	Stopped     []Process // ended processes
	LockRemoved bool      // /tmp/libtpu_lockfile existed and was removed
}

// FreeTPU makes the TPU of the worker free. It ends the processes that have a TPU device
// file open or mapped, with TERM, the grace time and KILL. Once no process holds a device,
// it removes libtpu's lock file. If the policy does not allow FreeTPU to end one of the
// processes, it ends none. *HoldersError names the processes that hold a device.
func FreeTPU(ctx context.Context, r remote.Runner, opts FreeOptions) (FreeReport, error) {
	if opts.Policy == "" {
		opts.Policy = FreeOrphans
	}
	switch opts.Policy {
	case FreeOrphans, FreeAll, FreeCheck:
	default:
		return FreeReport{}, fmt.Errorf("free TPU: policy %q: want orphans, all or check", opts.Policy)
	}
	look := "0"
	if opts.Look {
		look = "1"
	}
	if opts.Look || opts.Policy == FreeCheck {
		r = reading{r}
	}
	records, err := callWithin(ctx, opts.Grace+answerLimit, 0, r, "free", freeScript, string(opts.Policy), milliseconds(opts.Grace), look)
	if err != nil {
		return FreeReport{}, err
	}
	var report FreeReport
	var left []Process
	for _, rec := range records {
		switch rec.Word {
		case "devices":
			report.Devices = int(number(rec.Rest))
		case "blind":
			report.Blind = remote.Clean(rec.Rest, 200)
		case "stopped":
			report.Stopped = append(report.Stopped, parseProcess(rec))
		case "holder":
			left = append(left, parseProcess(rec))
		case "lock":
			report.LockRemoved = rec.Rest == "removed"
			if rec.Rest == "refused" {
				return report, &RemoteError{Worker: r.Name(), Op: "free TPU", Text: "remove /tmp/libtpu_lockfile: permission denied, and sudo is refused"}
			}
		}
	}
	if len(left) > 0 {
		return report, &HoldersError{Worker: r.Name(), Holders: left}
	}
	return report, nil
}
