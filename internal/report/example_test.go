package report_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/preflight"
	"multihost/internal/report"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// The amount of history that the command requests for a page.
const (
	points       = 256
	workerPoints = 64
)

// A training is an invented run.
type training struct {
	slices, workers, steps int // workers per slice
	slow                   tpu.WorkerID
	fails                  bool
	running                bool
	zero                   bool     // the loss is 0
	calm                   bool     // no step compiles or writes a checkpoint
	last                   []string // the last lines of the worker before it failed
	hostile                string   // the last lines of the workers, and all other texts that an attacker can choose
}

var begin = time.Date(2026, 3, 4, 9, 0, 0, 0, time.UTC)

// document reads the lines that the workers would have printed.
func (tr training) document(t testing.TB) *metrics.Document {
	t.Helper()
	kind, err := tpu.ParseType("v5litepod-16")
	testkit.Must(t, err)
	var ids []tpu.WorkerID
	for s := range tr.slices {
		for w := range tr.workers {
			ids = append(ids, tpu.WorkerID{Slice: s, Worker: w})
		}
	}
	c := metrics.NewCollector(metrics.Options{Workers: ids, Type: kind})
	var b strings.Builder
	for i, id := range ids {
		b.Reset()
		for n := range tr.steps {
			base := 1.2 + 0.004*math.Sin(float64(n)/7) + 0.01*float64(id.Slice%5)
			switch {
			case tr.calm:
			case n == 0:
				base = 48.2
			case n%100 == 99: // a checkpoint
				base = 2.4
			}
			if id == tr.slow && n > tr.steps/3 {
				base *= 1.7
			}
			loss := 2.1 + 8*math.Exp(-float64(n)/(0.2*float64(tr.steps)+1)) + 0.02*math.Sin(float64(n)*1.7)
			if tr.zero {
				loss = 0
			}
			fmt.Fprintf(&b, "completed step: %d, seconds: %.3f, TFLOP/s/device: %.3f, Tokens/s/device: %.3f, total_weights: 65536, loss: %.3f\n",
				n, base, 150.3/base, 5120/base, loss)
		}
		_, _ = c.Stream(i).Write([]byte(b.String()))
		if !tr.running {
			c.Stream(i).Finish()
		}
	}
	a := c.Attempt(metrics.View{Points: points, WorkerPoints: workerPoints})
	a.Number, a.Ended = 1, !tr.running
	for i := range a.Slices {
		a.Slices[i].Name = fmt.Sprintf("train-%d", a.Slices[i].Number)
	}
	return &metrics.Document{
		Version: metrics.DocumentVersion, Run: "train" + tr.hostile, Command: "python3 train.py --steps=1000" + tr.hostile, Generated: begin,
		AcceleratorType: kind.Name, Generation: "v5e", PeakTFLOPs: 197, Attempts: []metrics.Attempt{a},
		Compare: &metrics.Comparison{Preset: "v5e/32b", Model: "32b", Type: "v5litepod-256", Slices: tr.slices, TFLOPs: 128, MFU: 0.6497, Ratio: a.Median.TFLOPs / 128,
			Note: "published for slices of v5litepod-256"},
	}
}

// story returns the journal of the training.
func (tr training) story(t testing.TB) *journal.Story {
	t.Helper()
	at := begin
	var entries []journal.Entry
	tell := func(after time.Duration, e event.Event) {
		at = at.Add(after)
		entries = append(entries, journal.Entry{Time: at, By: "a", Kind: e.Kind(), Event: e})
	}
	phase := func(name string, took time.Duration, detail string) {
		tell(0, event.Phase{Name: name, State: event.Started})
		tell(took, event.Phase{Name: name, State: event.Done, Detail: detail, Elapsed: took})
	}
	n := tr.slices * tr.workers
	tell(0, journal.Begin{Command: "job"})
	phase("request", 2*time.Second, "queued resource train: 2 × v5litepod-16")
	phase("provision", 312*time.Second, "")
	phase("connect", 900*time.Millisecond, fmt.Sprintf("%d/%d workers", n, n))
	var names []string
	for s := range tr.slices {
		names = append(names, fmt.Sprintf("train-%d", s))
	}
	tell(0, event.Attempt{Run: "train" + tr.hostile, Attempt: 1, Command: "python3 train.py" + tr.hostile, Begin: at, Slices: names, Workers: n, LogDir: "/home/ann/.local/state/multihost/runs/train"})
	tell(0, event.Note{Level: event.Warn, Text: "preflight: rto_min failed on s0w1: Operation not permitted" + tr.hostile, Hint: "to see each setting: multihost preflight check"})
	phase("sync", 4*time.Second, "120 files, up to 12 new (1.2 MB) to a worker")
	rows, err := json.Marshal([]preflight.Row{
		{Setting: "tcp_rmem", Want: "4096 41943040 314572800", Before: "4096 131072 6291456", After: "4096 41943040 314572800", Outcome: preflight.Changed, Workers: "s[0-1]w[0-3]"},
		{Setting: "rto_min", Want: "5ms", Before: "200ms", After: "200ms", Outcome: preflight.Failed, Reason: "Operation not permitted" + tr.hostile, Workers: "s0w1"},
	})
	testkit.Must(t, err)
	tell(0, event.Result{Name: "preflight", Data: json.RawMessage(rows)})
	phase("preflight", 1200*time.Millisecond, "11/12 settings")
	phase("free", 300*time.Millisecond, "no process holds a TPU device")
	rel := event.Release{Attempt: 1, First: at}
	for s := range tr.slices {
		for w := range tr.workers {
			rel.Workers = append(rel.Workers, event.ReleasedOn{Slice: s, Worker: w, After: time.Duration((s*37+w*13)%41) * time.Millisecond})
		}
	}
	tell(40*time.Millisecond, rel)
	tell(0, event.Phase{Name: "run", State: event.Started, Detail: "python3 train.py"})
	if tr.running {
		return journal.Tell(entries)
	}
	const took = 22 * time.Minute
	at = at.Add(took)
	sum := event.Summary{Run: "train", Attempt: 1, OK: !tr.fails, Text: "run train succeeded on all workers", LogDir: "/l", Skew: 40 * time.Millisecond}
	for s := range tr.slices {
		for w := range tr.workers {
			end := event.WorkerDone{Slice: s, Worker: w, End: at}
			if tr.fails {
				end.Code, end.Signal, end.Reason = 143, "TERM", "fail-fast: a worker failed"
				if s == 1 && w == 2 {
					end.Code, end.Signal, end.Reason = 137, "KILL", ""
				}
			}
			tell(0, end)
		}
	}
	if tr.fails {
		sum.ExitCode, sum.CommandCode, sum.Text, sum.FirstFail = 137, 137, "run train failed: s1w2 was first, killed by signal KILL", "s1w2: killed by signal KILL"
		sum.LastLines = []string{"completed step: 999, seconds: 1.210", "RuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 12.06G at the bottom of memory" + tr.hostile, "Killed\x1b[31m"}
		if tr.last != nil {
			sum.LastLines = tr.last
		}
	}
	tell(0, event.Phase{Name: "run", State: event.Done, Elapsed: took})
	tell(0, sum)
	phase("teardown", 44*time.Second, "")
	tell(0, journal.End{ExitCode: sum.ExitCode})
	return journal.Tell(entries)
}

func (tr training) input(t testing.TB) report.Input {
	t.Helper()
	s := tr.story(t)
	return report.Input{Document: tr.document(t), Story: s, Now: s.Last.Add(90 * time.Second)}
}

// long returns the document of a run of a million steps on 2048 workers, one of them slow.
func long() *metrics.Document {
	const steps, workers = 1_000_000, 64
	series := func(points int, factor float64) *metrics.Series {
		per := int64(1)
		for steps/per > int64(points) {
			per *= 2
		}
		s := &metrics.Series{StepsPerPoint: per}
		for at := int64(0); at < steps; at += per {
			v := metrics.Number(factor * (1.2345678 + 0.01*math.Sin(float64(at)/1e5)))
			s.Step, s.Lines, s.BadLoss = append(s.Step, at), append(s.Lines, per), append(s.BadLoss, 0)
			s.StepSeconds, s.Min, s.Max = append(s.StepSeconds, v), append(s.Min, v*0.98), append(s.Max, v*1.7)
			s.TFLOPs, s.MFU, s.Tokens = append(s.TFLOPs, 150/v), append(s.MFU, 0.7/v), append(s.Tokens, 5000/v)
			s.Loss = append(s.Loss, metrics.Number(2+8*math.Exp(-float64(at)/2e5)))
		}
		return s
	}
	figures := func(points int, factor float64) metrics.Figures {
		v := metrics.Number(1.2345678 * factor)
		return metrics.Figures{
			Steps: steps, Last: metrics.Sample{Step: steps - 1, StepSeconds: v, TFLOPs: 150 / v, MFU: 0.7 / v, Tokens: 5000 / v, Loss: 2.0543},
			Median: metrics.Median{Steps: steps, StepSeconds: v, TFLOPs: 150 / v, MFU: 0.7 / v, Tokens: 5000 / v}, Series: series(points, factor),
		}
	}
	a := metrics.Attempt{Number: 1, Ended: true, Figures: figures(points, 1), Stragglers: []metrics.Straggler{
		{Kind: metrics.SlowSteps, Name: "s17w33", Slice: 17, Worker: 33, Text: "s17w33 takes 2.099 s a step, the other workers 1.235 s (×1.70)"}}}
	for s := range 32 {
		slice := metrics.Slice{Number: s, Name: fmt.Sprintf("train-%d", s), Figures: figures(points, 1)}
		for w := range workers {
			factor := 1.0
			if s == 17 && w == 33 {
				factor = 1.7
			}
			id := tpu.WorkerID{Slice: s, Worker: w}
			slice.Workers = append(slice.Workers, metrics.Worker{Name: id.String(), Slice: s, Worker: w, Figures: figures(workerPoints, factor)})
		}
		a.Slices = append(a.Slices, slice)
	}
	return &metrics.Document{Version: metrics.DocumentVersion, Run: "train", Command: "python3 train.py", AcceleratorType: "v5litepod-256", Attempts: []metrics.Attempt{a}}
}
