package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// A PartLog is a log of which only the beginning is on this machine.
type PartLog struct {
	ID      tpu.WorkerID
	Have    int64 // bytes on this machine
	Written int64 // bytes that the worker has; 0 if it could not be asked
	err     error // why the rest is not here
	gone    bool  // the worker's slice is gone, and the rest with it
}

const (
	// wholePause is the first pause between two tries to fetch the rest of the logs.
	wholePause = 2 * time.Second
	// wholeLongest is the longest such pause: somebody may be freeing space and waiting
	// for the retry.
	wholeLongest = 15 * time.Second
)

// A LogWait is a wait for logs that are not whole here, for any reason.
type LogWait struct {
	by   time.Time // end of the wait; zero: it has not begun
	told time.Time
}

// Left returns how much longer to wait. The wait begins with the first call and lasts
// timeout (--log-timeout).
func (w *LogWait) Left(now time.Time, timeout time.Duration) time.Duration {
	if w.by.IsZero() {
		w.by = now.Add(timeout)
	}
	return w.by.Sub(now)
}

// Due reports, once a minute, that the user should be told about the wait.
func (w *LogWait) Due(now time.Time) bool {
	if !w.told.IsZero() && now.Sub(w.told) < time.Minute {
		return false
	}
	w.told = now
	return true
}

// bringLogs waits until the logs of an ended command are whole here, because the workers
// may be deleted after that. An interrupt ends the wait, as does the loss of the slices.
func (f *Following) bringLogs(ctx context.Context) {
	left := f.logs.Left(f.Clock.Now(), f.Patience.Log)
	if f.partly() == nil || ctx.Err() != nil || left <= 0 {
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
	_ = f.Watch.Phase("logs", func() (string, error) { // the summary says what is missing
		for pause := wholePause; ; pause = min(2*pause, wholeLongest) {
			parts, hint := f.partly(), f.room()
			text := fmt.Sprintf("%s: waiting up to %s (--log-timeout) for the rest: %s", parts, stage.AsTyped(f.Patience.Log), parts.why())
			tell := func() {
				if f.logs.Due(f.Clock.Now()) {
					event.Notef(f.Sink, event.Warn, hint, "%s", text)
				}
			}
			tell()
			if err := stage.Sleep(ctx, f.Clock, pause); err != nil {
				return "", err
			}
			meanwhile(f.Clock, tell, func() { f.bringRests(ctx) })
			switch parts = f.partly(); {
			case parts == nil:
				return "whole", nil
			case !parts.there():
				return "", ErrSliceGone
			}
		}
	})
}

// meanwhile does something, and calls tell every ten seconds while that lasts.
func meanwhile(clock gcp.Clock, tell, do func()) {
	ctx, over := context.WithCancel(context.Background())
	go func() {
		defer over()
		do()
	}()
	for stage.Sleep(ctx, clock, 10*time.Second) == nil {
		tell()
	}
}

// bringRests fetches what is missing of logs whose slices the cloud still has.
func (f *Following) bringRests(ctx context.Context) {
	nodes, err := f.Cloud.Slices(ctx)
	f.Workers.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		part, gone := f.Ends[i].part, ""
		if part != nil && err == nil {
			gone = LostSlice(nodes, f.Workers.Slice(i))
		}
		switch {
		case gone != "":
			part.gone, part.err = true, errors.New(gone)
		case part != nil:
			f.Ends[i].part = f.bringRest(ctx, i)
		}
		return nil
	})
}

// bringRest fetches what is missing of worker i's log. It returns nil when the log is
// whole.
func (f *Following) bringRest(ctx context.Context, i int) *PartLog {
	log := &logFile{run: f.Ref.Run, id: f.Workers.IDs[i], path: f.Rec.LogPath(f.Workers.IDs[i]), sink: f.Sink, arrivals: f.arrivals(i)}
	defer log.close()
	before, part := f.Ends[i].part, f.mend(ctx, i, log)
	if part != nil && ctx.Err() != nil { // the end of the wait is not the reason
		part.err = before.err
	}
	if part != nil {
		part.Written = max(part.Written, before.Written)
	}
	return part
}

// mend fetches the rest of a log that the disk here had no room for. It returns nil when
// the log is whole.
func (f *Following) mend(ctx context.Context, i int, log *logFile) *PartLog {
	err := log.open()
	if err == nil {
		_, err = launch.ReadLog(ctx, f.Workers.Conns[i], f.Ref, log.size, stage.WriterFunc(log.keep))
		if end, seekErr := log.file.Seek(0, io.SeekCurrent); seekErr == nil {
			log.size = end
		}
	}
	if err == nil {
		log.broken = false
		event.Notef(f.Sink, event.Info, "", "the log of %s is whole again", f.Workers.IDs[i])
		return nil
	}
	part := &PartLog{ID: log.id, Have: log.size, err: err}
	if s, err := launch.Status(ctx, f.Workers.Conns[i], f.Ref); err == nil {
		part.Written = s.LogSize
	}
	return part
}

// unreadLog returns the PartLog of a worker whose log could not be read to its end.
func (f *Following) unreadLog(i int) *PartLog {
	part := &PartLog{ID: f.Workers.IDs[i], Have: f.Rec.Have(f.Workers.IDs[i]), err: errors.New("the worker could not be read to its end")}
	if e := f.Ends[i].Err; e != nil && !errors.Is(e, context.Canceled) {
		part.err = e
	}
	return part
}

// Parts are logs that are not whole here.
type Parts []*PartLog

// partly returns the logs that are not whole here.
func (f *Following) partly() (all Parts) {
	for _, e := range f.Ends {
		if e.part != nil {
			all = append(all, e.part)
		}
	}
	return all
}

// there reports whether workers have the rest of a log.
func (p Parts) there() bool {
	return slices.ContainsFunc(p, func(l *PartLog) bool { return !l.gone })
}

// String names the workers, and says how much of their logs is here; "" if there are none.
func (p Parts) String() string {
	if len(p) == 0 {
		return ""
	}
	var ids []tpu.WorkerID
	var have, written int64
	known := true
	for _, l := range p {
		ids, have, written, known = append(ids, l.ID), have+l.Have, written+l.Written, known && l.Written > 0
	}
	much := fmt.Sprintf("%d bytes, of how many is not known", have)
	if known {
		much = fmt.Sprintf("%d of %d bytes", have, written)
	}
	logs := "the log of " + tpu.Fold(ids) + " is"
	if len(ids) > 1 {
		logs = "the logs of " + tpu.Fold(ids) + " are"
	}
	return fmt.Sprintf("%s not whole here: %s", logs, much)
}

// why returns the reasons why the logs are not whole, each once.
func (p Parts) why() string {
	var why []string
	for _, l := range p {
		err := l.err
		var local *fs.PathError
		if errors.As(err, &local) { // its path contains the worker's name, so equal reasons would differ
			err = local.Err
		}
		if text := stage.CauseText(err, l.ID); !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	return strings.Join(why, "; ")
}

// room returns advice if a local disk is full; otherwise "".
func (f *Following) room() string {
	for _, l := range f.partly() {
		if errors.Is(l.err, syscall.ENOSPC) || errors.Is(l.err, syscall.EDQUOT) {
			return "free some space for " + f.Rec.LogDir
		}
	}
	return ""
}

// GoWithSlices returns the logs that are not whole here and go when the slices go. It
// includes those of workers that were given up although the command may go on there.
func (f *Following) GoWithSlices() (all Parts) {
	for i, e := range f.Ends {
		switch {
		case e.part != nil && !e.part.gone:
			all = append(all, e.part)
		case e.part == nil && e.fate() != fateEnded:
			all = append(all, f.unreadLog(i))
		}
	}
	return all
}

// slicesGo reports whether the slices are deleted after the stop, whatever is on their
// workers only; deletes says that this command deletes them. --ttl limits the bill. And
// where the command may still be running, no lease would limit the bill of slices that
// are kept for a log.
func (s *stopping) slicesGo(deletes bool) bool {
	return s != nil && (errors.Is(s.cause, stage.ErrExpired) || s.err != nil && deletes)
}

// sayPart adds to the summary which logs are not whole here. A success becomes a failure.
func (f *Following) sayPart(sum *event.Summary) {
	parts := f.partly()
	sum.Text += "; " + parts.String() + " (" + parts.why() + ")"
	again, rest := "bring the rest with: multihost attach "+f.Ref.Run, "is on the workers, for as long as their slices are there"
	if room := f.room(); room != "" {
		again = room + ", then " + again
	}
	if !parts.there() {
		again, rest = "", "is gone with the slices"
	}
	if sum.OK {
		sum.OK, sum.ExitCode, sum.Next = false, stage.PartLogCode, again
		return
	}
	event.Notef(f.Sink, event.Warn, again, "%s; the rest %s", parts, rest)
}
