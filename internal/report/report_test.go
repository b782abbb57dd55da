package report_test

import (
	"bytes"
	"html"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/report"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

func page(t *testing.T, in report.Input) string {
	t.Helper()
	var b bytes.Buffer
	testkit.Must(t, report.Write(&b, in))
	return b.String()
}

// words returns the text of the page without its markup.
func words(page string) string {
	var b strings.Builder
	for _, part := range strings.Split(page[strings.Index(page, "<main"):strings.Index(page, `<div id="data"`)], "<") {
		_, text, _ := strings.Cut(part, ">")
		b.WriteString(text + " ")
	}
	return html.UnescapeString(strings.Join(strings.Fields(b.String()), " "))
}

// TestVerdicts checks the text that people read first, for runs of which more or less is
// known.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 9, 0, 0, 0, time.UTC)
	tell := func(events ...event.Event) *journal.Story {
		var entries []journal.Entry
		for i, e := range events {
			entries = append(entries, journal.Entry{Time: at.Add(time.Duration(i) * time.Second), By: "a", Kind: e.Kind(), Event: e})
		}
		return journal.Tell(entries)
	}
	attempt := event.Attempt{Run: "r", Attempt: 1, Begin: at, Workers: 2, Slices: []string{"t"}}
	release := event.Release{Attempt: 1, First: at, Workers: []event.ReleasedOn{{}, {Worker: 1}}}
	started := event.Phase{Name: "run", State: event.Started}
	code := 3
	ended := &metrics.Document{Run: "r", Attempts: []metrics.Attempt{{Number: 1, Ended: true, ExitCode: &code}}}
	for name, tc := range map[string]struct {
		story *journal.Story
		doc   *metrics.Document
		want  string
	}{
		"nothing is known":              {tell(), nil, "Unknown this machine has neither logs nor a journal"},
		"only its logs":                 {tell(), ended, "Failed exit status 3"},
		"provisioning":                  {tell(journal.Begin{Command: "job"}, event.Phase{Name: "provision", State: event.Started}), nil, "Starting provision for 9 s"},
		"provisioning failed":           {tell(journal.Begin{Command: "job"}, journal.End{Error: "quota exceeded", ExitCode: 75}), nil, "Failed quota exceeded"},
		"running":                       {tell(attempt, release, started), nil, "Running run for 8 s"},
		"detached":                      {tell(attempt, release, journal.End{Detached: true}), nil, "Detached it goes on without this machine"},
		"left without a proof of a end": {tell(attempt, release, started, journal.End{Error: "it may still run on s0w1", ExitCode: 130}), nil, "Left it may still run on s0w1"},
		"stopped by Ctrl-C":             {tell(attempt, release, event.Summary{Attempt: 1, ExitCode: 130, Text: "run r was stopped on all 2 workers: interrupted (SIGINT)"}, journal.End{ExitCode: 130, Error: "interrupted (SIGINT)"}), nil, "Stopped run r was stopped on all 2 workers: interrupted (SIGINT)"},
		"succeeded":                     {tell(attempt, release, event.Summary{Attempt: 1, OK: true, Text: "run r succeeded on all 2 workers"}, journal.End{}), nil, "Succeeded run r succeeded on all 2 workers"},
		"failed":                        {tell(attempt, release, event.Summary{Attempt: 1, ExitCode: 3, CommandCode: 3, Text: "run r failed: s0w1 was first, exit code 3", FirstFail: "s0w1: exit code 3"}, journal.End{ExitCode: 3}), nil, "Failed run r failed: s0w1 was first, exit code 3"},
		"succeeded, but something is still billed": {tell(attempt, release, event.Summary{Attempt: 1, OK: true, Text: "run r succeeded"}, journal.End{Error: "it may still exist and be billed", ExitCode: 69}), nil, "Succeeded run r succeeded it may still exist and be billed"},
		"between two attempts": {tell(attempt, release, started, event.AttemptEnd{Attempt: 1, Cause: "preempted", Why: "slice t is gone", Again: true, Next: "trying again (1 of 3)"},
			event.Phase{Name: "provision", State: event.Started}), nil, "Starting attempt 1 ended: preempted: slice t is gone; trying again (1 of 3); provision for 6 s"},
		"a newer attempt runs": {tell(attempt, release, event.Summary{Attempt: 1, ExitCode: 3, Text: "failed"}, event.Attempt{Run: "r", Attempt: 2, Begin: at}, event.Release{Attempt: 2}, started), nil, "Running run for 5 s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := words(page(t, report.Input{Document: tc.doc, Story: tc.story, Now: at.Add(10*time.Second + 500*time.Millisecond)}))
			if !strings.Contains(got, tc.want) {
				t.Errorf("the page says\n%s\nwant %q", got, tc.want)
			}
		})
	}
}

func TestTheFirstFailureIsShownWithItsLastLines(t *testing.T) {
	t.Parallel()
	got := words(page(t, training{slices: 2, workers: 4, steps: 20, slow: tpu.WorkerID{Slice: 9}, fails: true}.input(t)))
	for _, want := range []string{
		"First failure s1w2: killed by signal KILL RuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 12.06G at the bottom of memory Its last lines: completed step: 999", "RESOURCE_EXHAUSTED", "multihost logs train --worker=s1w2",
		"exit status 137", "1 failed of 8 workers", "s1w2 killed by KILL", "s1w1 stopped", "1 of 2 settings as wanted on every worker",
		"8 workers started within 39 ms", "provision +2.0 s 5m12s",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page does not say %q:\n%s", want, got)
		}
	}
}

func TestWhatIsNotKnownIsNotMadeUp(t *testing.T) {
	t.Parallel()
	tr := training{slices: 1, workers: 2, steps: 0, slow: tpu.WorkerID{Slice: 9}}
	got := words(page(t, tr.input(t)))
	if !strings.Contains(got, "No step lines were found") || strings.Contains(got, "NaN") || strings.Contains(got, "Inf") {
		t.Errorf("a page without steps says\n%s", got)
	}
	if strings.Contains(got, "tokens/s") || strings.Contains(got, "–") {
		t.Errorf("a page without steps has columns of figures:\n%s", got)
	}
	tr.steps = 1
	in := tr.input(t)
	in.Document.Compare = nil
	in.Document.AcceleratorType = ""
	a := &in.Document.Attempts[0]
	a.Median.MFU, a.Last.MFU, a.Series.MFU[0] = metrics.Unknown, metrics.Unknown, metrics.Unknown
	got = words(page(t, in))
	if strings.Contains(got, "NaN") || strings.Contains(got, "MFU 7") || !strings.Contains(got, "TFLOP/s per device") {
		t.Errorf("a page of one step without a peak says\n%s", got)
	}
}

func TestAttemptsAreATimeline(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 9, 0, 0, 0, time.UTC)
	var entries []journal.Entry
	tell := func(after time.Duration, e event.Event) {
		at = at.Add(after)
		entries = append(entries, journal.Entry{Time: at, By: "a", Kind: e.Kind(), Event: e})
	}
	tell(0, journal.Begin{Command: "job"})
	for n := range 70 {
		tell(time.Second, event.Phase{Name: "provision", State: event.Done, Elapsed: time.Second})
		tell(0, event.Attempt{Run: "r", Attempt: n + 1, Begin: at})
		tell(time.Minute, event.Phase{Name: "run", State: event.Failed, Elapsed: time.Minute})
		if n < 69 {
			tell(0, event.AttemptEnd{Attempt: n + 1, Cause: "preempted", Why: "slice t-0 is PREEMPTED", Again: true, Next: "trying again"})
		} else {
			tell(0, event.Summary{Attempt: n + 1, ExitCode: 69, Text: "given up"})
		}
	}
	got := words(page(t, report.Input{Story: journal.Tell(entries), Now: at}))
	for _, want := range []string{"20 earlier attempts are not shown", "attempt 21 (job): preempted: slice t-0 is PREEMPTED; trying again all phases +0 s 1m01s", "provision 1.0 s, run 1m00s", "attempt 70 (job): given up provision +49m49s 1.0 s run +49m50s 1m00s"} {
		if !strings.Contains(got, want) {
			t.Errorf("the timeline does not say %q:\n%s", want, got)
		}
	}
}
