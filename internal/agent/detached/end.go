//go:build unix

package detached

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"time"

	"multihost/internal/agent"
)

// errNoRecord says that the worker does not know how an attempt ended.
var errNoRecord = errors.New("the record of the attempt is gone from this worker")

// An ender tells the other workers how attempts have ended here.
type ender struct {
	*worker
	record    Record // the end for the other workers
	unsentOut bool   // control/unsent-… says that the log in the bucket is not whole
}

// sendLog sends the part of the log that the bucket does not have.
func (w *ender) sendLog(ctx context.Context) error {
	return w.bucket.sendLog(ctx, w.disk.attempt(w.m.attempt, "output.log"), logName(w.me, w.m.attempt), piecesOfJob)
}

// finish stores how the attempt ended on this worker, after its log. The exit code is in
// the object's name, so one list call shows how a run ended.
func (w *ender) finish(ctx context.Context, is life) error {
	m := w.m
	if (is == exited || is == lost) && m.ending.rebooted == "" && m.ending.notAgain == "" {
		w.sweep(ctx)
	}
	w.bringLog(ctx)
	record := w.disk.record(m.attempt)
	if _, ok := record.code(); !ok {
		return errNoRecord
	}
	_, m.ending.stopped = w.disk.stopped(m.attempt)
	out, code, failed := m.ending.conclude(record)
	out = w.withSkew(ctx, out)
	m.endCode, m.endTold, m.failure = strconv.Itoa(code), false, ""
	if failed {
		m.failure = failFastReason
	}
	if failed && m.ending.notBegun == "" && w.isTail(out, code) {
		out = append(out, "tail=1")
		if !w.job.FailFast || w.awaitLead(ctx, out) {
			m.failure = ""
		}
	}
	w.record = out
	reason := out.get("reason")
	if w.job.CloudLogging {
		cloudLog{w.worker}.logEnd(reason)
	}
	_ = w.patiently(ctx, w.job.Patience, func() error { return w.tellEnd(ctx) }) // the state machine reports it later
	_ = w.report(ctx, "ended", m.endText(reason))
	return nil
}

// sweep ends the processes that the command has left in the background.
func (w *ender) sweep(ctx context.Context) {
	n := w.stop(ctx, "left behind by the command")
	if w.m.ending.behind = n; n > 0 {
		agent.Note(w.cfg.Out, "ended %d processes that the command had left in the background", n)
	}
}

// bringLog sends the rest of the log to the bucket. While the bucket refuses the log,
// bringLog retries until the log's own time limit has passed: deleting the slices would
// delete the only copy. If the machine ended the command, or other workers have begun the
// next attempt, bringLog retries only for the usual patience. The next attempt then need
// not wait.
func (w *ender) bringLog(ctx context.Context) {
	m := w.m
	m.unsent, w.unsentOut = "", false
	err := w.sendLog(ctx)
	if err == nil {
		return
	}
	patience := w.job.Patience
	wanted, _, unknown := w.bucket.wanted(ctx)
	if m.ending.rebooted == "" && m.ending.notAgain == "" && (unknown != nil || wanted <= m.attempt) {
		patience = w.job.LogTimeout
		_ = w.report(ctx, "logs", fmt.Sprintf("the command has ended; waiting up to %d s (--log-timeout) for the bucket to take its log: %v", int(patience.Seconds()), err))
	}
	if err := w.patiently(ctx, patience, func() error { return w.sendLog(ctx) }); err != nil {
		m.unsent = oneLine(err.Error())
		agent.Note(w.cfg.Out, "the log could not be sent: %s", m.unsent)
	}
}

// sendRest tries again to send the log that bringLog could not send.
func (w *ender) sendRest(ctx context.Context) {
	if w.sendLog(ctx) != nil {
		return
	}
	w.m.unsent = ""
	if w.unsentOut {
		_ = w.bucket.Remove(ctx, w.unsentName()) // the object delays the deletion by at most job.Stale
	}
}

func (w *ender) unsentName() string { return fmt.Sprintf("control/unsent-%d-%s", w.m.attempt, w.me) }

// withSkew notes in a record by how many seconds the clock of this worker is ahead of the
// clock of Cloud Storage. Only then can the ends of two workers be compared.
func (w *ender) withSkew(ctx context.Context, r Record) Record {
	before := time.Now()
	date, err := w.bucket.Clock(ctx, "control/attempt")
	if err != nil {
		return r
	}
	if n := skew(before, date, time.Now()); n != 0 {
		return append(r, "skew="+strconv.Itoa(n))
	}
	return r
}

// isTail searches the last tailLines lines of the output for the words of the runtime.
const tailLines = 20

func (w *ender) isTail(r Record, code int) bool {
	if w.me.index(w.job) == 0 {
		return false
	}
	return r.isTail(w.job.Tail, code, lastLines(w.disk.attempt(w.m.attempt, "output.log"), tailLines))
}

// lastLines returns the last n lines of a file, at most a MiB of them.
func lastLines(path string, n int) string {
	const most = 1 << 20
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from := max(info.Size()-most, 0)
	text, _ := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	at := len(bytes.TrimSuffix(text, []byte("\n")))
	for ; n > 0 && at >= 0; n-- {
		at = bytes.LastIndexByte(text[:at], '\n')
	}
	return string(text[at+1:])
}

var leadName = regexp.MustCompile(`/s0w0\.([0-9]+)$`)

// If the end of a worker looks like a training's tail, the worker waits leadLimit for the
// end of worker 0, because the two ends come in any order.
const leadLimit = time.Minute

// awaitLead waits for the end of worker 0. It reports whether the end of worker 0 excuses
// the end here.
func (w *ender) awaitLead(ctx context.Context, r Record) bool {
	failed := "failed-" + strconv.Itoa(w.m.attempt)
	for end := time.Now().Add(leadLimit); ; {
		code := w.leadCode(ctx)
		if code != "" && code != "0" {
			return false
		}
		if code == "0" {
			if text, _, err := w.bucket.Read(ctx, fmt.Sprintf("ended/%d/s0w0.0", w.m.attempt)); err == nil {
				return r.excused(parseRecord(string(text)))
			}
		} else if w.bucket.asked(ctx, failed) != "" || w.bucket.asked(ctx, "stop") != "" {
			return false
		}
		if !time.Now().Before(end) || agent.Sleep(ctx, min(w.job.Look, 5*time.Second)) != nil {
			return false
		}
	}
}

// leadCode returns the exit code of worker 0, or "" if it is not known.
func (w *ender) leadCode(ctx context.Context) string {
	all, _, err := w.bucket.List(ctx, fmt.Sprintf("ended/%d/s0w0.", w.m.attempt))
	if err != nil {
		return ""
	}
	for _, o := range all {
		if m := leadName.FindStringSubmatch(o.Name); m != nil {
			return m[1]
		}
	}
	return ""
}

// tellEnd stores in the bucket how the attempt ended here, without what the bucket already
// has. The end itself is the last object, because after a reboot it proves that the others
// exist.
func (w *ender) tellEnd(ctx context.Context) error {
	m := w.m
	if err := w.tellStop(ctx); err != nil {
		return err
	}
	if m.failure != "" {
		if err := w.bucket.writeFirst(ctx, "control/failed-"+strconv.Itoa(m.attempt), m.failure); err != nil {
			return err
		}
		m.failure = ""
	}
	if m.unsent != "" && !w.unsentOut {
		if err := w.bucket.write(ctx, w.unsentName(), []byte(m.unsent+"\n"), agent.AnyVersion); err != nil {
			return err
		}
		w.unsentOut = true
	}
	if m.endTold {
		return nil
	}
	if err := w.bucket.write(ctx, fmt.Sprintf("ended/%d/%s.%s", m.attempt, w.me, m.endCode), w.record.text(), agent.AnyVersion); err != nil {
		return err
	}
	m.endTold = true
	told := w.disk.path("told." + strconv.Itoa(m.attempt))
	if agent.WriteFile(told, w.record.text(), 0o644) != nil {
		touch(told, time.Now())
	}
	return nil
}

// tellStop tells the other workers of a stop that began here.
func (w *ender) tellStop(ctx context.Context) error {
	if w.m.stopText == "" {
		return nil
	}
	err := w.bucket.writeFirst(ctx, "control/stop", w.m.stopText)
	if err == nil {
		w.m.stopText = ""
	}
	return err
}

// giveUp stores that the attempt was given up, because its command could not be started or
// followed to its end.
func (w *ender) giveUp(ctx context.Context, code int, why string) {
	m := w.m
	w.record = w.withSkew(ctx, newRecord(code, time.Now(), false, why))
	m.endCode, m.endTold, m.failure = strconv.Itoa(code), false, ""
	if code != stoppedCode { // a stopped worker has not failed
		m.failure = failFastReason
	}
	if w.job.CloudLogging {
		cloudLog{w.worker}.logEnd(why)
	}
	_ = w.tellEnd(ctx) // the state machine retries later
	_ = w.report(ctx, "failed", why)
}

// loseDisk tells the other workers that an attempt was lost with the disk of this worker.
func (w *ender) loseDisk(ctx context.Context, attempt int) {
	m := w.m
	m.attempt, m.endCode, m.endTold = attempt, strconv.Itoa(lostCode), false
	w.record = newRecord(lostCode, time.Time{}, true, "the worker was rebooted, with an empty disk")
	_ = w.patiently(ctx, w.job.Patience, func() error { return w.tellEnd(ctx) })
}
