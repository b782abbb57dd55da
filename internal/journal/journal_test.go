package journal_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/testkit"
)

func open(t *testing.T, dir string, secrets ...string) *journal.Journal {
	t.Helper()
	j := journal.New(testkit.NewJumpClock().Now)
	testkit.Must(t, j.Open(journal.Options{Dir: dir, Command: "run", Secrets: secrets}))
	return j
}

func read(t *testing.T, dir string) []journal.Entry {
	t.Helper()
	entries, err := journal.Read(dir)
	testkit.Must(t, err)
	return entries
}

func text(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, journal.Name))
	testkit.Must(t, err)
	return string(data)
}

func TestEveryKindComesBackAsItWas(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	want := []event.Event{
		journal.Begin{Command: "run"},
		event.Note{Level: event.Warn, Text: "a <b> \"c\"\n\x1b[31m", Hint: "h"},
		event.Phase{Name: "sync", State: event.Done, Detail: "d", Elapsed: time.Second},
		event.Request{Resource: "q", Slices: 2, Type: "v4-8", Tier: "spot", Hourly: new(7.73), PriceDate: "2026-11-28", Text: "asking for 2 × v4-8"},
		event.State{Resource: "node", Name: "t-0", State: "READY"},
		event.Attempt{Run: "r", Attempt: 2, Command: "c", Begin: at, Slices: []string{"t-0"}, Workers: 4, LogDir: "/l"},
		event.Release{Attempt: 2, First: at, Workers: []event.ReleasedOn{{Slice: 0, Worker: 1, After: time.Millisecond}}},
		event.WorkerDone{Slice: 1, Worker: 2, Code: 137, Signal: "KILL", End: at},
		event.Stall{Attempt: 2, Began: at, First: "s0w1", Step: 7, Text: "no step since 10m"},
		event.AttemptEnd{Run: "r", Attempt: 2, Cause: "preempted", Why: "slice t-0 is PREEMPTED", Elapsed: time.Hour, Again: true, Next: "trying again"},
		event.Summary{Run: "r", Attempt: 2, Text: "failed", LastLines: []string{"x"}, Phases: []event.PhaseTime{{Name: "run", Elapsed: 3}}, Skew: 4},
		event.Result{Name: "preflight", Data: json.RawMessage(`[{"setting":"mtu"}]`)},
		journal.End{Error: "e", ExitCode: 69},
	}
	j := open(t, dir)
	for _, e := range want[1 : len(want)-1] {
		j.Emit(e)
	}
	j.Emit(event.Output{Data: []byte("bytes")})
	j.Emit(event.Progress{Phase: "run"})
	j.Emit(event.Training{Step: 1})
	j.Emit(event.Note{Level: event.Debug, Text: "retry"})
	j.Close(journal.End{Error: "e", ExitCode: 69})
	j.Emit(event.Note{Text: "after the end"})
	var got []event.Event
	for _, e := range read(t, dir) {
		got = append(got, e.Event)
		if e.Kind != e.Event.Kind() || e.Time.IsZero() || len(e.By) != 8 {
			t.Errorf("entry %+v", e)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	info, err := os.Stat(filepath.Join(dir, journal.Name))
	testkit.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
}

func TestWhatLedToARunIsInItsJournalAndARunThatNeverWasHasNone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	j := journal.New(testkit.NewJumpClock().Now)
	j.Emit(event.Phase{Name: "discover", State: event.Done})
	if _, err := os.Stat(dir); err == nil {
		t.Fatal("a directory before Open")
	}
	testkit.Must(t, j.Open(journal.Options{Dir: dir, Command: "run"}))
	j.Close(journal.End{})
	got := read(t, dir)
	if len(got) != 3 || got[1].Event.(event.Phase).Name != "discover" {
		t.Errorf("entries %+v", got)
	}
	never := journal.New(testkit.NewJumpClock().Now)
	never.Emit(event.Note{Text: "x"})
	never.Close(journal.End{})
	var none *journal.Journal
	none.Emit(event.Note{Text: "x"})
	testkit.Must(t, none.Open(journal.Options{Dir: dir}))
	none.Close(journal.End{})
	if n := len(read(t, dir)); n != 3 {
		t.Errorf("%d entries after journals that were not opened, want 3", n)
	}
}

func TestSecretsDoNotReachTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := "pa\"ss\n<wörd>\\"
	j := journal.New(testkit.NewJumpClock().Now)
	j.Emit(event.Note{Text: "held: " + secret})
	testkit.Must(t, j.Open(journal.Options{Dir: dir, Command: "run", Secrets: []string{secret, "tok-123", ""}}))
	j.Emit(event.Summary{LastLines: []string{"export T=tok-123", "both tok-123" + secret}})
	j.Close(journal.End{Error: "cannot tok-123"})
	all := text(t, dir)
	for _, s := range []string{"tok-123", "wörd", "pa\\\"ss"} {
		if strings.Contains(all, s) {
			t.Errorf("%q is in the journal:\n%s", s, all)
		}
	}
	if n := strings.Count(all, "***"); n != 5 {
		t.Errorf("%d masks, want 5:\n%s", n, all)
	}
}

func TestSecretsLikeKeysAndNumbersDoNotCostTheirLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir, "exit_code", "87654321", "summary", "\"")
	j.Emit(event.Summary{Text: "exit_code is 87654321, \"summary\"", ExitCode: 3, Skew: 87654321})
	j.Close(journal.End{ExitCode: 3})
	entries := read(t, dir)
	if len(entries) != 3 {
		t.Fatalf("%d entries, want 3:\n%s", len(entries), text(t, dir))
	}
	got, ok := entries[1].Event.(event.Summary)
	if !ok || got.ExitCode != 3 || got.Skew != 87654321 || got.Text != "*** is ***, *********" {
		t.Errorf("got %+v", entries[1].Event)
	}
}

func TestACrashCostsTheLineThatItCutAtMost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)
	j.Emit(event.Note{Text: "one"})
	// Without Close, as if the process had died in the middle of a line.
	file, err := os.OpenFile(filepath.Join(dir, journal.Name), os.O_APPEND|os.O_WRONLY, 0)
	testkit.Must(t, err)
	_, err = file.WriteString(`{"v":1,"time":"2026-01-02T03:04:05Z","by":"00000000","kind":"no`)
	testkit.Must(t, err)
	testkit.Must(t, file.Close())
	if n := len(read(t, dir)); n != 2 {
		t.Fatalf("%d entries, want 2", n)
	}
	k := open(t, dir)
	k.Emit(event.Note{Text: "two"})
	k.Close(journal.End{})
	entries := read(t, dir)
	if len(entries) != 5 || entries[3].Event.(event.Note).Text != "two" {
		t.Errorf("entries %+v", entries)
	}
	if entries[0].By == entries[3].By {
		t.Error("two commands cannot be told apart")
	}
}

func TestALineThatIsTooLongCostsOnlyItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)
	j.Emit(event.Note{Text: "one"})
	file, err := os.OpenFile(filepath.Join(dir, journal.Name), os.O_APPEND|os.O_WRONLY, 0)
	testkit.Must(t, err)
	_, err = file.WriteString(strings.Repeat("x", 3<<20) + "\n")
	testkit.Must(t, err)
	testkit.Must(t, file.Close())
	j.Emit(event.Note{Text: "two"})
	entries := read(t, dir)
	if len(entries) != 3 || entries[2].Event.(event.Note).Text != "two" {
		t.Errorf("%d entries", len(entries))
	}
	testkit.Must(t, os.Truncate(filepath.Join(dir, journal.Name), 4*journal.MaxBytes+1))
	if entries, err := journal.Read(dir); err == nil || len(entries) != 3 {
		t.Errorf("of a file that is too large: %d entries, %v", len(entries), err)
	}
	j.Close(journal.End{})
}

func TestTheFileIsBoundedAndKeepsTheStory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// Retries have nearly filled the file.
	const room = 1 << 20
	line := `{"v":1,"time":"2026-01-02T03:04:05Z","by":"00000000","kind":"note","level":"warning","text":"` + strings.Repeat("x", 100_000) + "\"}\n"
	fill := strings.Repeat(line, (journal.MaxBytes-2<<20-room)/len(line))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, journal.Name), []byte(fill), 0o600))
	j := open(t, dir)
	for range 2 * room / 100_000 {
		j.Emit(event.Note{Level: event.Warn, Text: strings.Repeat("y", 100_000)})
	}
	for i := range 2048 {
		j.Emit(event.WorkerDone{Slice: i / 64, Worker: i % 64, Code: 1})
	}
	j.Emit(event.Summary{Text: "the end"})
	j.Close(journal.End{ExitCode: 1})
	if size := len(text(t, dir)); size > journal.MaxBytes || size < len(fill)+room/2 {
		t.Errorf("%d bytes, want at most %d, and not much less", size, journal.MaxBytes)
	}
	entries := read(t, dir)
	full, ends := 0, 0
	for _, e := range entries {
		switch e := e.Event.(type) {
		case event.Note:
			if strings.Contains(e.Text, "full") {
				full++
			}
		case event.WorkerDone:
			ends++
		}
	}
	if full != 1 || ends != 2048 || entries[len(entries)-2].Kind != "summary" {
		t.Errorf("%d times full, %d ends, last but one %q", full, ends, entries[len(entries)-2].Kind)
	}
}

func TestSeveralCommandsWriteOneJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var group sync.WaitGroup
	for range 4 {
		j := open(t, dir)
		group.Go(func() {
			for i := range 200 {
				j.Emit(event.Note{Text: fmt.Sprint(i)})
			}
			j.Close(journal.End{})
		})
	}
	group.Wait()
	seen := map[string][]string{}
	for _, e := range read(t, dir) {
		if n, ok := e.Event.(event.Note); ok {
			seen[e.By] = append(seen[e.By], n.Text)
		}
	}
	var want []string
	for i := range 200 {
		want = append(want, fmt.Sprint(i))
	}
	if len(seen) != 4 {
		t.Fatalf("%d writers, want 4", len(seen))
	}
	for by, got := range seen {
		if !slices.Equal(got, want) {
			t.Errorf("lines of %s are not whole and in order: %v", by, got)
		}
	}
}

func TestAFullDiskIsSaidOnceAndCostsTheRunNothing(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		testkit.Lacks(t, "there is no /dev/full")
	}
	dir := t.TempDir()
	testkit.Must(t, os.Symlink("/dev/full", filepath.Join(dir, journal.Name)))
	var said []error
	j := journal.New(time.Now)
	testkit.Must(t, j.Open(journal.Options{Dir: dir, Command: "run", Failed: func(err error) {
		said = append(said, err)
		j.Emit(event.Note{Text: "who is told may emit"})
	}}))
	j.Emit(event.Note{Text: "x"})
	j.Close(journal.End{})
	if len(said) != 1 {
		t.Errorf("said %d times: %v", len(said), said)
	}
}

// The journal has texts of workers. A crash, a full disk, a later version or an editor may
// have changed the file. The readable lines make a story.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"v":1,"time":"2026-01-02T03:04:05Z","by":"a","kind":"begin","command":"run"}` + "\n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, journal.Name), data, 0o600))
		entries := read(t, dir)
		if lines := strings.Count(string(data), "\n") + 1; len(entries) > lines {
			t.Errorf("%d entries of %d lines", len(entries), lines)
		}
		for _, e := range entries {
			if e.Kind == "" || e.Event != nil && e.Event.Kind() != e.Kind {
				t.Errorf("%q read as %#v", e.Kind, e.Event)
			}
		}
		s := journal.Tell(entries)
		for i, a := range s.Attempts {
			if i > 0 && a.Number() < s.Attempts[i-1].Number() {
				t.Errorf("attempt %d comes after %d", a.Number(), s.Attempts[i-1].Number())
			}
			_ = a.Begins()
		}
	})
}
