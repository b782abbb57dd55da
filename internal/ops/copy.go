package ops

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/event"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/transfer"
	"multihost/internal/workers"
)

// CopyOptions say which files to copy to workers or from them.
type CopyOptions struct {
	workers.Workers
	Sources []string // on this machine for CopyTo, on the workers for CopyFrom
	Dest    string
}

// Copied says what was copied to or from one worker.
type Copied struct {
	Worker string `json:"worker"`
	Dest   string `json:"dest"`
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
	Error  string `json:"error,omitempty"`
}

// copyAtOnce limits how many transfers run at once. More would only share this machine's
// link.
const copyAtOnce = 64

// copyEach calls f for each worker of t, at most copyAtOnce at a time.
func copyEach(ctx context.Context, t *workers.Connected, f func(i int) error) []error {
	slots := make(chan struct{}, copyAtOnce)
	return t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			return f(i)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// forWorker replaces {slice} and {worker} in a local name by the worker's numbers.
func forWorker(text string, id tpu.WorkerID) string {
	return strings.NewReplacer("{slice}", strconv.Itoa(id.Slice), "{worker}", strconv.Itoa(id.Worker)).Replace(text)
}

// hasNumbers reports whether a local name contains {slice} or {worker}.
func hasNumbers(text string) bool { return forWorker(text, tpu.WorkerID{Slice: 1, Worker: 1}) != text }

// CopyTo copies files of this machine to workers. It moves the files to their places only after
// everything has arrived on every worker. In a source, {slice} and {worker} stand for the
// numbers of each worker.
func CopyTo(ctx context.Context, d Deps, o CopyOptions) error {
	watch := stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}
	sel, ids, err := d.Choose(ctx, &watch, o.Workers)
	if err != nil {
		return err
	}
	parcels, err := pack(ctx, d, o.Sources, ids)
	if err != nil {
		return &stage.Error{Stage: stage.Local, Err: err}
	}
	t, failed, err := d.ReachSome(ctx, &watch, sel, ids)
	if err != nil {
		return err
	}
	defer t.Close()
	if len(failed) > 0 {
		return workers.Failures(stage.Connect, ids, failed)
	}
	return watch.Phase("copy", func() (string, error) {
		show := workers.NewWaiting(d.Invocation, "copy", ids)
		defer t.Listen(show.Heard)()
		for _, p := range parcels {
			show.Expected(p.Size)
		}
		sent := make([]*transfer.Sent, len(ids))
		errs := copyEach(ctx, t, func(i int) (err error) {
			sent[i], err = parcels[i].Send(ctx, t.Conns[i], o.Dest, false, show.Copied)
			show.Done(i)
			return err
		})
		broken := stage.WorkersError(stage.Copy, ids, errs)
		if ctx.Err() != nil {
			broken = context.Cause(ctx)
		}
		if broken != nil {
			t.Each(ctx, d.Sink, "", func(_ context.Context, i int) error {
				if sent[i] != nil {
					sent[i].Drop()
				}
				return nil
			})
			return "", broken
		}
		errs = t.Each(ctx, d.Sink, "", func(_ context.Context, i int) error { return sent[i].Put() })
		data := make([]Copied, len(ids))
		for i, id := range ids {
			data[i] = Copied{Worker: id.String(), Dest: o.Dest, Files: parcels[i].Files, Bytes: parcels[i].Size}
			if errs[i] != nil {
				data[i].Error = stage.CauseText(errs[i], id)
			}
		}
		d.Sink.Emit(event.Result{Name: "copied", Data: data})
		if err := stage.WorkersError(stage.Copy, ids, errs); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s (%s) to %s", event.Count(parcels[0].Files, "file"), event.Bytes(parcels[0].Size), tpu.Fold(ids)), nil
	})
}

// pack reads the files for each worker. Workers with the same sources share one parcel.
func pack(ctx context.Context, d Deps, sources []string, ids []tpu.WorkerID) ([]*transfer.Parcel, error) {
	parcels := make([]*transfer.Parcel, len(ids))
	seen := map[string]*transfer.Parcel{}
	for i, id := range ids {
		own := make([]string, len(sources))
		for k, s := range sources {
			own[k] = forWorker(s, id)
		}
		key := strings.Join(own, "\x00")
		if seen[key] == nil {
			p, err := transfer.Pack(ctx, own)
			if err != nil {
				return nil, err
			}
			tellLeftOut(d, "", p.LeftOut)
			seen[key] = p
		}
		parcels[i] = seen[key]
	}
	return parcels, nil
}

func tellLeftOut(d Deps, worker string, names []string) {
	if len(names) == 0 {
		return
	}
	shown := names
	more := ""
	if len(shown) > 5 {
		shown, more = shown[:5], fmt.Sprintf(" and %d more", len(names)-5)
	}
	event.Notef(d.Sink, event.Warn, "", "%s%q%s left out: neither file, directory nor link", worker, shown, more)
}

// CopyFrom fetches files of workers to this machine. In the local name, {slice} and
// {worker} stand for the numbers of each worker. Without these, files from several workers
// go into one directory per worker, named after it. A failure on one worker does not affect
// the others. The error names the workers that failed.
func CopyFrom(ctx context.Context, d Deps, o CopyOptions) error {
	if err := transfer.Asked(o.Sources); err != nil {
		return &stage.Error{Stage: stage.Input, Err: err}
	}
	watch := stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}
	sel, ids, err := d.Choose(ctx, &watch, o.Workers)
	if err != nil {
		return err
	}
	places, err := placesFor(o, ids)
	if err != nil {
		return err
	}
	t, failed, err := d.ReachSome(ctx, &watch, sel, ids)
	if err != nil {
		return err
	}
	defer t.Close()
	if len(failed) > 0 {
		event.Notef(d.Sink, event.Warn, "", "%v; going on without them", workers.Failures(stage.Connect, ids, failed))
	}
	return watch.Phase("copy", func() (string, error) {
		got, errs := fetchAll(ctx, d, t, o.Sources, places)
		d.RememberFetched(got)
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		var files int
		var bytes int64
		var changed, whole []tpu.WorkerID
		data := make([]Copied, 0, len(ids))
		for i, id := range t.IDs {
			c := Copied{Worker: id.String(), Dest: filepath.Join(places[id].Dir, places[id].Name), Files: got[i].Files, Bytes: got[i].Bytes}
			if errs[i] != nil {
				failed[id] = errs[i]
			} else {
				whole = append(whole, id)
				files, bytes = files+got[i].Files, bytes+got[i].Bytes
				tellLeftOut(d, id.String()+": ", got[i].LeftOut)
			}
			if got[i].Changed {
				changed = append(changed, id)
			}
			data = append(data, c)
		}
		for _, id := range stage.Missing(failed) {
			at := slices.IndexFunc(data, func(c Copied) bool { return c.Worker == id.String() })
			if at < 0 {
				at = len(data)
				data = append(data, Copied{Worker: id.String()})
			}
			data[at].Error = stage.CauseText(failed[id], id)
		}
		d.Sink.Emit(event.Result{Name: "copied", Data: data})
		if len(changed) > 0 {
			event.Notef(d.Sink, event.Warn, "", "%s: a file changed while it was copied; the copy has the length that it had at the start", tpu.Fold(changed))
		}
		text := fmt.Sprintf("%s (%s) from %s", event.Count(files, "file"), event.Bytes(bytes), tpu.Fold(whole))
		if err := workers.Failures(stage.Copy, ids, failed); err != nil {
			if len(whole) > 0 {
				event.Notef(d.Sink, event.Info, "", "copied %s", text)
			}
			return "", err
		}
		return text, nil
	})
}

// fetchAll fetches from all workers, at most copyAtOnce at a time.
func fetchAll(ctx context.Context, d Deps, t *workers.Connected, sources []string, places map[tpu.WorkerID]transfer.Place) ([]transfer.Fetched, []error) {
	show := workers.NewWaiting(d.Invocation, "copy", t.IDs)
	defer t.Listen(show.Heard)()
	got := make([]transfer.Fetched, len(t.IDs))
	errs := copyEach(ctx, t, func(i int) (err error) {
		got[i], err = transfer.Fetch(ctx, t.Conns[i], sources, places[t.IDs[i]], transfer.Progress{Size: show.Expected, Moved: show.Copied})
		show.Done(i)
		return err
	})
	return got, errs
}

// placesFor says where the files of each worker go. It returns an error if two workers
// would use the same place.
func placesFor(o CopyOptions, ids []tpu.WorkerID) (map[tpu.WorkerID]transfer.Place, error) {
	places := make(map[tpu.WorkerID]transfer.Place, len(ids))
	whose := map[string]tpu.WorkerID{}
	several := len(o.Sources) > 1
	for _, id := range ids {
		switch {
		case hasNumbers(o.Dest) || len(ids) == 1:
			places[id] = transfer.PlaceFor(forWorker(o.Dest, id), several)
		default:
			places[id] = transfer.PlaceFor(filepath.Join(o.Dest, id.String()), true)
		}
		at := filepath.Join(places[id].Dir, places[id].Name)
		if other, taken := whose[at]; taken {
			return nil, &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("%s and %s would both go to %q", other, id, at),
				Advice: "put {slice} and {worker} into the name; without both, each worker gets a directory of its own"}
		}
		whose[at] = id
	}
	return places, nil
}
