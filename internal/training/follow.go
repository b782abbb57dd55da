package training

import (
	"context"
	"strconv"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/metrics"
	"multihost/internal/stage"
)

// followPace is how often log files are read. followQuiet is how long they may stay unchanged
// before Follow reports it.
const (
	followPace  = time.Second
	followQuiet = 30 * time.Second
)

// Follow emits each new step as a result until the run ends. Another command must copy the
// run's logs to this machine. If ctx ends first, Follow returns its cause.
func (t *Training) Follow(ctx context.Context, clock gcp.Clock, sink event.Sink, run string) error {
	shown, grown, told := int64(-1), clock.Now(), false
	for {
		if last, ok := t.Latest(); ok && last.Step != shown {
			shown = last.Step
			e := Event(last)
			sink.Emit(event.Result{Name: "training", Text: e.String() + "\n", Data: e})
		}
		if t.Ended() {
			return nil
		}
		if err := stage.Sleep(ctx, clock, followPace); err != nil {
			return err
		}
		changed, err := t.Update()
		if err != nil {
			return err
		}
		if changed {
			grown = clock.Now()
		} else if !told && clock.Now().Sub(grown) > followQuiet {
			told = true
			event.Notef(sink, event.Info, "when no command brings them here, type in another terminal: multihost attach "+run, "the logs of run %s on this machine do not grow", run)
		}
	}
}

// Event turns a step into an event.
func Event(s metrics.Sample) event.Training {
	known := func(n metrics.Number) float64 {
		if !n.Known() {
			return 0
		}
		return float64(n)
	}
	e := event.Training{Step: s.Step, StepSeconds: known(s.StepSeconds), TFLOPs: known(s.TFLOPs), MFU: known(s.MFU), Tokens: known(s.Tokens), Loss: s.LossText}
	if s.Loss.Known() {
		e.Loss = strconv.FormatFloat(float64(s.Loss), 'g', 5, 64)
	}
	return e
}
