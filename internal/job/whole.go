package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/tpu"
)

// A partLog is a log of which only the beginning is on this machine.
type partLog struct {
	have    int64 // bytes on this machine
	written int64 // bytes that the worker has; 0 if it could not be asked
	err     error // why the rest is not here
}

const (
	// wholePause is the first pause between two tries to fetch the rest of the logs.
	wholePause = 2 * time.Second
	// wholeLongest is the longest such pause: somebody may be freeing space and waiting
	// for the retry.
	wholeLongest = 15 * time.Second
)

// A logWait is a wait for logs that are not whole here, for any reason.
type logWait struct {
	by   time.Time // end of the wait; zero: it has not begun
	told time.Time
}

// left returns how much longer to wait. The wait begins with the first call and lasts
// timeout (--log-timeout).
func (w *logWait) left(now time.Time, timeout time.Duration) time.Duration {
	if w.by.IsZero() {
		w.by = now.Add(timeout)
	}
	return w.by.Sub(now)
}

// due reports, once a minute, that the user should be told about the wait.
func (w *logWait) due(now time.Time) bool {
	if !w.told.IsZero() && now.Sub(w.told) < time.Minute {
		return false
	}
	w.told = now
	return true
}

func (f *following) logsLeft() time.Duration { return f.logs.left(f.Clock.Now(), f.patience.Log) }

// bringLogs waits until the logs of an ended command are whole here, because the workers
// may be deleted after that. An interrupt ends the wait.
func (f *following) bringLogs(ctx context.Context) {
	if f.partly() == nil || ctx.Err() != nil {
		return
	}
	left := f.logsLeft()
	if left <= 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() {
		select {
		case <-f.Clock.After(left):
		case <-f.Leave:
		case <-ctx.Done():
		}
		cancel()
	})
	_ = f.watch.phase("logs", func() (string, error) { // the summary says what is missing
		pause := wholePause
		for {
			if f.logs.due(f.Clock.Now()) {
				event.Notef(f.Sink, event.Warn, f.room(), "%s: waiting up to %s (--log-timeout) for the rest: %s", f.sayPartly(), asTyped(f.patience.Log), f.whyPartly())
			}
			select {
			case <-f.Clock.After(pause):
			case <-ctx.Done():
				return "", ctx.Err()
			}
			pause = min(2*pause, wholeLongest)
			f.team.each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
				if f.ends[i].part != nil {
					f.ends[i].part = f.bringRest(ctx, i)
				}
				return nil
			})
			if f.partly() == nil {
				return "whole", nil
			}
		}
	})
}

// bringRest fetches what is missing of worker i's log. It returns nil when the log is
// whole.
func (f *following) bringRest(ctx context.Context, i int) *partLog {
	log := &logFile{run: f.ref.Run, id: f.team.ids[i], path: f.rec.logPath(f.team.ids[i]), sink: f.Sink, arrivals: f.arrivals(i)}
	defer log.close()
	before, part := f.ends[i].part, f.mend(ctx, i, log)
	if part != nil && ctx.Err() != nil { // the end of the wait is not the reason
		part.err = before.err
	}
	if part != nil {
		part.written = max(part.written, before.written)
	}
	return part
}

// mend fetches the rest of a log that the disk here had no room for. It returns nil when
// the log is whole.
func (f *following) mend(ctx context.Context, i int, log *logFile) *partLog {
	err := log.open()
	if err == nil {
		_, err = launch.ReadLog(ctx, f.team.conns[i], f.ref, log.size, writerFunc(log.keep))
		if end, seekErr := log.file.Seek(0, io.SeekCurrent); seekErr == nil {
			log.size = end
		}
	}
	if err == nil {
		log.broken = false
		event.Notef(f.Sink, event.Info, "", "the log of %s is whole again", f.team.ids[i])
		return nil
	}
	part := &partLog{have: log.size, err: err}
	if s, err := launch.Status(ctx, f.team.conns[i], f.ref); err == nil {
		part.written = s.LogSize
	}
	return part
}

// unreadLog returns the partLog of a worker whose log could not be read to its end.
func (f *following) unreadLog(i int) *partLog {
	part := &partLog{err: errors.New("the worker could not be read to its end")}
	if e := f.ends[i].err; e != nil && !errors.Is(e, context.Canceled) {
		part.err = e
	}
	if info, err := os.Stat(f.rec.logPath(f.team.ids[i])); err == nil {
		part.have = info.Size()
	}
	return part
}

// partly lists the workers whose logs are not whole here.
func (f *following) partly() (workers []int) {
	for i, e := range f.ends {
		if e.part != nil {
			workers = append(workers, i)
		}
	}
	return workers
}

// sayPartly returns text that names the workers whose logs are not whole here, and how
// much of the logs is.
func (f *following) sayPartly() string {
	var ids []tpu.WorkerID
	var have, written int64
	known := true
	for _, i := range f.partly() {
		p := f.ends[i].part
		ids, have, written, known = append(ids, f.team.ids[i]), have+p.have, written+p.written, known && p.written > 0
	}
	if !known {
		written = 0
	}
	return partText(ids, have, written)
}

// partText returns text that names the workers whose logs are not whole here. written is
// 0 if it is not known.
func partText(ids []tpu.WorkerID, have, written int64) string {
	much := fmt.Sprintf("%d bytes, of how many is not known", have)
	if written > 0 {
		much = fmt.Sprintf("%d of %d bytes", have, written)
	}
	logs := "the log of " + tpu.Fold(ids) + " is"
	if len(ids) > 1 {
		logs = "the logs of " + tpu.Fold(ids) + " are"
	}
	return fmt.Sprintf("%s not whole here: %s", logs, much)
}

// whyPartly returns the reasons why logs are not whole, each once.
func (f *following) whyPartly() string {
	var why []string
	for _, i := range f.partly() {
		err := f.ends[i].part.err
		var local *fs.PathError
		if errors.As(err, &local) { // its path contains the worker's name, so equal reasons would differ
			err = local.Err
		}
		if text := causeText(err, f.team.ids[i]); !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	return strings.Join(why, "; ")
}

// room returns advice if a local disk is full; otherwise "".
func (f *following) room() string {
	for _, i := range f.partly() {
		if err := f.ends[i].part.err; errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return "free some space for " + f.rec.LogDir
		}
	}
	return ""
}

// partLogCode is the exit code of a run that succeeded but whose logs are not whole here:
// EX_IOERR of sysexits.
const partLogCode = 74

// sayPart adds to the summary which logs are not whole here. A success becomes a failure
// then.
func (f *following) sayPart(sum *event.Summary) {
	sum.Text += "; " + f.sayPartly() + " (" + f.whyPartly() + ")"
	again := "bring the rest with: multihost attach " + f.ref.Run
	if room := f.room(); room != "" {
		again = room + ", then " + again
	}
	if sum.OK {
		sum.OK, sum.ExitCode, sum.Next = false, partLogCode, again
		return
	}
	event.Notef(f.Sink, event.Warn, again, "%s; the rest is on the workers, for as long as their slices are there", f.sayPartly())
}
