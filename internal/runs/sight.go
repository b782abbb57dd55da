package runs

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"multihost/internal/follow"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A sight is what the slices of a zone say about their runs.
type sight struct {
	slices []tpu.Slice        // slices that were asked; the Index of each is its position
	asked  []bool             // which of slices have answered
	away   []tpu.Slice        // existing slices that did not answer, or were not asked because they are not ready
	found  []workers.FoundRun // runs that the slices know
	err    error              // why some of slices did not answer
}

// survey asks worker 0 of every ready slice which runs it knows. The parameters prefix and
// only select slices by name prefix and number. survey does not ask the slices of runs in
// seen.
func survey(ctx context.Context, d *workers.Reach, prefix string, only tpu.Numbers, seen []Seen) sight {
	nodes, err := d.Cloud.Slices(ctx)
	if err != nil {
		return sight{err: fmt.Errorf("list slices in %q: %w", d.Zone, err)}
	}
	if prefix != "" {
		sel, err := tpu.SelectNumbered(nodes, prefix, only, false)
		if err != nil {
			return sight{err: err}
		}
		nodes = sel.Slices
	}
	var ready, away []tpu.Slice
	for _, s := range nodes {
		known := slices.ContainsFunc(seen, func(r Seen) bool {
			return slices.Contains(r.Slices, s.Name) && s.Labels[provision.LabelRun] == provision.LabelValue(r.Run)
		})
		switch ok, _ := s.Ready(); {
		case !ok:
			away = append(away, s)
		case !known:
			ready = append(ready, s)
		}
	}
	return look(ctx, d, ready, away)
}

// look asks worker 0 of each slice of the first list which runs it knows. It does not ask
// the slices of away, but adds them to the result.
func look(ctx context.Context, d *workers.Reach, in, away []tpu.Slice) sight {
	if len(in) == 0 {
		return sight{away: away}
	}
	slices.SortFunc(in, tpu.CompareNames)
	for i := range in {
		in[i].Index = i
	}
	see := sight{slices: in, away: away}
	see.found, see.asked, see.err = Ask(ctx, d, in)
	for i, s := range in {
		if !see.asked[i] {
			see.away = append(see.away, s)
		}
	}
	return see
}

// Ask asks worker 0 of every slice of ready which runs it knows. The Index of each slice
// must be its position in ready. asked says for each slice whether it answered. Even with
// an error, the result has the answers of the others.
func Ask(ctx context.Context, d *workers.Reach, ready []tpu.Slice) (found []workers.FoundRun, asked []bool, err error) {
	asked = make([]bool, len(ready))
	d.Remind("workers are asked which runs they know", func() { found, err = ask(ctx, d, ready, asked) })
	return found, asked, err
}

func ask(ctx context.Context, d *workers.Reach, ready []tpu.Slice, asked []bool) (found []workers.FoundRun, err error) {
	t, failed, err := d.Dial(ctx, tpu.Selection{Slices: ready}, func(id tpu.WorkerID) bool { return id.Worker == 0 }, false)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	ids := stage.Missing(failed)
	var silent []error
	for _, id := range ids {
		silent = append(silent, failed[id])
	}
	found, errs := t.Runs(ctx)
	for i, id := range t.IDs {
		asked[id.Slice] = errs[i] == nil
	}
	ids, silent = append(ids, t.IDs...), append(silent, errs...)
	return found, stage.WorkersError(stage.Survey, ids, silent)
}

// lookFor surveys the slices and returns the runs that satisfy the last parameter. If some
// slices of these runs are missing, or if there is no such run, lookFor also asks slices that
// are not ready and may have the run called name. A command continues during maintenance of
// its slice.
func lookFor(ctx context.Context, d *workers.Reach, name, prefix string, is func(workers.FoundRun) bool) (sight, []workers.FoundRun) {
	see := survey(ctx, d, prefix, nil, nil)
	match := slices.DeleteFunc(slices.Clone(see.found), func(f workers.FoundRun) bool { return !is(f) })
	more, rest := alsoAsked(see, match, name)
	if len(more) == 0 {
		return see, match
	}
	for i, s := range see.slices {
		if see.asked[i] {
			more = append(more, s)
		}
	}
	also := look(ctx, d, more, rest)
	if also.err == nil {
		also.err = see.err
	}
	return also, slices.DeleteFunc(slices.Clone(also.found), func(f workers.FoundRun) bool { return !is(f) })
}

// alsoAsked divides see.away into two lists. match is what was found of the run called name.
// If a part of that run is missing, the first list has the slices that are not ready and may
// have the part. The second list has all other slices.
func alsoAsked(see sight, match []workers.FoundRun, name string) (also, rest []tpu.Slice) {
	lacks := len(match) == 0 || slices.ContainsFunc(match, func(f workers.FoundRun) bool { return unseen(f, see) != nil })
	for _, s := range see.away {
		ready, _ := s.Ready()
		of := s.Labels[provision.LabelRun] == provision.LabelValue(name) || tpu.Family(s.Name) == name ||
			slices.ContainsFunc(match, func(f workers.FoundRun) bool { return belongs(s, f, see.slices) })
		if lacks && of && !ready && len(s.Workers) > 0 {
			also = append(also, s)
		} else {
			rest = append(rest, s)
		}
	}
	return also, rest
}

// belongs reports whether the slice s may have a part of the run f, which was found on slices
// of all. It returns true if s and a slice of f have the same queued resource, or if their
// names differ only in the number.
func belongs(s tpu.Slice, f workers.FoundRun, all []tpu.Slice) bool {
	return slices.ContainsFunc(f.Workers, func(id tpu.WorkerID) bool {
		has := all[id.Slice]
		return s.QueuedResource != "" && s.QueuedResource == has.QueuedResource || tpu.Family(s.Name) == tpu.Family(has.Name)
	})
}

// unseen returns which parts of a run see lacks, or nil if it has all. A worker with an older
// version does not say how many slices the run has. In that case, every slice that may have
// a part of the run counts as a missing part.
func unseen(f workers.FoundRun, see sight) *record.Unseen {
	lacks := f.Info.Slices - len(f.Workers) // one worker of each slice was asked
	if f.Info.Slices > 0 && lacks <= 0 {
		return nil
	}
	u := &record.Unseen{Of: f.Info.Slices, Err: see.err}
	for _, s := range see.away {
		if !belongs(s, f, see.slices) {
			continue
		}
		name := s.Name
		if ok, why := s.Ready(); !ok {
			why, _, _ = strings.Cut(why, ":") // without the details of the slice's health
			name += " (" + why + ")"
		}
		u.Slices = append(u.Slices, name)
	}
	u.Gone = max(0, lacks-len(u.Slices))
	if len(u.Slices) == 0 && u.Gone == 0 {
		return nil
	}
	return u
}

// partText says what is unknown about the run if rec.Unseen is set.
func partText(rec *record.Record) string {
	u := rec.Unseen
	if len(u.Slices) > 0 {
		return fmt.Sprintf("run %s may still run on %s, which could not be asked", rec.Run, tpu.FewNames(u.Slices))
	}
	return fmt.Sprintf("slices of run %s that are gone or were made again since: %d of %d", rec.Run, u.Gone, u.Of)
}

// mayRunOn returns the error that a stopped run may still be active on slices that could
// not be asked, or nil if there are none.
func mayRunOn(rec *record.Record) error {
	if rec.Unseen == nil || len(rec.Unseen.Slices) == 0 {
		return nil
	}
	return &stage.Error{Stage: stage.Stopping, Err: rec.Unseen.Err, Text: partText(rec), Advice: "end it there with: multihost stop " + rec.Run}
}

// Part returns the error that a command has seen only a part of a run, or nil if it has
// seen all. again is the command to type once the other slices answer.
func Part(rec *record.Record, during stage.Stage, again string) error {
	if rec.Unseen == nil {
		return nil
	}
	advice := "once they answer: " + again
	if len(rec.Unseen.Slices) == 0 {
		advice = "the slices that exist and the runs that they know: multihost ps --all"
	}
	return &stage.Error{Stage: during, Err: rec.Unseen.Err, Lost: true, Text: partText(rec), Advice: advice}
}

// endOfAPart returns the error for a run that succeeded on the seen workers, if these are
// only a part: the others may still run or may have failed. It returns nil if f follows the
// whole run.
func endOfAPart(f *follow.Following) error {
	err := Part(f.Rec, stage.Follow, "multihost attach "+f.Ref.Run)
	if err != nil && f.Sum != nil {
		f.Sum.OK, f.Sum.ExitCode, f.Sum.Text = false, follow.LostCode, f.Sum.Text+"; "+partText(f.Rec)
	}
	return err
}
