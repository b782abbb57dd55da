package journal_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/tpu"
)

// script makes entries, a second apart, from lines like "a begin run".
func script(text string) []journal.Entry {
	at := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	var entries []journal.Entry
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		at = at.Add(time.Second)
		var e event.Event
		switch f[1] {
		case "begin":
			e = journal.Begin{Command: f[2]}
		case "attempt":
			e = event.Attempt{Run: "r", Attempt: int(f[2][0] - '0'), Begin: at, Workers: 2}
		case "start":
			e = event.Phase{Name: f[2], State: event.Started}
		case "done":
			e = event.Phase{Name: f[2], State: event.Done, Elapsed: time.Second}
		case "fails":
			e = event.Phase{Name: f[2], State: event.Failed, Elapsed: time.Second}
		case "note":
			e = event.Note{Level: event.Warn, Text: f[2]}
		case "request":
			e = event.Request{Text: f[2]}
		case "worker":
			e = event.WorkerDone{Worker: int(f[2][0] - '0'), Code: int(f[3][0] - '0'), Error: strings.Join(f[4:], " ")}
		case "preflight":
			e = event.Result{Name: "preflight", Data: json.RawMessage(`[]`)}
		case "release":
			e = event.Release{Attempt: int(f[2][0] - '0')}
		case "over":
			e = event.AttemptEnd{Attempt: int(f[2][0] - '0'), Cause: f[3], Again: true}
		case "summary":
			e = event.Summary{Attempt: int(f[2][0] - '0'), Text: "summary of " + f[2]}
		case "end":
			e = journal.End{Error: strings.Join(f[2:], " ")}
		}
		entries = append(entries, journal.Entry{Time: at, By: f[0], Kind: e.Kind(), Event: e})
	}
	return entries
}

func outline(s *journal.Story) []string {
	var all []string
	for _, a := range s.Attempts {
		var b strings.Builder
		b.WriteString(string(rune('0' + a.Number())))
		b.WriteString(" of " + strings.Join(a.Commands, "+") + ":")
		for _, p := range a.Phases {
			b.WriteString(" " + p.Name + "=" + string(p.State))
		}
		for _, n := range a.Notes {
			b.WriteString(" " + n.Text)
		}
		if a.Outcome != nil {
			b.WriteString(", " + a.Outcome.Cause)
		}
		if a.Summary != nil {
			b.WriteString(", " + a.Summary.Text)
		}
		if a.End != nil {
			b.WriteString(", ended")
			if a.End.Error != "" {
				b.WriteString(" with " + a.End.Error)
			}
		}
		all = append(all, b.String())
	}
	return all
}

func TestStories(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		want   []string
	}{
		"a run that succeeds": {`
			a begin run
			a start discover
			a done discover
			a attempt 1
			a start sync
			a done sync
			a preflight
			a release 1
			a start run
			a done run
			a summary 1
			a end`,
			[]string{"1 of run: discover=done sync=done run=done, summary of 1, ended"}},
		"a job whose provisioning fails": {`
			a begin job
			a request price
			a start request
			a fails request
			a note hint
			a end quota`,
			[]string{"0 of : request=failed price hint, ended with quota"}},
		"a run whose runner is killed goes on without an end": {`
			a begin run
			a attempt 1
			a start run`,
			[]string{"1 of run: run=started"}},
		"an attach after the runner was killed": {`
			a begin run
			a attempt 1
			a start run
			b begin attach
			b start connect
			b done connect
			b attempt 1
			b start run
			b done run
			b summary 1
			b end`,
			[]string{"1 of run+attach: run=started connect=done run=done, summary of 1, ended"}},
		"an attach to a run that was left": {`
			a begin run
			a attempt 1
			a start run
			a done run
			a end
			b begin attach
			b attempt 1
			b start run`,
			[]string{"1 of run+attach: run=done run=started"}},
		"what comes between two attempts is how the second was reached; what comes after the last is its own": {`
			a begin job
			a start provision
			a done provision
			a attempt 1
			a start run
			a fails run
			a over 1 preempted
			a note again
			a start provision
			a done provision
			a attempt 2
			a start run
			a done run
			a summary 2
			a start teardown
			a done teardown
			a end`,
			[]string{"1 of job: provision=done run=failed, preempted",
				"2 of job: provision=done run=done teardown=done again, summary of 2, ended"}},
		"a phase known by its end only": {`
			a begin run
			a attempt 1
			a done qr`,
			[]string{"1 of run: qr=done"}},
		"nothing": {``, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, outline(journal.Tell(script(tc.script)))); diff != "" {
				t.Errorf("story (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOfTwoThatFollowedARunTheOneThatSawItsEndIsBelieved(t *testing.T) {
	t.Parallel()
	s := journal.Tell(script(`
		a begin run
		a attempt 1
		b begin attach
		b attempt 1
		b worker 0 9 lost
		a worker 0 3
		b worker 0 9 lost
		b worker 1 4
		a worker 1 5`))
	ends := s.Newest().Ends
	for id, want := range map[tpu.WorkerID]int{{Worker: 0}: 3, {Worker: 1}: 4} {
		if got := ends[id]; got.Code != want || got.Error != "" {
			t.Errorf("%s ended with %+v, want code %d", id, got, want)
		}
	}
}

func TestPhasesHaveTimes(t *testing.T) {
	t.Parallel()
	s := journal.Tell(script(`
		a start discover
		a done discover
		a attempt 1
		a done qr`))
	a := s.Newest()
	if d := a.Phases[0].End.Sub(a.Phases[0].Begin); d != time.Second {
		t.Errorf("discover took %v, want 1 s by the times of its lines", d)
	}
	if p := a.Phases[1]; p.Name != "qr" || p.End.Sub(p.Begin) != time.Second || p.End != s.Last {
		t.Errorf("qr is %+v, want the second before its end", p)
	}
	if a.Begins() != a.Phases[0].Begin {
		t.Errorf("the attempt begins %v, want with its first phase", a.Begins())
	}
}

func TestWhatLogsSayOfAnEnd(t *testing.T) {
	code := 7
	for _, tt := range []struct {
		attempt *metrics.Attempt
		want    journal.Known
	}{
		{nil, journal.Known{}},
		{&metrics.Attempt{}, journal.Known{Logs: true}},
		{&metrics.Attempt{Ended: true, ExitCode: &code}, journal.Known{Logs: true, Ended: true, Code: 7}},
	} {
		if got := journal.KnownOf(tt.attempt); got != tt.want {
			t.Errorf("%+v, want %+v", got, tt.want)
		}
	}
}
