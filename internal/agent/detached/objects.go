//go:build unix

package detached

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"multihost/internal/agent"
)

// objects are the job's objects in the bucket. Package detach describes their names.
type objects struct {
	agent.Bucket
	job Job
	me  Place
}

// write makes or replaces a small object.
func (o objects) write(ctx context.Context, name string, text []byte, generation int64) error {
	return o.Write(ctx, name, bytes.NewReader(text), int64(len(text)), generation)
}

// writeFirst makes a small object. If the object exists already, writeFirst leaves it and
// returns no error.
func (o objects) writeFirst(ctx context.Context, name, text string) error {
	err := o.write(ctx, name, []byte(text+"\n"), 0)
	if agent.StatusOf(err) == http.StatusPreconditionFailed {
		return nil
	}
	return err
}

var attemptNumber = regexp.MustCompile(`^[0-9]{1,9}$`)

// wanted returns the newest attempt that any worker began, or 0. All workers join that
// attempt. generation is the generation of the object that names it.
func (o objects) wanted(ctx context.Context) (attempt int, generation int64, err error) {
	text, generation, err := o.Read(ctx, "control/attempt")
	if agent.StatusOf(err) == http.StatusNotFound {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	number := strings.TrimSuffix(string(text), "\n")
	if !attemptNumber.MatchString(number) {
		return 0, 0, fmt.Errorf("control/attempt is no number: %.40s", number)
	}
	attempt, err = strconv.Atoi(number)
	return attempt, generation, err
}

// announce tells the other workers that an attempt has begun. It returns that attempt, or a
// newer one that other workers have begun.
func (o objects) announce(ctx context.Context, attempt int) (int, error) {
	wanted, generation, err := o.wanted(ctx)
	if err != nil || wanted >= attempt {
		return wanted, err
	}
	return attempt, o.write(ctx, "control/attempt", []byte(strconv.Itoa(attempt)+"\n"), generation)
}

// first reads with which attempt a worker without a record begins, and what the bucket has
// of this worker in that attempt.
func (o objects) first(ctx context.Context) (first, error) {
	wanted, _, err := o.wanted(ctx)
	f := first{attempt: max(wanted, 1)}
	if err != nil {
		return f, err
	}
	_, _, err = o.Stat(ctx, logName(o.me, f.attempt))
	if agent.StatusOf(err) == http.StatusNotFound {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	ended, _, err := o.List(ctx, fmt.Sprintf("ended/%d/%s.", f.attempt, o.me))
	f.begun, f.ended = true, len(ended) > 0
	return f, err
}

// asked returns the reason in the object control/NAME. It returns "" if the object does not
// exist or cannot be read. If the object has no reason, asked returns a general text.
func (o objects) asked(ctx context.Context, name string) string {
	text, _, err := o.Read(ctx, "control/"+name)
	if err != nil {
		return ""
	}
	if line, _, _ := strings.Cut(string(text), "\n"); line != "" {
		return line
	}
	return "control/" + name + " is in the bucket"
}

var endName = regexp.MustCompile(`^ended/[0-9]+/(s[0-9]+w[0-9]+)\.([0-9]+)$`)

// failures are the objects below ended/N/ whose exit code is not 0, as WORKER.CODE.
type failures []string

// ends reports whether every worker has ended an attempt or is dead. It also returns the
// failures: their names and their number, in which all dead workers count as one. A worker
// is dead if it has reported nothing for job.Stale. It also counts as dead if the attempt
// is closed and the worker is not ready for it; see closed. boot is the first boot of this
// worker. For a worker that has never reported, the time counts from boot.
func (o objects) ends(ctx context.Context, attempt int, boot time.Time) (ends, failures, error) {
	all, _, err := o.List(ctx, fmt.Sprintf("ended/%d/", attempt))
	if err != nil {
		return ends{}, nil, err
	}
	seen, failed := map[string]bool{}, failures{}
	for _, object := range all {
		m := endName.FindStringSubmatch(object.Name)
		if m == nil {
			continue
		}
		seen[m[1]] = true
		if strings.Trim(m[2], "0") != "" {
			failed = append(failed, m[1]+"."+m[2])
		}
	}
	e := ends{all: true, failures: len(failed)}
	if len(seen) >= o.job.Slices*o.job.Workers {
		return e, failed, nil
	}
	came, closed, err := o.closed(ctx, attempt)
	if err != nil {
		return ends{}, nil, err
	}
	for s := range o.job.Slices {
		for w := range o.job.Workers {
			if seen[nameOf(s, w)] || closed && !came[nameOf(s, w)] {
				continue
			}
			silent, err := o.silent(ctx, nameOf(s, w), boot)
			if err != nil || silent < o.job.Stale {
				return ends{}, nil, err
			}
		}
	}
	e.failures++
	return e, failed, nil
}

// closed reports whether no worker can begin the attempt any more. The result came has the
// workers that were ready for it. After a stop, or if one worker has given up the attempt,
// a worker that becomes ready gives it up too. So nobody need wait for workers that never
// became ready: their slices may never be made, and the other slices cost money meanwhile.
func (o objects) closed(ctx context.Context, attempt int) (came map[string]bool, closed bool, err error) {
	if !o.job.gathers() || o.asked(ctx, fmt.Sprintf("failed-%d", attempt)) == "" && o.asked(ctx, "stop") == "" {
		return nil, false, nil
	}
	all, _, err := o.List(ctx, o.seats(attempt))
	came = map[string]bool{}
	for _, object := range all {
		if m := seatName.FindStringSubmatch(object.Name); m != nil {
			came[m[1]] = true
		}
	}
	return came, err == nil, err
}

// silent returns for how long a worker has reported nothing. It uses only the service's
// clock, because workers' clocks may differ.
func (o objects) silent(ctx context.Context, name string, boot time.Time) (time.Duration, error) {
	report, date, err := o.Stat(ctx, "workers/"+name)
	switch {
	case agent.StatusOf(err) == http.StatusNotFound:
		return time.Since(boot), nil
	case err != nil, date.IsZero():
		return 0, err
	}
	return date.Sub(report.Updated), nil
}

var unsentName = regexp.MustCompile(`^control/unsent-[0-9]+-(s[0-9]+w[0-9]+)$`)

// notWhole returns a text that names a worker if this worker has reported, within
// job.Stale, that its log in the bucket is not whole. Otherwise it returns "".
func (o objects) notWhole(ctx context.Context, attempt int) (string, error) {
	all, date, err := o.List(ctx, fmt.Sprintf("control/unsent-%d-", attempt))
	if err != nil {
		return "", err
	}
	name, newest := "", time.Time{}
	for _, object := range all {
		if m := unsentName.FindStringSubmatch(object.Name); m != nil && name == "" {
			name = m[1]
		}
		if object.Updated.After(newest) {
			newest = object.Updated
		}
	}
	if name == "" || !date.IsZero() && date.Sub(newest) >= o.job.Stale {
		return "", nil
	}
	return "the log of " + name + " is not whole in the bucket", nil
}

// judge returns whether all failures of an attempt are a training's tail.
func (o objects) judge(ctx context.Context, attempt, failures int, failed failures) verdict {
	if len(failed) != failures {
		return notExcused // one of these workers has not reported its end
	}
	dir := fmt.Sprintf("ended/%d/", attempt)
	lead, _, err := o.Read(ctx, dir+"s0w0.0")
	switch {
	case agent.StatusOf(err) == http.StatusNotFound:
		return notExcused
	case err != nil:
		return notJudged
	}
	for _, name := range failed {
		text, _, err := o.Read(ctx, dir+name)
		if err != nil {
			return notJudged
		}
		if !parseRecord(string(text)).excused(parseRecord(string(lead))) {
			return notExcused
		}
	}
	return isExcused
}

// seats is the directory of the objects that say who is ready for an attempt. Each start of
// the run has its own directory, because VMs of an earlier start may have had the same
// names.
func (o objects) seats(attempt int) string {
	return fmt.Sprintf("starts/%s/seats/%d/", o.job.Start, attempt)
}

// logName returns the name of the object with the log of an attempt.
func logName(p Place, attempt int) string {
	name := fmt.Sprintf("main_command_log_slice_%d_worker_%d", p.Slice, p.Worker)
	if attempt > 1 {
		name = fmt.Sprintf("attempt-%d/%s", attempt, name)
	}
	return name
}

// pieces says how to send a log. size is the size of a piece in bytes. Each piece is first
// written to the object name, beside the log. While the machine shuts down, a second
// program may run. It writes its pieces to another name.
type pieces struct {
	size int64
	name string
}

var (
	piecesOfJob = pieces{64 << 20, "part"}
	lastPieces  = pieces{16 << 20, "last"}
)

// mostPieces limits the pieces of one upload, because a log may grow faster than it is
// sent.
const mostPieces = 1000

// sendLog makes the log in the bucket equal to the file. At every moment the log in the
// bucket is a prefix of the file. sendLog appends a piece only if nobody else has appended
// one meanwhile.
func (o objects) sendLog(ctx context.Context, path, name string, p pieces) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the log: %w", plain(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read the log: %w", plain(err))
	}
	for range mostPieces {
		there, _, err := o.Stat(ctx, name)
		if err != nil && agent.StatusOf(err) != http.StatusNotFound {
			return err
		}
		left := info.Size() - there.Size
		if left <= 0 && there.Generation > 0 {
			return nil
		}
		piece := io.NewSectionReader(f, there.Size, min(left, p.size))
		sent, err := o.sendPiece(ctx, name, there.Generation, piece, name+"."+p.name)
		if err != nil {
			return err
		}
		if sent && left <= p.size {
			return nil
		}
	}
	return nil
}

// sendPiece sends a piece. It reports false if the log in the bucket did not have the
// expected generation, and so did not get the piece.
func (o objects) sendPiece(ctx context.Context, name string, generation int64, piece *io.SectionReader, part string) (sent bool, err error) {
	if generation == 0 {
		err = o.Write(ctx, name, piece, piece.Size(), 0)
	} else if err = o.Write(ctx, part, piece, piece.Size(), agent.AnyVersion); err != nil {
		return false, err
	} else {
		err = o.Append(ctx, name, generation, part)
		if err == nil || agent.StatusOf(err) == http.StatusPreconditionFailed {
			_ = o.Remove(ctx, part) // the next piece replaces it
		}
	}
	if agent.StatusOf(err) == http.StatusPreconditionFailed {
		return false, nil
	}
	return err == nil, err
}

// plain returns an error of the file system without its path.
func plain(err error) error {
	var at *os.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}
