package ui

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"multihost/internal/tpu"
)

// TestLogs shows lines with their times and workers. A line that another worker interrupts
// ends there, and continues on a new line.
func TestLogs(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 67e6, time.Local)
	stamp := at.Format(lineTime)
	a, b := tpu.WorkerID{}, tpu.WorkerID{Slice: 1, Worker: 10}
	type part struct {
		id   tpu.WorkerID
		text string
	}
	for name, c := range map[string]struct {
		o        LogsOptions
		terminal bool
		parts    []part
		want     string
	}{
		"as they are":       {LogsOptions{}, false, []part{{a, "x\x1b[K\ny"}, {a, "z"}}, "x\x1b[K\nyz"},
		"times":             {LogsOptions{Times: true}, false, []part{{a, "x\n"}, {a, "y"}, {a, "z\n"}}, stamp + "x\n" + stamp + "yz\n"},
		"workers":           {LogsOptions{Tags: []tpu.WorkerID{a, b}}, false, []part{{a, "x\n"}, {b, "y\n"}}, "s0w0  │ x\ns1w10 │ y\n"},
		"both, interrupted": {LogsOptions{Times: true, Tags: []tpu.WorkerID{a}}, false, []part{{a, "x"}, {b, "y\n"}, {a, "z"}}, stamp + "s0w0 │ x\n" + stamp + "s1w10 │ y\n" + stamp + "s0w0 │ z\n"},
		"on a terminal":     {LogsOptions{Times: true}, true, []part{{a, "\x1b[K\xe2\x82"}, {a, "\xac\n"}}, stamp + "^[[K€\n"},
	} {
		var w recorder
		r := New(Options{Stdout: &w, Stderr: io.Discard, IsTerminal: func(to io.Writer) bool { return c.terminal && to == io.Writer(&w) }})
		l := r.Logs(c.o)
		for _, p := range c.parts {
			if err := l.WriteLog(p.id, at, []byte(p.text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		r.Close()
		if got := w.String(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// pieces records the last byte of each write.
type pieces struct{ ends []byte }

func (w *pieces) Write(p []byte) (int, error) {
	w.ends = append(w.ends, p[len(p)-1])
	return len(p), nil
}

// Each write to standard output ends with a line, because a note may come before the next
// write.
func TestLogsAsJSONAreNotTorn(t *testing.T) {
	var w pieces
	r := New(Options{Mode: JSON, Stdout: &w, Stderr: io.Discard, Now: time.Now})
	l := r.Logs(LogsOptions{})
	for n := range 3000 {
		if err := l.WriteLog(tpu.WorkerID{}, time.Time{}, bytes.Repeat([]byte("x"), n%400+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.WriteLog(tpu.WorkerID{}, time.Time{}, bytes.Repeat([]byte("x"), 200<<10)); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if len(w.ends) < 5 || strings.Trim(string(w.ends), "\n") != "" {
		t.Errorf("%d writes end with %q", len(w.ends), w.ends)
	}
}
