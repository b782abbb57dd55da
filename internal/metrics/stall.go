package metrics

import (
	"fmt"
	"math"
	"time"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// A run without a step for longer than both limits has stalled. A checkpoint or an
// evaluation takes only minutes.
const (
	stallSteps   = 10 // median step times
	stallAtLeast = 10 * time.Minute
)

// A StallChange is the result of LookForStall.
type StallChange int

// The changes of a stall.
const (
	StallSame  StallChange = iota // nothing new
	StallBegan                    // steps have stopped
	StallEnded                    // steps continue
)

// LookForStall finds out whether the workers that have not ended stand still: no step line
// and no evaluation of any of them has been read for the duration limit. A limit of 0 means
// ten times the longest median step time of a worker, at least ten minutes. Nothing stalls
// before the first step, which compiles. Attempt has the stall, too.
func (c *Collector) LookForStall(now time.Time, limit time.Duration) (Stall, StallChange) {
	c.mu.Lock()
	heard, blind, any := c.heard, c.blind, c.any
	open := len(c.stalls) > 0 && c.stalls[len(c.stalls)-1].Ended == nil
	if open && heard.After(c.stalls[len(c.stalls)-1].Began) {
		s := &c.stalls[len(c.stalls)-1]
		s.Ended = &heard
		s.Text = fmt.Sprintf("steps go on after %s; %s had stopped first, after step %d", event.Age(heard.Sub(s.Began)), s.First, s.Step)
		defer c.mu.Unlock()
		return *s, StallEnded
	}
	c.mu.Unlock()
	if !any || open || c.o.Now == nil {
		return Stall{}, StallSame
	}
	if limit <= 0 {
		limit = c.stallLimit()
	}
	if now.Sub(heard) < limit || now.Sub(blind) < limit {
		return Stall{}, StallSame
	}
	s, ok := c.stall(now, heard, limit)
	if !ok {
		return Stall{}, StallSame
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard.After(heard) {
		return Stall{}, StallSame // a step line came just now
	}
	c.stalls = append(c.stalls, s)
	return s, StallBegan
}

// Blind records that the steps of some worker could not be read until now. That time does
// not count towards a stall.
func (c *Collector) Blind(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blind = now
}

// AddStall adds a stall that was seen while the run was followed. The report of its end
// replaces that of its beginning.
func (a *Attempt) AddStall(s Stall) {
	for i := range a.Stalls {
		if a.Stalls[i].Began.Equal(s.Began) {
			a.Stalls[i] = s
			return
		}
	}
	a.Stalls = append(a.Stalls, s)
}

func (c *Collector) stallLimit() time.Duration {
	longest := 0.0
	for _, s := range c.streams {
		s.mu.Lock()
		m := s.seconds.median()
		if math.IsNaN(m) {
			m = finite(s.last.StepSeconds)
		}
		s.mu.Unlock()
		longest = max(longest, m)
	}
	return max(stallAtLeast, time.Duration(min(longest, 1e6)*stallSteps*float64(time.Second)))
}

// stall returns a stall that names the workers that stopped first: of those that print
// steps and have not ended, the ones with the earliest last step. It returns false if there
// are none.
func (c *Collector) stall(now, heard time.Time, limit time.Duration) (Stall, bool) {
	var first []tpu.WorkerID
	var lowest, highest int64
	others := 0
	for _, s := range c.streams {
		s.mu.Lock()
		step, counts := s.last.Step, s.steps > 0 && !s.ended
		s.mu.Unlock()
		if !counts {
			continue
		}
		switch {
		case len(first) == 0 || step < lowest:
			others += len(first)
			first, lowest = append(first[:0], s.id), step
		case step == lowest:
			first = append(first, s.id)
		default:
			others++
		}
		highest = max(highest, step)
	}
	if len(first) == 0 {
		return Stall{}, false
	}
	s := Stall{Began: heard, Seen: now, Limit: limit, First: tpu.Fold(first), Step: lowest}
	s.Text = fmt.Sprintf("no step for %s: ", event.Age(now.Sub(heard)))
	switch {
	case others > 0:
		s.Text += fmt.Sprintf("%s stopped first, after step %d; %s came to step %d", s.First, lowest, event.Count(others, "other worker"), highest)
	case len(first) == 1:
		s.Text += fmt.Sprintf("%s stopped after step %d", s.First, lowest)
	default:
		s.Text += fmt.Sprintf("all %d workers stopped after step %d", len(first), lowest)
	}
	return s, true
}
