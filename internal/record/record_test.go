package record

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Two attempts with one number on different slices have their logs in different places.
func TestLogsOfTwoAttemptsAreApart(t *testing.T) {
	on := func(uids ...string) (all []Slice) {
		for _, uid := range uids {
			all = append(all, Slice{Name: "m", UID: uid})
		}
		return all
	}
	known := &Record{Run: "m", Attempt: 2, Slices: on("c"), Attempts: []PastAttempt{
		{Attempt: 1, LogDir: "/logs", Slices: []string{"a", "b"}},
		{Attempt: 1, LogDir: "/logs/attempt-1-x", Slices: []string{"x"}},
		{Attempt: 2, LogDir: "/logs/attempt-2"},
		{Attempt: 3, LogDir: "/logs/attempt-3"},
	}}
	for _, tt := range []struct {
		story   string
		rec     *Record
		attempt int
		on      []Slice
		dir     string
		want    string
		typed   bool // the user has typed dir
	}{
		{"the first one here", &Record{}, 1, on("a"), "/logs", "/logs", false},
		{"the same slices", known, 1, on("a", "b"), "/logs", "/logs", false},
		{"the same slices of the second of this number", known, 1, on("x"), "/logs", "/logs/attempt-1-x", false},
		{"other slices", known, 1, on("y", "z"), "/logs", "/logs/attempt-1-y", false},
		{"other slices, a later attempt", known, 2, on("y"), "/logs/attempt-2", "/logs/attempt-2-y", false},
		{"the same slices, noted by the record only", known, 2, on("c"), "/logs/attempt-2", "/logs/attempt-2", false},
		{"slices that were not noted", known, 3, on("y"), "/logs/attempt-3", "/logs/attempt-3", false},
		{"a number that is not known here", known, 4, on("y"), "/logs/attempt-4", "/logs/attempt-4", false},
		{"hosts that no cloud knows", &Record{Attempt: 1, Slices: on(""), Attempts: []PastAttempt{{Attempt: 1, LogDir: "/logs"}}}, 1, on(""), "/logs", "/logs", false},
		{"the same slices, with another --log-dir", known, 1, on("a", "b"), "/typed", "/typed", true},
		{"other slices, with another --log-dir", known, 1, on("y", "z"), "/typed", "/typed/attempt-1-y", true},
	} {
		if got := tt.rec.Place(tt.attempt, tt.on, filepath.FromSlash(tt.dir), tt.typed); filepath.ToSlash(got) != tt.want {
			t.Errorf("%s: %s, want %s", tt.story, got, tt.want)
		}
	}
}

// The next attempt gets a number that no attempt on this machine has had, even if the
// attempt that was followed last has a lower one.
func TestNumbersOfAttemptsOnlyGrow(t *testing.T) {
	dir := t.TempDir()
	rec := &Record{Run: "m", Attempt: 2, Slices: []Slice{{Name: "m", UID: "a"}}, LogDir: "/logs/attempt-2"}
	rec.BeginAttempt(time.Now())
	rec.BeginAttempt(time.Now()) // taken over
	rec.Attempt, rec.Slices, rec.LogDir = 1, []Slice{{Name: "m", UID: "b"}}, "/logs"
	rec.BeginAttempt(time.Now())
	if err := rec.Save(dir); err != nil {
		t.Fatal(err)
	}
	if got := LastLocalAttempt(dir, "m"); got != 2 || len(rec.Attempts) != 2 {
		t.Errorf("the last attempt is %d of %d, want 2 of 2", got, len(rec.Attempts))
	}
}

// Two commands on one machine save the record of a run at the same moment. The record is
// always whole, and no save fails.
func TestARecordIsSavedByManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				rec := &Record{Run: "m", Attempt: i + 1, Command: strings.Repeat("x", 100*n)}
				if err := rec.Save(dir); err != nil {
					t.Error(err)
				}
				if _, err := LoadRecord(dir, "m"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(RecordPath(dir, "m")), "*.new")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestLogsOfOtherSlicesAreNotThoseOfAnAttempt has two attempts with the number 1, as two
// machines make them if the slices of the first attempt are gone before the second one
// begins.
func TestLogsOfOtherSlicesAreNotThoseOfAnAttempt(t *testing.T) {
	t.Parallel()
	rec := &Record{Attempt: 1, LogDir: "now", Slices: []Slice{{UID: "3"}, {UID: "4"}},
		Attempts: []PastAttempt{{Attempt: 1, LogDir: "first", Slices: []string{"1", "2"}}, {Attempt: 1, LogDir: "now"}, {Attempt: 2, LogDir: "untold"}}}
	for _, tt := range []struct {
		attempt int
		ids     []string
		want    string
	}{
		{1, []string{"1", "2"}, "first"},
		{1, []string{"3", "4"}, "now"},
		{1, []string{"5", "6"}, ""},
		{2, []string{"5", "6"}, "untold"},
		{3, []string{"3", "4"}, ""},
	} {
		if got := rec.LogDirOn(tt.attempt, tt.ids); got != tt.want {
			t.Errorf("attempt %d on %q: %q, want %q", tt.attempt, tt.ids, got, tt.want)
		}
	}
	unfollowed := &Record{Attempt: 2, LogDir: "here", Slices: []Slice{{UID: "1"}}}
	if a, b := unfollowed.LogDirOn(2, []string{"1"}), unfollowed.LogDirOn(2, []string{"2"}); a != "here" || b != "" {
		t.Errorf("without attempts: %q, %q", a, b)
	}
}
