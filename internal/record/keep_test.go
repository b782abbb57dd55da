package record

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/event"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

func TestARecordIsReadAsItWasSaved(t *testing.T) {
	dir := t.TempDir()
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rec := &Record{Run: "r", Attempt: 1, Command: "true", Workers: 2, LogDir: RecordDir(dir, "r", 1), SecretEnv: []string{"TOKEN"},
		Slices: SlicesOf([]tpu.Slice{{Name: "t", UID: "1", Type: "v4-16", Workers: make([]tpu.Worker, 2)}})}
	rec.BeginAttempt(begin)
	rec.EndAttempt(event.AttemptEnd{Attempt: 1, Cause: "preempted", Why: "slice t is gone", Code: 143, Again: true}, begin.Add(time.Minute))
	rec.Ended = true
	if rec.Over() {
		t.Error("a run that is started again is over")
	}
	testkit.Must(t, rec.Save(dir))
	got, err := LoadRecord(dir, "r")
	testkit.Must(t, err)
	if diff := cmp.Diff(rec, got); diff != "" {
		t.Errorf("-saved +read:\n%s", diff)
	}
	if workers, err := Workers(dir, "r"); err != nil || !cmp.Equal(workers, []int{2}) {
		t.Errorf("workers %v, %v", workers, err)
	}
	if e := got.AttemptEvent(); e.Run != "r" || e.Workers != 2 || !cmp.Equal(e.Slices, []string{"t"}) {
		t.Errorf("event %+v", e)
	}

	testkit.Must(t, os.MkdirAll(RunDir(dir, "broken"), 0o700))
	testkit.Must(t, os.WriteFile(RecordPath(dir, "broken"), []byte("{"), 0o600))
	if _, err := LoadRecord(dir, "broken"); err == nil {
		t.Error("a broken record was read")
	}
	if got, err := LoadRecord(dir, "none"); got != nil || err != nil {
		t.Errorf("of an unknown run: %v, %v", got, err)
	}
	if _, err := LoadRecord(dir, "../r"); !stage.Is(err, stage.Input) {
		t.Errorf("of a path: %v", err)
	}
	if all := LocalRecords(dir); len(all) != 1 || all[0].Run != "r" {
		t.Errorf("records %v", all)
	}
}

func TestARecordThatWasSavedAheadIsUndone(t *testing.T) {
	dir := t.TempDir()
	now := func() int { return LastLocalAttempt(dir, "r") }
	undo, err := (&Record{Run: "r", Attempt: 1}).SaveAhead(dir)
	if err != nil || now() != 1 {
		t.Errorf("saved: attempt %d, %v", now(), err)
	}
	if undo(); now() != 0 {
		t.Errorf("undone: attempt %d", now())
	}
	testkit.Must(t, (&Record{Run: "r", Attempt: 1}).Save(dir))
	undo, err = (&Record{Run: "r", Attempt: 2}).SaveAhead(dir)
	if err != nil || now() != 2 {
		t.Errorf("saved: attempt %d, %v", now(), err)
	}
	if undo(); now() != 1 {
		t.Errorf("undone: attempt %d", now())
	}
	blocked := filepath.Join(dir, "file")
	testkit.Must(t, os.WriteFile(blocked, nil, 0o600))
	if undo, err := (&Record{Run: "r"}).SaveAhead(blocked); err == nil {
		t.Error("a record was saved below a file")
	} else {
		undo()
	}
}

func TestWhereTheLogsOfAnAttemptAre(t *testing.T) {
	end := time.Now()
	rec := &Record{Run: "r", Attempt: 3, LogDir: "third", Ended: true, Attempts: []PastAttempt{
		{Attempt: 1, LogDir: "first", End: end}, {Attempt: 2, LogDir: "second", End: end, Cut: true}, {Attempt: 3, LogDir: "third"},
	}}
	for _, tt := range []struct {
		attempt int
		dir     string
		ended   bool
	}{{1, "first", true}, {2, "second", false}, {3, "third", true}, {4, "", false}} {
		if dir, ended := rec.LogDirOf(tt.attempt); dir != tt.dir || ended != tt.ended {
			t.Errorf("attempt %d: %q, %v", tt.attempt, dir, ended)
		}
	}
	rec.Cut = true
	if _, ended := rec.LogDirOf(3); ended {
		t.Error("nothing is to be added to a log of which a part is missing")
	}
	if !rec.Over() {
		t.Error("the run is not over")
	}
	if got := AttemptDir("logs", 2); got != filepath.Join("logs", "attempt-2") {
		t.Errorf("directory of attempt 2: %s", got)
	}
}

func TestADirectoryOfLogs(t *testing.T) {
	dir := t.TempDir()
	rec := &Record{LogDir: filepath.Join(dir, "a", "b")}
	if err := rec.CheckLogDir(); err != nil {
		t.Errorf("check: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the check has made it: %v", err)
	}
	testkit.Must(t, rec.MakeLogDir())
	if err := rec.Unused(); err != nil || rec.Have(tpu.WorkerID{}) != 0 {
		t.Errorf("a new one: %v, %d bytes", err, rec.Have(tpu.WorkerID{}))
	}
	testkit.Must(t, os.WriteFile(rec.LogPath(tpu.WorkerID{}), []byte("one\n"), 0o600))
	if err := rec.Unused(); !stage.Is(err, stage.Input) || rec.Have(tpu.WorkerID{}) != 4 {
		t.Errorf("one with logs: %v, %d bytes", err, rec.Have(tpu.WorkerID{}))
	}
	below := &Record{LogDir: filepath.Join(rec.LogPath(tpu.WorkerID{}), "c")}
	for what, err := range map[string]error{"check": below.CheckLogDir(), "make": below.MakeLogDir()} {
		var e *stage.Error
		if !errors.As(err, &e) || e.Stage != stage.Local || e.Advice == "" {
			t.Errorf("%s below a file: %v", what, err)
		}
	}
}
