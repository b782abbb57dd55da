package ui

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"multihost/internal/event"
)

func TestDecisiveLines(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		last []string
		want []string
	}{
		{"nothing", nil, nil},
		{"five of many", strings.Split("1 2 3 4 5 6 7", " "), strings.Split("3 4 5 6 7", " ")},
		{"empty lines say nothing", []string{"a", "", " \t", "b\r", ""}, []string{"a", "b"}},
		{"a finished bar", []string{"a", "\r 0%|  |\r100%|##|", "b"}, []string{"a", "b"}},
		{"a bar that begins without a return", []string{"10%\r20%\r"}, []string{}},
		{"an error printed over a bar", []string{"\r 7%|  |\rTraceback (most recent call last):", "ValueError: x"}, []string{"Traceback (most recent call last):", "ValueError: x"}},
		{"a message behind a bar", []string{"\r 7%\rF0706 16:50:26.2 check failed", "Killed"}, []string{"F0706 16:50:26.2 check failed", "Killed"}},
		{"indentation stays", []string{"  File x"}, []string{"  File x"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := decisiveLines(tc.last); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestCutInside(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		s     string
		width int
		want  string
	}{
		{"File x", 10, "File x"},
		{`  File "/home/me/very/long/name/train.py", line 8`, 24, `  Fil…/train.py", line 8`},
		{"File 日本語日本語日本語", 12, "Fi…語日本語"},
		{"File x", 0, ""},
	} {
		got := cutInside(tc.s, tc.width)
		if got != tc.want || textWidth(got) > max(tc.width, 0) {
			t.Errorf("cutInside(%q, %d) = %q, %d columns; want %q", tc.s, tc.width, got, textWidth(got), tc.want)
		}
	}
}

// rows returns how many rows of a terminal a text needs.
func rows(text string, columns int) (n int) {
	for line := range strings.Lines(text) {
		n += max(1, (textWidth(strings.TrimSuffix(line, "\n"))+columns-1)/columns)
	}
	return n
}

// The verdict is the last thing on the screen. The lines of the first failure fit above it,
// however long they are.
func TestTheVerdictFits(t *testing.T) {
	for _, columns := range []int{60, 80, 200} {
		var last []string
		for i := range 20 {
			last = append(last, fmt.Sprintf("  File \"/home/%s/train.py\", line %d", strings.Repeat("x", 300), i), strings.Repeat("é", 1000))
		}
		screen := new(recorder)
		r := New(Options{Mode: TTY, Stdout: screen, Stderr: screen, Width: func() int { return columns }})
		run := "multihost-20261130-073351-635d"
		r.Emit(event.Summary{Run: run, ExitCode: 1, Text: "run " + run + " failed: s0w2 was first, exit code 1", FirstFail: "s0w2: exit code 1",
			LastLines: last, LogDir: strings.Repeat("/long", 100), Next: "multihost logs " + run + " --worker=s0w2"})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		text := screen.String()
		text = text[strings.Index(text, "  first failure"):]
		if n := rows(text, columns); n > 14 || strings.Count(text, "│") != mostLines {
			t.Errorf("%d columns: %d rows:\n%s", columns, n, text)
		}
		if want := "multihost: hint: multihost logs " + run + " --worker=s0w2\n"; !strings.HasSuffix(text, want) {
			t.Errorf("%d columns: the end is not the command to type:\n%s", columns, text)
		}
		if !utf8.ValidString(text) {
			t.Errorf("%d columns: a rune was cut", columns)
		}
	}
}

func TestTheVerdictIsLast(t *testing.T) {
	sum := event.Summary{Run: "r", ExitCode: 1, Text: "run r failed"}
	end := "multihost: run r failed\nmultihost: hint: multihost logs r\n"
	for _, mode := range []Mode{TTY, Plain} {
		for name, after := range map[string]event.Event{
			"nothing":      nil,
			"the deletion": event.Phase{Name: "delete", State: event.Done, Detail: "r is gone"},
			"a warning":    event.Note{Level: event.Warn, Text: "queued resource r stays"},
		} {
			screen := new(recorder)
			r := New(Options{Mode: mode, Stdout: screen, Stderr: screen, Width: func() int { return 80 }})
			r.Emit(sum)
			want := 1
			if after != nil {
				r.Emit(after)
				want = 2
			}
			if got := r.Verdict(); got != "run r failed" {
				t.Errorf("the verdict is %q", got)
			}
			r.Close()
			if got := screen.String(); !strings.HasSuffix(got, end) || strings.Count(got, end) != want {
				t.Errorf("%s after %s:\n%s", mode, name, got)
			}
		}
	}
}

func TestTheVerdictHasAColour(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		s    event.Summary
		want color
	}{
		{event.Summary{OK: true, Text: "x"}, green},
		{event.Summary{OK: true, Text: "x", LeftBehind: 2}, yellow},
		{event.Summary{OK: true, Text: "x", ExitCode: 74}, red},
		{event.Summary{Text: "x", ExitCode: 1}, red},
	} {
		if got, want := string(appendVerdict(nil, true, tc.s)), "multihost: \x1b["+string(tc.want)+"mx\x1b[0m\n"; got != want {
			t.Errorf("%+v: got %q, want %q", tc.s, got, want)
		}
		if got := string(appendVerdict(nil, false, tc.s)); got != "multihost: x\n" {
			t.Errorf("%+v without colours: %q", tc.s, got)
		}
	}
}
