package workers

import (
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// A clocked is a connection that only has the offset of its worker's clock.
type clocked struct {
	remote.Conn
	offset time.Duration
}

func (c clocked) ClockOffset() time.Duration { return c.offset }

func TestClocksThatAreOffAreTold(t *testing.T) {
	for _, tt := range []struct {
		story   string
		offsets []time.Duration
		want    string
		hint    string
	}{
		{"all are right", []time.Duration{0, time.Second, -9 * time.Second}, "", ""},
		{"one is ahead", []time.Duration{0, time.Minute}, "the clock of s0w1 is 1m00s ahead of this machine's", "on the worker: timedatectl; sudo systemctl restart chrony"},
		{"one is behind", []time.Duration{-time.Hour, 0}, "the clock of s0w0 is 1h00m behind this machine's", "on the worker: timedatectl; sudo systemctl restart chrony"},
		{"all are behind alike", []time.Duration{-time.Hour, -time.Hour}, "the clock of all workers is 1h00m behind this machine's", "the clock of this machine is the wrong one: timedatectl"},
		{"the only worker", []time.Duration{time.Hour}, "the clock of s0w0 is 1h00m ahead of this machine's", "on the worker: timedatectl; sudo systemctl restart chrony"},
	} {
		said := &testkit.Recorder{}
		c := &Connected{IDs: testkit.WorkerIDs(1, len(tt.offsets))}
		for _, offset := range tt.offsets {
			c.Conns = append(c.Conns, clocked{offset: offset})
		}
		c.tellClocks(said)
		notes := said.Notes()
		if len(notes) > 1 || (len(notes) == 1) != (tt.want != "") || tt.want != "" && (!said.Said(event.Warn, tt.want) || notes[0].Hint != tt.hint) {
			t.Errorf("%s: said %+v", tt.story, notes)
		}
	}
}

func TestARunAsItsWorkersKnowIt(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var f FoundRun
	f.add(tpu.WorkerID{}, launch.Info{Exit: &launch.Exit{}, Seen: true}, 0)
	f.add(tpu.WorkerID{Worker: 1}, launch.Info{Phase: launch.Running, Followers: 1, Stopped: launch.Stopped{Reason: "first", At: at}}, 0)
	f.add(tpu.WorkerID{Worker: 2}, launch.Info{Exit: &launch.Exit{Code: 143, Reason: "stop"}, Verdict: "s0w2 was first", Stopped: launch.Stopped{Reason: "second", At: at.Add(time.Minute)}}, time.Hour)
	f.add(tpu.WorkerID{Worker: 3}, launch.Info{Phase: launch.Lost}, 0)
	if f.Alive != 1 || f.Well != 1 || f.Broken != 2 || !f.Followed || !f.Seen || len(f.Workers) != 4 || f.Stopped.Reason != "first" {
		t.Errorf("%+v", f)
	}
	if got := f.Ended(); got != "failed: s0w2 was first" {
		t.Errorf("ended: %q", got)
	}
	f.Verdict, f.Info.Exit = "", &launch.Exit{Code: 3}
	if got := f.Ended(); got != "exit code 3" {
		t.Errorf("ended: %q", got)
	}
	for _, tt := range []struct {
		phase launch.Phase
		rank  int
		text  string
	}{
		{launch.Running, 2, `stop: run "r" of ann@laptop runs as login "ann"`},
		{launch.Starting, 1, `stop: run "r" of ann@laptop runs as login "ann"`},
		{launch.Exited, 0, `stop: run "r" of ann@laptop ran as login "ann"`},
	} {
		f.Info = launch.Info{Ref: launch.Ref{Run: "r"}, Owner: "ann@laptop", Login: "ann", Phase: tt.phase}
		if got := rank(f.Info); got != tt.rank {
			t.Errorf("rank of %s: %d", tt.phase, got)
		}
		if err := f.Stoppable(); !stage.Is(err, stage.Stopping) || err.Error() != tt.text {
			t.Errorf("%v, want %s", err, tt.text)
		}
	}
	f.Info.Mine = true
	if err := f.Stoppable(); err != nil {
		t.Errorf("one's own: %v", err)
	}
}

func TestSlicesInOneLine(t *testing.T) {
	many := make([]tpu.Slice, 9)
	for i := range many {
		many[i] = tpu.Slice{Name: "t-" + string(rune('0'+i)), Index: i, Workers: make([]tpu.Worker, 1)}
	}
	for want, all := range map[string][]tpu.Slice{
		"t-0 (v4-16): 2 workers s0w[0-1]":           {{Name: "t-0", Type: "v4-16", Workers: make([]tpu.Worker, 2)}},
		"t-0, t-1, t-2, …, t-8: 9 workers s[0-8]w0": many,
	} {
		if got := Describe(tpu.Selection{Slices: all}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
