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
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A PartLog describes a log of which this machine has only the beginning.
type PartLog struct {
	ID      tpu.WorkerID
	Have    int64 // bytes on this machine
	Written int64 // bytes on the worker; 0: not known
	err     error // why the rest is missing
	gone    bool  // the slice is gone, and the rest with it
}

const (
	// wholePause is the first pause between two tries to fetch the rest of the logs.
	wholePause = 2 * time.Second
	// wholeLongest is the longest pause: somebody may be freeing space and waiting for the
	// retry.
	wholeLongest = 15 * time.Second
)

// A LogWait is a wait for logs that are not whole here.
type LogWait struct {
	by   time.Time // end of the wait; zero: not begun
	told time.Time
}

// Left returns the rest of the wait, which begins with the first call and lasts timeout
// (--log-timeout).
func (w *LogWait) Left(now time.Time, timeout time.Duration) time.Duration {
	if w.by.IsZero() {
		w.by = now.Add(timeout)
	}
	return w.by.Sub(now)
}

// Due reports, once a minute, that it is time to tell the user of the wait.
func (w *LogWait) Due(now time.Time) bool {
	if !w.told.IsZero() && now.Sub(w.told) < time.Minute {
		return false
	}
	w.told = now
	return true
}

// bringLogs waits until the logs of an ended command are whole here, because the workers
// may be deleted after that. An interrupt or the loss of the slices ends the wait.
func (f *Following) bringLogs(ctx context.Context) {
	left := f.logs.Left(f.Clock.Now(), f.Patience.Log)
	if f.Ends.partly() == nil || ctx.Err() != nil || left <= 0 {
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
	copies := f.copies()
	_ = f.Watch.Phase("logs", func() (string, error) { // the summary says which logs are not whole
		for pause := wholePause; ; pause = min(2*pause, wholeLongest) {
			parts := f.Ends.partly()
			text, hint := fmt.Sprintf("%s: waiting up to %s (--log-timeout) for the rest: %s", parts, stage.AsTyped(f.Patience.Log), parts.why()), parts.room(f.Rec.LogDir)
			tell := func() {
				if f.logs.Due(f.Clock.Now()) {
					event.Notef(f.Sink, event.Warn, hint, "%s", text)
				}
			}
			tell()
			if err := stage.Sleep(ctx, f.Clock, pause); err != nil {
				return "", err
			}
			meanwhile(f.Clock, tell, func() {
				nodes, err := f.Cloud.Slices(ctx)
				copies.bringRests(ctx, f.Ends, nodes, err == nil)
			})
			switch parts = f.Ends.partly(); {
			case parts == nil:
				return "whole", nil
			case !parts.there():
				return "", ErrSliceGone
			}
		}
	})
}

// meanwhile calls do, and calls tell every ten seconds until do returns.
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

// copies makes this machine's copies of the workers' logs.
type copies struct {
	workers *workers.Connected
	ref     launch.Ref
	rec     *record.Record
	sink    event.Sink
	clock   gcp.Clock
	secrets [][]byte
}

func (f *Following) copies() copies {
	return copies{workers: f.Workers, ref: f.Ref, rec: f.Rec, sink: f.Sink, clock: f.Clock, secrets: f.Secrets}
}

// open opens the copy of worker i's log, to continue the copy.
func (c copies) open(i int) *logFile {
	log := openLog(c.rec, c.workers.IDs[i], c.sink, c.secrets)
	log.arrivals = c.arrivals(i)
	return log
}

// arrivals returns a writer that stores when the output of worker i arrives.
func (c copies) arrivals(i int) *record.ArrivalWriter {
	return &record.ArrivalWriter{Path: record.ArrivalsPath(c.rec.LogDir, c.workers.IDs[i]), Now: c.clock.Now}
}

// bringRests fetches the missing rests of the logs of ends. If listed is true, nodes has
// all slices of the cloud. If the slice of a log is not among them, the rest of the log is
// lost.
func (c copies) bringRests(ctx context.Context, ends Endings, nodes []tpu.Slice, listed bool) {
	c.workers.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		part, gone := ends[i].part, ""
		if part != nil && listed {
			gone = LostSlice(nodes, c.workers.Slice(i))
		}
		switch {
		case gone != "":
			part.gone, part.err = true, errors.New(gone)
		case part != nil:
			ends[i].part = c.bringRest(ctx, i, part)
		}
		return nil
	})
}

// bringRest fetches the missing rest of worker i's log. It returns nil if the log is then
// whole.
func (c copies) bringRest(ctx context.Context, i int, before *PartLog) *PartLog {
	log := &logFile{run: c.ref.Run, id: c.workers.IDs[i], path: c.rec.LogPath(c.workers.IDs[i]), sink: c.sink, arrivals: c.arrivals(i)}
	defer log.close()
	part := c.mend(ctx, i, log)
	if part != nil && ctx.Err() != nil { // the end of the wait is not the cause
		part.err = before.err
	}
	if part != nil {
		part.Written = max(part.Written, before.Written)
	}
	return part
}

// mend fetches the rest of a log for which the local disk had no room. It returns nil if
// the log is then whole.
func (c copies) mend(ctx context.Context, i int, log *logFile) *PartLog {
	err := log.open()
	if err == nil {
		_, err = launch.ReadLog(ctx, c.workers.Conns[i], c.ref, log.size, stage.WriterFunc(log.keep))
		if end, seekErr := log.file.Seek(0, io.SeekCurrent); seekErr == nil {
			log.size = end
		}
	}
	if err == nil {
		log.broken = false
		event.Notef(c.sink, event.Info, "", "the log of %s is whole again", log.id)
		return nil
	}
	part := &PartLog{ID: log.id, Have: log.size, err: err}
	if s, err := launch.Status(ctx, c.workers.Conns[i], c.ref); err == nil {
		part.Written = s.LogSize
	}
	return part
}

// unread returns the PartLog of worker i, whose log could not be read to its end. cause is
// why the log's end is not known, or nil.
func (c copies) unread(i int, cause error) *PartLog {
	part := &PartLog{ID: c.workers.IDs[i], Have: c.rec.Have(c.workers.IDs[i]), err: cause}
	if cause == nil || errors.Is(cause, context.Canceled) {
		part.err = errors.New("the worker could not be read to its end")
	}
	return part
}

// GoWithSlices returns logs whose rest may be only on slices that are about to be deleted.
// It includes logs of workers that were given up, on which the command may still run.
func (f *Following) GoWithSlices() (all Parts) {
	for i, e := range f.Ends {
		switch {
		case e.part != nil && !e.part.gone:
			all = append(all, e.part)
		case e.part == nil && mayRun(e):
			all = append(all, f.copies().unread(i, e.Err))
		}
	}
	return all
}

// Parts are logs that are not whole here.
type Parts []*PartLog

// there reports whether workers have the rest of a log.
func (p Parts) there() bool {
	return slices.ContainsFunc(p, func(l *PartLog) bool { return !l.gone })
}

// String names the workers, and says how much of their logs is here. It returns "" for no
// logs.
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

// why returns the reasons why the logs are not whole, without duplicates.
func (p Parts) why() string {
	var why []string
	for _, l := range p {
		err := l.err
		var local *fs.PathError
		if errors.As(err, &local) { // the path contains the worker's name, so equal reasons would differ
			err = local.Err
		}
		if text := stage.CauseText(err, l.ID); !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	return strings.Join(why, "; ")
}

// room returns advice if the disk of the directory of logs is full, or "".
func (p Parts) room(dir string) string {
	for _, l := range p {
		if errors.Is(l.err, syscall.ENOSPC) || errors.Is(l.err, syscall.EDQUOT) {
			return "free some space for " + dir
		}
	}
	return ""
}

// addTo adds the logs that are not whole here to the summary. A success becomes a failure.
// Then sum.Next says how to copy the rest, and addTo returns nil. Otherwise it returns a note
// about the rest.
func (p Parts) addTo(sum *event.Summary) *event.Note {
	sum.Text += "; " + p.String() + " (" + p.why() + ")"
	again, rest := "bring the rest with: multihost attach "+sum.Run, "is on the workers, for as long as their slices are there"
	if room := p.room(sum.LogDir); room != "" {
		again = room + ", then " + again
	}
	if !p.there() {
		again, rest = "", "is gone with the slices"
	}
	if sum.OK {
		sum.OK, sum.ExitCode, sum.Next = false, stage.PartLogCode, again
		return nil
	}
	return &event.Note{Level: event.Warn, Text: fmt.Sprintf("%s; the rest %s", p, rest), Hint: again}
}
