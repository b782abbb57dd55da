package ui

import (
	"errors"
	"io"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"multihost/internal/event"
)

// screenOf writes a text to a terminal and returns the terminal's lines.
func screenOf(text string) string {
	var lines []string
	line := ""
	for len(text) > 0 {
		switch {
		case strings.HasPrefix(text, "\r\x1b[K"):
			line, text = "", text[4:]
			continue
		case text[0] == '\n':
			lines, line = append(lines, line), ""
		default:
			line += text[:1]
		}
		text = text[1:]
	}
	return elapsed.ReplaceAllString(strings.Join(append(lines, line), "\n"), "… s")
}

var elapsed = regexp.MustCompile(`\d+ s`)

// The status line is erased before data is written, and there is none while a line of data
// is unfinished. Messages do not continue such a line.
func TestDataErasesStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w recorder
		r := New(Options{Stdout: &w, Stderr: &w, IsTerminal: func(io.Writer) bool { return true }, Width: func() int { return 80 }})
		settle := func() {
			time.Sleep(3 * time.Second)
			synctest.Wait()
		}
		saw := func(want string) {
			t.Helper()
			if got := screenOf(w.String()); got != want {
				t.Errorf("the screen shows\n%q, want\n%q", got, want)
			}
		}
		r.Emit(event.Phase{Name: "run", State: event.Started})
		r.Emit(event.Progress{Phase: "run", Total: 8})
		settle()
		saw("run: 0/8, … s")
		data := r.Stdout()
		io.WriteString(data, "process 0\nunfin")
		saw("process 0\nunfin")
		settle()
		saw("process 0\nunfin")
		io.WriteString(data, "ished")
		r.Emit(event.Note{Level: event.Warn, Text: "amid"})
		settle()
		saw("process 0\nunfinished\nmultihost: warning: amid\nrun: 0/8, … s")
		io.WriteString(r.Stderr(), "of the program\n")
		saw("process 0\nunfinished\nmultihost: warning: amid\nof the program\n")
		settle()
		saw("process 0\nunfinished\nmultihost: warning: amid\nof the program\nrun: 0/8, … s")
		r.Emit(event.Note{Level: event.Warn, Text: "before it"})
		io.WriteString(data, "last\n")
		r.Close()
		saw("process 0\nunfinished\nmultihost: warning: amid\nof the program\nmultihost: warning: before it\nlast\n")
	})
}

// TestProgressEnds emits progress of a phase that no event has announced. When everything is
// done, the phase must leave the status line, because no other event ends the phase.
func TestProgressEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w recorder
		r := New(Options{Stdout: &w, Stderr: &w, IsTerminal: func(io.Writer) bool { return true }, Width: func() int { return 80 }})
		for done := range 3 {
			r.Emit(event.Progress{Phase: "connect", Done: done, Total: 2})
			time.Sleep(2 * time.Second)
			synctest.Wait()
			want := []string{"connect: 0/2, … s", "connect: 1/2, … s", ""}[done]
			if got := screenOf(w.String()); got != want {
				t.Errorf("with %d of 2 the screen shows %q, want %q", done, got, want)
			}
		}
		r.Close()
	})
}

// A command learns that nobody reads its data. Pipes get every byte unchanged.
func TestDataReaderGone(t *testing.T) {
	var w recorder
	r := New(Options{Stdout: &w, Stderr: &w})
	data := r.Stdout()
	io.WriteString(data, "\x1b[K\xff")
	data.Close()
	r.Close()
	if w.String() != "\x1b[K\xff" {
		t.Errorf("a pipe got %q", w.String())
	}
	gone := New(Options{Stdout: brokenPipe{}, Stderr: &w})
	defer gone.Close()
	if _, err := gone.Stdout().Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("writing to a closed pipe: %v", err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }
