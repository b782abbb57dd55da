package ui

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"multihost/internal/event"
)

// harmful returns the first thing in text that acts on a terminal, apart from newlines and
// the sequences in ours.
func harmful(text string, ours ...string) string {
	for _, s := range ours {
		text = strings.ReplaceAll(text, s, "")
	}
	for i, c := range text {
		switch {
		case c == '\n' || c == '\t':
		case c < 0x20, c == 0x7f, actsOnTerminal(c):
			return fmt.Sprintf("%U at byte %d", c, i)
		case c == utf8.RuneError:
			if _, size := utf8.DecodeRuneInString(text[i:]); size == 1 {
				return fmt.Sprintf("byte %#x at %d", text[i], i)
			}
		}
	}
	return ""
}

// everyText emits text in every field that a worker or the cloud can fill.
func everyText(r *Renderer, text string, step int) {
	for w := range 2 {
		for rest := []byte(text); len(rest) > 0; {
			n := min(step, len(rest))
			r.Emit(event.Output{Worker: w, Data: rest[:n]})
			rest = rest[n:]
		}
	}
	r.Emit(event.Note{Level: event.Warn, Text: text, Hint: text})
	r.Emit(event.Phase{Name: text, State: event.Started, Detail: text})
	r.Emit(event.Progress{Phase: text, Done: 1, Total: 2, Waiting: text, Detail: text})
	r.Emit(event.Phase{Name: text, State: event.Done, Detail: text})
	r.Emit(event.State{Resource: text, Name: text, State: text, Detail: text})
	r.Emit(event.WorkerDone{Code: 1, Signal: text})
	r.Emit(event.WorkerDone{Worker: 1, Code: 1, Error: text, Reason: text})
	r.Emit(event.Result{Name: text, Text: text, Data: map[string]string{text: text}})
	r.Emit(event.Summary{Run: text, Text: text, FirstFail: text, LastLines: []string{text}, LogDir: text, Next: text,
		Phases: []event.PhaseTime{{Name: text}}})
}

// FuzzView lets a worker and a cloud send any text. No part of it may act on the terminal,
// in any mode, and JSON lines must stay JSON.
func FuzzView(f *testing.F) {
	f.Add("\x1b]0;title\x07\x1b[2J\r\n", uint8(2))
	f.Add("\u009b31m\u202egnp.exe\u2066\x7f\x00 \xc2\x9b \xe2\x80", uint8(0))
	f.Add("error: \xff\xfe\x1b[31m\r50%\r\r\n\x85", uint8(6))
	f.Add("Traceback (most recent call last):\n\x1b[A\n", uint8(255))
	f.Fuzz(func(t *testing.T, text string, step uint8) {
		for _, o := range []Options{{Mode: Plain, Stream: All}, {Mode: Plain}, {Mode: TTY}, {Mode: TTY, Stream: All}, {Mode: Quiet}, {Mode: JSON, Stream: All}} {
			synctest.Test(t, func(t *testing.T) {
				stdout, stderr := new(recorder), new(recorder)
				o.Stdout, o.Stderr, o.Width = stdout, stderr, func() int { return 60 }
				r := New(o)
				everyText(r, text, int(step)+1)
				time.Sleep(time.Second)
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
				for name, got := range map[string]string{"stdout": stdout.String(), "stderr": stderr.String()} {
					if bad := harmful(got, "\r\x1b[K"); bad != "" {
						t.Errorf("%s, %s: %s in %q", o.Mode, name, bad, got)
					}
				}
				if o.Mode == JSON {
					for line := range strings.Lines(stdout.String()) {
						if !json.Valid([]byte(line)) {
							t.Errorf("no JSON: %q", line)
						}
					}
				}
			})
		}
		var all strings.Builder
		PrintError(&all, false, errors.New(text), text)
		_ = PrintErrorJSON(&all, time.Unix(0, 0), errors.New(text), text, 1)
		if bad := harmful(all.String()); bad != "" {
			t.Errorf("error: %s in %q", bad, all.String())
		}
		var shown, raw strings.Builder
		for _, w := range []io.WriteCloser{printable(&shown, true), printable(&raw, false)} {
			for rest := text; rest != ""; {
				n := min(int(step)+1, len(rest))
				if _, err := io.WriteString(w, rest[:n]); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if bad := harmful(shown.String()); bad != "" || raw.String() != text {
			t.Errorf("log: %s in %q; raw %q", bad, shown.String(), raw.String())
		}
	})
}

func TestLogsOnATerminalAreWholeAndHarmless(t *testing.T) {
	long := strings.Repeat("x", 3*maxLine)
	for in, want := range map[string]string{
		"plain\n":               "plain\n",
		"no newline":            "no newline",
		long + "\n":             long + "\n",
		"dos\r\nunix\n":         "dos\nunix\n",
		"\r10%\r20%\r\n":        "\n10%\n20%\n",
		"\x1b[2J\x00 \u009b λ":  "^[[2J^@ \\u009b λ",
		"cut \xe2\x82":          "cut \uFFFD\uFFFD",
		"\xff\n\r\n":            "\uFFFD\n\n",
		"tab\tand \x7f":         "tab\tand ^?",
		"a\r\r\nb":              "a\n\nb",
		"日本\u202eevil\u2069 日本": "日本\\u202eevil\\u2069 日本",
	} {
		for _, step := range []int{1, 2, 1 << 20} {
			var b strings.Builder
			w := printable(&b, true)
			for rest := in; rest != ""; {
				n := min(step, len(rest))
				if m, err := io.WriteString(w, rest[:n]); m != n || err != nil {
					t.Fatalf("write: %d, %v", m, err)
				}
				rest = rest[n:]
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if b.String() != want {
				t.Errorf("%.40q in steps of %d: %.60q, want %.60q", in, step, b.String(), want)
			}
		}
	}
}

// A JSON string has only UTF-8. Last lines with other bytes are in base64, too.
func TestJSONLastLinesAreExact(t *testing.T) {
	for _, lines := range [][]string{{"plain", "λ"}, {"a \xff\xfe", "b"}, {"\xce", "\xbb"}} {
		var got struct {
			LastLines       []string `json:"last_lines"`
			LastLinesBase64 [][]byte `json:"last_lines_base64"`
		}
		text := appendJSONEvent(nil, event.Summary{Run: "r", LastLines: lines}, time.Unix(1, 0))
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if len(got.LastLines) != 2 {
			t.Errorf("last_lines: %q", got.LastLines)
		}
		if utf8.ValidString(lines[0]) {
			if got.LastLinesBase64 != nil || got.LastLines[1] != lines[1] {
				t.Errorf("%q: %s", lines, text)
			}
			continue
		}
		if len(got.LastLinesBase64) != 2 || string(got.LastLinesBase64[0]) != lines[0] || string(got.LastLinesBase64[1]) != lines[1] {
			t.Errorf("%q: %s", lines, text)
		}
	}
}
