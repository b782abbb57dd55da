//go:build unix

package detached

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"multihost/internal/agent"
)

// A doer carries out the actions that the machine decides on.
type doer struct {
	*worker
	start  starter
	end    ender
	failed failures // result of the last look at the ends of the attempt
}

// work carries out the actions of the machine. It returns when the machine returns leave.
func (w *doer) work(ctx context.Context) error {
	s := &sight{}
	s.forget()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.now, s.goingDown = time.Now(), w.disk.goingDown(time.Now())
		a := w.m.next(s)
		switch a.do {
		case leave:
			return nil
		case look:
			w.look(ctx, a.at, s)
			s.looked[a.at] = true
		case wait:
			_ = agent.Sleep(ctx, a.during)
			s = &sight{}
			s.forget()
		default:
			w.do(ctx, a, s)
			s.did[a.do] = true
		}
	}
}

// mostTurn limits how long a worker lets other workers go first.
const mostTurn = 30 * time.Second

// do carries out an action other than look or wait. If the action fails, the machine
// repeats or postpones it.
func (w *doer) do(ctx context.Context, a action, s *sight) {
	switch a.do {
	case fetch:
		s.err = fetcher{w.worker}.fetch(ctx)
	case say:
		_ = w.report(ctx, a.text, a.more)
	case takeTurn:
		_ = agent.Sleep(ctx, min(time.Duration(w.me.index(w.job))*time.Second, mostTurn))
		delete(s.looked, ofAttempt)
	case sit:
		s.err = w.bucket.write(ctx, w.bucket.seats(w.m.attempt)+w.me.seat(), []byte(w.me.Own+"\n"), agent.AnyVersion)
	case announce:
		s.err = w.patiently(ctx, w.job.Patience, func() error { return w.announce(ctx, a.n, s) })
	case remove:
		if s.err = w.client.Delete(ctx, w.job.Deletions); agent.StatusOf(s.err) == http.StatusForbidden {
			w.right = "no: " + oneLine(s.err.Error())
		}
	case prepare, arm, stopCommand:
		w.doCommand(ctx, a, s)
	default:
		w.doEnd(ctx, a, s)
	}
}

func (w *doer) announce(ctx context.Context, attempt int, s *sight) error {
	begun, err := w.bucket.announce(ctx, attempt)
	if err == nil {
		s.wanted, s.wantedErr = begun, nil
	}
	return err
}

// doCommand carries out the actions that begin and stop the command.
func (w *doer) doCommand(ctx context.Context, a action, s *sight) {
	switch a.do {
	case prepare:
		_ = w.report(ctx, "preflight", "")
		s.code, s.err = w.start.prepare(ctx)
		delete(s.looked, ofStop)
	case arm:
		_ = w.report(ctx, "start", fmt.Sprintf("attempt %d", w.m.attempt))
		s.life, s.err = w.start.arm(ctx)
		delete(s.looked, ofCommand)
	case stopCommand:
		if w.m.stopAsked.Equal(w.m.stopFrom) {
			agent.Note(w.cfg.Out, "stopping the command: %s", a.text)
		}
		w.stop(ctx, a.text)
	}
}

// doEnd carries out the actions that tell other workers of logs, stops and ends.
func (w *doer) doEnd(ctx context.Context, a action, s *sight) {
	switch a.do {
	case sendLog:
		_ = w.end.sendLog(ctx)
	case sendRest:
		w.end.sendRest(ctx)
	case tellStop:
		_ = w.end.tellStop(ctx)
	case tellEnd:
		_ = w.end.tellEnd(ctx)
	case finish:
		s.err = w.end.finish(ctx, s.life)
	case giveUp:
		w.end.giveUp(ctx, a.code, a.text)
	case loseDisk:
		w.end.loseDisk(ctx, a.n)
	case keepEnd:
		touch(w.disk.path("told."+strconv.Itoa(a.n)), s.now)
	case keepSince:
		s.keptFrom = w.keptFrom(a.n, s.now)
	}
}

func (w *doer) look(ctx context.Context, at subject, s *sight) {
	switch at {
	case ofCommand:
		w.lookAtCommand(ctx, s)
	case ofAttempt:
		s.wanted, _, s.wantedErr = w.bucket.wanted(ctx)
	case ofFirst:
		s.firstErr = w.patiently(ctx, w.job.Patience, func() (err error) {
			s.first, err = w.bucket.first(ctx)
			return err
		})
	case ofSeats:
		s.absent, s.absentErr = w.lookAtSeats(ctx)
	case ofStop:
		s.stop = w.bucket.asked(ctx, "stop")
	case ofFailed:
		s.failed = w.bucket.asked(ctx, "failed-"+strconv.Itoa(w.m.attempt))
	case ofEnds:
		s.ends, w.failed, s.endsErr = w.bucket.ends(ctx, w.m.attempt, w.firstBoot)
		if s.endsErr == nil && s.ends.all {
			delete(s.looked, ofAttempt)
		}
	case ofUnsent:
		s.unsent, s.unsentErr = w.bucket.notWhole(ctx, w.m.attempt)
	case ofExcuses:
		s.excused = w.bucket.judge(ctx, w.m.attempt, s.ends.failures, w.failed)
	}
}

// lookAtSeats finds out which workers are not yet ready for the attempt. If all are ready,
// it notes the address of worker 0.
func (w *doer) lookAtSeats(ctx context.Context) (missing string, err error) {
	all, _, err := w.bucket.List(ctx, w.bucket.seats(w.m.attempt))
	if err != nil {
		return "", err
	}
	names, first := make([]string, len(all)), agent.Object{}
	for i, o := range all {
		names[i] = o.Name
		if m := seatName.FindStringSubmatch(o.Name); m != nil && m[1] == nameOf(0, 0) && o.Updated.After(first.Updated) {
			first = o
		}
	}
	if missing = absent(w.job, names); missing != "" {
		return missing, nil
	}
	address, _, err := w.bucket.Read(ctx, first.Name)
	if err == nil {
		w.me.Coordinator = strings.TrimSpace(string(address))
	}
	return "", err
}

// lookAtCommand asks for the state of the command. After a boot, or if the attempt had
// already begun, it retries for longer.
func (w *doer) lookAtCommand(ctx context.Context, s *sight) {
	ask := func() (err error) {
		s.life, err = w.status(ctx, w.m.attempt)
		return err
	}
	if w.m.at != attending {
		s.lifeErr = w.patiently(ctx, w.job.Patience, ask)
		s.rebooted, _ = w.disk.here(w.m.attempt, s.life, w.cfg.Proc).wentDown()
		return
	}
	s.lifeErr = ask()
	if s.lifeErr != nil || s.life == starting || s.life == running || s.life == unknown {
		touch(w.disk.path("seen."+strconv.Itoa(w.m.attempt)), time.Now())
	}
	s.started = w.disk.started(w.m.attempt)
}

// keptFrom returns since when the slices are kept after an attempt. That time may lie
// before a reboot.
func (w *doer) keptFrom(attempt int, now time.Time) time.Time {
	name := "kept." + strconv.Itoa(attempt)
	if at, err := strconv.ParseInt(w.disk.recall(name), 10, 64); err == nil {
		return time.Unix(at, 0)
	}
	w.disk.remember(name, strconv.FormatInt(now.Unix(), 10))
	return now
}
