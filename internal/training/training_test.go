package training

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// TestTrainingIsReadFromLocalLogsAsTheyGrow follows a run over two attempts, with files
// only.
func TestTrainingIsReadFromLocalLogsAsTheyGrow(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	first, second := filepath.Join(state, "a"), filepath.Join(state, "b")
	rec := &record.Record{Run: "r", Attempt: 1, LogDir: first, Command: "train", Created: time.Unix(1000, 0),
		Slices:   []record.Slice{{Name: "t-0", Workers: 1, Type: "v5litepod-4"}, {Name: "t-1", Workers: 1, Type: "v5litepod-4"}},
		Attempts: []record.PastAttempt{{Attempt: 1, Begin: time.Unix(1000, 0), LogDir: first}}}
	if err := rec.Save(state); err != nil {
		t.Fatal(err)
	}
	w0, w1 := tpu.WorkerID{Slice: 0}, tpu.WorkerID{Slice: 1}
	whole := testkit.Steps(0, 10, 1)
	cut := len(whole) - 20
	testkit.Append(t, record.LogPath(first, w0), whole[:cut])
	training, err := OpenTraining(state, "r", TrainingOptions{})
	if err != nil {
		t.Fatal(err)
	}
	update := func(want bool) *metrics.Document {
		t.Helper()
		changed, err := training.Update()
		if err != nil || changed != want {
			t.Fatalf("Update: %v, %v; want %v", changed, err, want)
		}
		d := training.Document(metrics.View{Points: 100, WorkerPoints: 100}, time.Unix(5000, 0))
		return &d
	}
	d := update(true)
	if a := d.Newest(); a.Last.Step != 8 || len(a.Slices) != 2 || a.Slices[1].Name != "t-1" || a.Ended || d.Generation != "v5e" || d.Command != "train" {
		t.Errorf("while it runs: %+v", a)
	}
	update(false)
	testkit.Append(t, record.LogPath(first, w0), whole[cut:])
	testkit.Append(t, record.LogPath(first, w1), whole)
	if a := update(true).Newest(); a.Steps != 20 || a.Last.Step != 9 || a.Median.StepSeconds != 1 {
		t.Errorf("grown: %+v", a.Figures)
	}

	// The attempt fails, and another one continues from its checkpoint.
	rec.Ended, rec.Code = true, 7
	rec.Attempts[0].End, rec.Attempts[0].Code, rec.Attempts[0].Why, rec.Attempts[0].Again = time.Unix(2000, 0), 7, "s1w0: exit code 7", true
	if err := rec.Save(state); err != nil {
		t.Fatal(err)
	}
	update(true)
	if training.Ended() {
		t.Error("ended between two attempts")
	}
	rec.Attempt, rec.LogDir, rec.Ended, rec.Code = 2, second, false, 0
	rec.Attempts = append(rec.Attempts, record.PastAttempt{Attempt: 2, Begin: time.Unix(2100, 0), LogDir: second})
	testkit.Append(t, record.LogPath(second, w0), testkit.Steps(5, 30, 2))
	testkit.Append(t, record.LogPath(second, w1), testkit.Steps(5, 30, 2))
	if err := rec.Save(state); err != nil {
		t.Fatal(err)
	}
	d = update(true)
	if n := len(d.Attempts); n != 2 {
		t.Fatalf("%d attempts, want 2", n)
	}
	if a := d.Attempts[0]; a.Number != 1 || !a.Ended || *a.ExitCode != 7 || a.Cause != "s1w0: exit code 7" || a.Last.Step != 9 || a.Series == nil || a.Slices[0].Workers[0].Series != nil {
		t.Errorf("the first attempt: %+v", a)
	}
	if a := d.Newest(); a.Number != 2 || a.FirstStep != 5 || a.Last.Step != 29 || a.Median.StepSeconds != 2 || a.Slices[0].Workers[0].Series == nil {
		t.Errorf("the second attempt: %+v", a)
	}
	rec.Ended = true
	if err := rec.Save(state); err != nil {
		t.Fatal(err)
	}
	if d = update(true); !training.Ended() || !d.Newest().Ended || *d.Newest().ExitCode != 0 {
		t.Errorf("the end: %+v", d.Newest())
	}

	// The journal belongs to the command that followed the run. It has what no log shows.
	j := journal.New(func() time.Time { return time.Unix(3000, 0) })
	if err := j.Open(journal.Options{Dir: record.RunDir(state, "r"), Command: "run"}); err != nil {
		t.Fatal(err)
	}
	ended := time.Unix(2950, 0)
	stall := event.Stall{Attempt: 2, Began: time.Unix(2300, 0), Seen: time.Unix(2900, 0), First: "s1w0", Step: 17, Text: "no step for 10m00s"}
	j.Emit(stall)
	stall.Ended, stall.Text = &ended, "steps go on"
	j.Emit(stall)
	j.Close(journal.End{})
	again, err := OpenTraining(state, "r", TrainingOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Update(); err != nil {
		t.Fatal(err)
	}
	if d := again.Document(metrics.View{}, time.Unix(5000, 0)); len(d.Attempts[0].Stalls) != 0 || len(d.Attempts[1].Stalls) != 1 || d.Attempts[1].Stalls[0].Text != "steps go on" {
		t.Errorf("stalls %+v and %+v", d.Attempts[0].Stalls, d.Attempts[1].Stalls)
	}

	// Reading the same files at once must give the same result, and so must reading one
	// attempt alone.
	got, want := again.Document(metrics.View{}, time.Unix(5000, 0)), training.Document(metrics.View{}, time.Unix(5000, 0))
	if got.Text(true) != want.Text(true) {
		t.Errorf("read at once:\n%s\nas it grew:\n%s", got.Text(true), want.Text(true))
	}
	only, err := OpenTraining(state, "r", TrainingOptions{Attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := only.Update(); err != nil {
		t.Fatal(err)
	}
	if d := only.Document(metrics.View{}, time.Unix(5000, 0)); len(d.Attempts) != 1 || d.Newest().Last.Step != 9 {
		t.Errorf("attempt 1 alone: %+v", d.Attempts)
	}
}

// TestLogsWithoutARecord reads logs of MaxText's own runner, or of another machine.
func TestLogsWithoutARecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testkit.Append(t, record.LogPath(dir, tpu.WorkerID{Slice: 1, Worker: 3}), testkit.Steps(0, 9, 1))
	training, err := OpenTraining(t.TempDir(), "2023-02-01", TrainingOptions{LogDir: dir, Type: "v5litepod-256"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := training.Update(); err != nil {
		t.Fatal(err)
	}
	d := training.Document(metrics.View{}, time.Unix(0, 0))
	if a := d.Newest(); a.Slices[0].Workers[0].Name != "s1w3" || a.Median.MFU != 0.5 || !a.Ended {
		t.Errorf("%+v", a)
	}
	for _, tc := range []struct {
		story, run string
		o          TrainingOptions
		kind       fault.Kind
		want       string
	}{
		{"no record", "nosuch", TrainingOptions{}, fault.Unavailable, "multihost attach nosuch"},
		{"an empty directory", "r", TrainingOptions{LogDir: t.TempDir()}, fault.Usage, ""},
		{"a type that is none", "r", TrainingOptions{LogDir: dir, Type: "v5litepod-17"}, fault.Usage, "v5litepod-16"},
	} {
		training, err := OpenTraining(t.TempDir(), tc.run, tc.o)
		if err == nil {
			_, err = training.Update()
		}
		var told *stage.Error
		if !errors.As(err, &told) || told.Fault() != tc.kind || !strings.Contains(told.Hint(), tc.want) {
			t.Errorf("%s: %v, hint %q", tc.story, err, hint(err))
		}
	}
}

func hint(err error) string {
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		return hinted.Hint()
	}
	return ""
}
