package runs

import (
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/tpu"
)

func TestEndOfAttempt(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	entry := func(e event.Event) journal.Entry { return journal.Entry{Time: at, By: "1", Kind: e.Kind(), Event: e} }
	worker := func(id string, code int, reason string, after time.Duration) journal.Entry {
		w, _ := tpu.ParseWorkerID(id)
		return entry(event.WorkerDone{Slice: w.Slice, Worker: w.Worker, Code: code, Reason: reason, End: at.Add(after)})
	}
	begin := func(n int) journal.Entry { return entry(event.Attempt{Run: "r", Attempt: n}) }
	for name, c := range map[string]struct {
		entries []journal.Entry
		text    string // "": no end
		first   string
	}{
		"no attempt": {},
		"running":    {entries: []journal.Entry{begin(1), worker("s0w0", 1, "", 0)}},
		"the verdict tells who": {
			entries: []journal.Entry{begin(1), worker("s0w1", 3, "", time.Second), worker("s0w0", 3, "", 0),
				entry(event.Summary{Run: "r", Attempt: 1, Text: "run r failed: s0w1 was first, exit code 3", FirstFail: "s0w1: exit code 3"})},
			text: "failed: s0w1 was first, exit code 3", first: "s0w1",
		},
		"another attempt followed": {
			entries: []journal.Entry{begin(1), worker("s0w1", 143, "fail-fast", -time.Second), worker("s1w0", 4, "", time.Second), worker("s0w3", 3, "", 0),
				entry(event.AttemptEnd{Attempt: 1, Cause: "failure", Why: "s0w3: exit code 3", Again: true}), begin(2)},
			text: event.AttemptEnd{Attempt: 1, Cause: "failure", Why: "s0w3: exit code 3", Again: true}.Reason(), first: "s0w3",
		},
		"success": {
			entries: []journal.Entry{begin(1), worker("s0w0", 0, "", 0), entry(event.Summary{Run: "r", OK: true, Attempt: 1, Text: "run r succeeded on its worker"})},
			text:    "succeeded on its worker",
		},
	} {
		e := endOfAttempt(journal.Tell(c.entries), 1)
		switch {
		case e == nil && c.text != "":
			t.Errorf("%s: no end", name)
		case e != nil && e.Text != c.text:
			t.Errorf("%s: %q, want %q", name, e.Text, c.text)
		case e != nil && (e.First == nil) != (c.first == ""), e != nil && e.First != nil && e.First.String() != c.first:
			t.Errorf("%s: first %v, want %q", name, e.First, c.first)
		}
	}
	e := RunEnd{at: at, Text: "failed: s1w2 was first, exit code 1"}
	e.failedFirst("s1w2 was first, exit code 1")
	if got, want := e.Say("r", at.Add(5*time.Minute)), `run "r" has ended at 2026-01-02 03:04:05 UTC, 5m00s ago: failed: s1w2 was first, exit code 1`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := e.logsHint("r"); !strings.HasSuffix(got, "multihost logs r --first-failure") {
		t.Error(got)
	}
}

// TestJudgeByWorkers judges a run whose end no runner saw.
func TestJudgeByWorkers(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	id := func(worker int) tpu.WorkerID { return tpu.WorkerID{Worker: worker} }
	e := RunEnd{Text: "exit code 0"}
	e.judge(map[tpu.WorkerID]event.WorkerDone{
		id(0): {End: at}, id(1): {Code: 4, End: at.Add(3 * time.Second)}, id(2): {Code: 137, Signal: "KILL", End: at.Add(2 * time.Second)},
		id(3): {Code: 143, Reason: "multihost stop", End: at.Add(time.Second)},
	})
	if e.Text != "failed: s0w2 was first, killed by SIGKILL" || *e.First != id(2) || !e.at.Equal(at.Add(3*time.Second)) {
		t.Errorf("%+v", e)
	}
	ok := RunEnd{Text: "exit code 0"}
	if ok.judge(map[tpu.WorkerID]event.WorkerDone{id(0): {End: at}}); ok.Text != "exit code 0" || ok.First != nil || !ok.at.Equal(at) {
		t.Errorf("%+v", ok)
	}
}
