//go:build unix

package detached

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Record says how a command ended. It has the lines KEY=VALUE of the file "exit" of the
// supervisor (package launch), in their order. It keeps lines with unknown keys.
type Record []string

func parseRecord(text string) Record {
	var r Record
	for line := range strings.Lines(text) {
		r = append(r, strings.TrimRight(line, "\n"))
	}
	return r
}

// newRecord returns the record of an attempt that ended before or without its command.
func newRecord(code int, end time.Time, lost bool, reason string) Record {
	at := "0"
	if !end.IsZero() {
		at = strconv.FormatInt(end.Unix(), 10) + "000000000"
	}
	return Record{"code=" + strconv.Itoa(code), "signal=", "end=" + at, "size=0", "oom=0", "lost=" + digit(lost), "dropped=0", "reason=" + oneLine(reason)}
}

func digit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", " ") }

// get returns the last value of a key.
func (r Record) get(key string) string {
	value := ""
	for _, line := range r {
		if k, v, ok := strings.Cut(line, "="); ok && k == key {
			value = v
		}
	}
	return value
}

var exitCode = regexp.MustCompile(`^[0-9]{1,3}$`)

func (r Record) code() (int, bool) {
	text := r.get("code")
	if !exitCode.MatchString(text) {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}

func (r Record) lost() bool { return r.get("lost") == "1" }

func (r Record) text() []byte { return []byte(strings.Join(r, "\n") + "\n") }

// replaced returns the record with this code and reason in place of its own. Nobody saw the
// new end.
func (r Record) replaced(code int, reason string) Record {
	var out Record
	for _, line := range r {
		switch key, _, _ := strings.Cut(line, "="); key {
		case "code", "signal", "lost", "reason":
		default:
			out = append(out, line)
		}
	}
	return append(out, fmt.Sprintf("code=%d", code), "signal=", "lost=1", "reason="+oneLine(reason))
}

var (
	nanoseconds = regexp.MustCompile(`^[0-9]{1,19}$`)
	seconds     = regexp.MustCompile(`^(-?[0-9]{1,10})?$`)
)

// end returns the time of the end in nanoseconds. If the worker's clock differs from the
// clock of Cloud Storage, end corrects the time to seconds, and rough is true. ok is false
// if nobody saw the end.
func (r Record) end() (at int64, rough, ok bool) {
	text, skew := r.get("end"), r.get("skew")
	if r.lost() || !nanoseconds.MatchString(text) || !seconds.MatchString(skew) {
		return 0, false, false
	}
	at, err := strconv.ParseInt(text, 10, 64)
	by, _ := strconv.ParseInt(skew, 10, 64)
	return at - by*int64(time.Second), by != 0, err == nil
}

// isTail reports whether the end looks like a training's tail. It does if the command, or a
// program that its shell ran, died by SIGABRT. It also does if the end of the output has
// the words of the distributed runtime. It does not if the end is unknown, if multihost
// caused it, or if the kernel killed the command for lack of memory.
func (r Record) isTail(words *regexp.Regexp, code int, lastLines string) bool {
	if words == nil {
		return false
	}
	for _, key := range []string{"lost", "oom", "reason"} {
		if v := r.get(key); v != "" && v != "0" {
			return false
		}
	}
	if r.get("signal") == "ABRT" || code == 134 {
		return true
	}
	for line := range strings.Lines(lastLines) {
		if words.MatchString(line) {
			return true
		}
	}
	return false
}

// A failure of another worker is excused if it comes within excuseWindow after worker 0's
// success.
const excuseWindow = time.Minute

// excused reports whether worker 0 has ended with success, and this end came within
// excuseWindow after that.
func (r Record) excused(lead Record) bool {
	end, rough, ok := r.end()
	first, roughly, known := lead.end()
	if r.get("tail") != "1" || !ok || !known {
		return false
	}
	slack := time.Duration(0)
	if rough || roughly {
		slack = 2 * time.Second
	}
	after := time.Duration(end - first)
	return after >= -slack && after < excuseWindow
}

// skew returns by how many seconds this worker's clock is ahead of the clock of Cloud
// Storage. It returns 0 if the duration of the request could explain the difference. The
// request began at before and ended at after, by this worker's clock.
func skew(before, date, after time.Time) int {
	switch {
	case date.IsZero():
		return 0
	case before.Unix()-date.Unix() > 2:
		return int(before.Unix() - date.Unix())
	case date.Unix()-after.Unix() > 2:
		return int(after.Unix() - date.Unix())
	}
	return 0
}

// An ending has the facts about the end of a command on this worker.
type ending struct {
	rebooted string // how the machine ended the attempt
	notBegun string // why the command did not start
	notAgain string // after a reboot: the stop that keeps the next attempt from beginning
	behind   int    // processes that the command had left in the background
	stopped  bool   // the worker had stopped the command
}

// conclude returns the record that the others get, and its exit code. failed reports
// whether the end is a failure that stops the others.
func (e ending) conclude(r Record) (out Record, code int, failed bool) {
	code, _ = r.code()
	reason := r.get("reason")
	if r.lost() && code == 0 {
		code = lostCode // an end that nobody saw is no success
	}
	if e.rebooted != "" {
		code, reason = lostCode, e.rebooted
	}
	if e.notBegun != "" {
		if reason != "" {
			reason += ", and "
		}
		reason += e.notBegun
	}
	if e.notAgain != "" {
		// Without the stop, another attempt would have begun after the reboot. So the stop
		// is the cause of the end.
		code, reason = stoppedCode, e.notAgain+"; "+reason
	}
	cut := e.stopped && code == 0 && strings.Contains(reason, maxRunFlag)
	if cut {
		code = stoppedCode // the worker stopped the command because the slices end, so work may be left
	}
	out = r
	if cut || e.rebooted != "" || e.notBegun != "" || e.notAgain != "" {
		out = r.replaced(code, reason)
	}
	if e.behind > 0 && reason == "" && !r.lost() {
		out = append(out, "behind="+strconv.Itoa(e.behind))
	}
	// A worker that was stopped or rebooted has not failed.
	failed = e.notBegun != "" || code != 0 && !e.stopped && !strings.Contains(reason, "rebooted")
	return out, code, failed
}

// Exit codes for ends that the command has not caused.
const (
	lostCode    = 255
	stoppedCode = 143
)

// An attemptHere is the state of an attempt on this worker's disk.
type attemptHere struct {
	life           life
	record         Record // nil: no record
	told           bool   // the other workers know the end
	stopped        bool   // the attempt has got an order to stop
	down           *string
	bootOf, bootIs string // the supervisor's boot, and this boot; "": not known
}

// wentDown reports whether a shutdown of the machine ended the attempt, and why. If the
// command ended with 0, or was stopped, the answer is no. Otherwise one of two signs is
// enough, whatever reason the record gives. The first sign: the shutdown script noted the
// shutdown before the end. The second sign: nobody reported the end in the same boot, and
// the supervisor was killed or the command died by TERM. A machine that shuts down sends
// TERM to all processes.
func (a attemptHere) wentDown() (reason string, yes bool) {
	if a.life != exited && a.life != lost || a.told || a.record == nil {
		return "", false
	}
	if a.record.get("code") == "0" || a.life == exited && a.stopped {
		return "", false
	}
	cause := ""
	if a.down != nil {
		cause = *a.down
	} else if a.bootOf == "" || a.bootOf == a.bootIs || a.life == exited && a.record.get("signal") != "TERM" {
		return "", false
	}
	reason = "the worker was rebooted"
	if cause != "" {
		reason += ": " + cause
	}
	return reason, true
}
