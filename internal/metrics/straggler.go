package metrics

import (
	"cmp"
	"fmt"
	"slices"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// The limits from which a worker or slice lags. Workers that train together wait for each
// other in every step, so their medians agree within a few per cent. A median 1.5 times as
// large is no noise, unless steps take hardly any time.
const (
	slowRatio   = 1.5
	slowAtLeast = 0.010 // seconds above the others
	behindSteps = 2     // MaxText prints each step one step late

	behindAtLeast = 10 // seconds of work, while the run goes on
)

// stragglers returns who lags in a: first the slices whose workers all lag, then single
// workers, the worst first. During the run, being behind counts only from behindAtLeast on,
// because lines of different workers arrive at different times.
func stragglers(a *Attempt, live bool) []Straggler {
	var found []Straggler
	all := workerMedians(a)
	add := func(x Straggler, ok bool) {
		if ok {
			found = append(found, x)
		}
	}
	for i := range a.Slices {
		s := &a.Slices[i]
		if len(a.Slices) > 1 {
			add(slowSlice(a, s))
		}
	}
	for i := range a.Slices {
		for j := range a.Slices[i].Workers {
			w := &a.Slices[i].Workers[j]
			if slices.ContainsFunc(found, func(x Straggler) bool { return x.Slice == w.Slice && x.Worker < 0 }) {
				continue // already named with its slice
			}
			add(slowWorker(a, w, all))
			add(behind(a, w, live))
		}
	}
	found = joinBehind(a, found)
	slices.SortStableFunc(found, func(x, y Straggler) int {
		return cmp.Or(cmp.Compare(min(x.Worker, 0), min(y.Worker, 0)), cmp.Compare(finite(y.Ratio), finite(x.Ratio)), cmp.Compare(y.Missing, x.Missing))
	})
	return found
}

func finite(n Number) float64 {
	if !n.Known() {
		return 0
	}
	return float64(n)
}

// middle returns the median of the known values. It changes the order of values.
func middle(values []Number) Number {
	values = slices.DeleteFunc(values, func(n Number) bool { return !n.Known() })
	if len(values) == 0 {
		return Unknown
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

func slow(own, others Number) bool {
	return own.Known() && others.Known() && float64(own) >= slowRatio*float64(others) && float64(own-others) >= slowAtLeast
}

func slowSlice(a *Attempt, s *Slice) (Straggler, bool) {
	var medians []Number
	for i := range a.Slices {
		if a.Slices[i].Number != s.Number {
			medians = append(medians, a.Slices[i].Median.StepSeconds)
		}
	}
	own, others := s.Median.StepSeconds, middle(medians)
	if !slow(own, others) {
		return Straggler{}, false
	}
	for i := range s.Workers {
		if m := s.Workers[i].Median.StepSeconds; m.Known() && !slow(m, others) {
			return Straggler{}, false // only some workers are slow, and each is named
		}
	}
	x := Straggler{Kind: SlowSteps, Name: s.fold(), Slice: s.Number, Worker: -1, Median: own, Others: others, Ratio: own / others,
		Last: s.Last.Step, Missing: a.Last.Step - s.Last.Step}
	x.Text = fmt.Sprintf("slice %d (%s) takes %s a step, the other slices %s (×%.2f)", s.Number, x.Name, seconds(own), seconds(others), float64(x.Ratio))
	return x, true
}

func (s *Slice) fold() string {
	ids := make([]tpu.WorkerID, len(s.Workers))
	for i, w := range s.Workers {
		ids[i] = tpu.WorkerID{Slice: w.Slice, Worker: w.Worker}
	}
	return tpu.Fold(ids)
}

func workerMedians(a *Attempt) []Number {
	var medians []Number
	for i := range a.Slices {
		for j := range a.Slices[i].Workers {
			medians = append(medians, a.Slices[i].Workers[j].Median.StepSeconds)
		}
	}
	return slices.DeleteFunc(medians, func(n Number) bool { return !n.Known() })
}

// slowWorker compares a worker with the median over all workers, which one straggler does
// not move, or with the faster one of two workers.
func slowWorker(a *Attempt, w *Worker, all []Number) (Straggler, bool) {
	own, others := w.Median.StepSeconds, middle(all)
	if len(all) == 2 {
		others = min(all[0], all[1])
	}
	if !slow(own, others) {
		return Straggler{}, false
	}
	x := Straggler{Kind: SlowSteps, Name: w.Name, Slice: w.Slice, Worker: w.Worker, Median: own, Others: others, Ratio: own / others,
		Last: w.Last.Step, Missing: a.Last.Step - w.Last.Step}
	x.Text = fmt.Sprintf("%s takes %s a step, the other workers %s (×%.2f)", w.Name, seconds(own), seconds(others), float64(x.Ratio))
	return x, true
}

// behind returns a worker whose last step is before that of the run.
func behind(a *Attempt, w *Worker, live bool) (Straggler, bool) {
	missing := a.Last.Step - w.Last.Step
	if w.Steps == 0 || missing < behindSteps {
		return Straggler{}, false
	}
	if work := float64(missing) * float64(a.Median.StepSeconds); live && !(work >= behindAtLeast) {
		return Straggler{}, false
	}
	x := Straggler{Kind: Behind, Name: w.Name, Slice: w.Slice, Worker: w.Worker, Median: w.Median.StepSeconds, Others: a.Median.StepSeconds,
		Ratio: w.Median.StepSeconds / a.Median.StepSeconds, Last: w.Last.Step, Missing: missing}
	x.Text = fmt.Sprintf("%s is at step %d, %s behind", w.Name, w.Last.Step, event.Count(int(missing), "step"))
	return x, true
}

// joinBehind makes one straggler of a slice whose workers are all behind.
func joinBehind(a *Attempt, found []Straggler) []Straggler {
	if len(a.Slices) < 2 {
		return found
	}
	for i := range a.Slices {
		s := &a.Slices[i]
		of := func(x Straggler) bool { return x.Kind == Behind && x.Slice == s.Number }
		count := 0
		for _, x := range found {
			if of(x) {
				count++
			}
		}
		if count < 2 || count < len(s.Workers) {
			continue
		}
		found = slices.DeleteFunc(found, of)
		x := Straggler{Kind: Behind, Name: s.fold(), Slice: s.Number, Worker: -1, Median: s.Median.StepSeconds, Others: a.Median.StepSeconds,
			Ratio: s.Median.StepSeconds / a.Median.StepSeconds, Last: s.Last.Step, Missing: a.Last.Step - s.Last.Step}
		x.Text = fmt.Sprintf("slice %d (%s) is at step %d, %s behind", s.Number, x.Name, x.Last, event.Count(int(x.Missing), "step"))
		found = append(found, x)
	}
	return found
}

// seconds writes a step time that may be unknown.
func seconds(n Number) string {
	if !n.Known() {
		return "-"
	}
	return event.StepTime(float64(n))
}
