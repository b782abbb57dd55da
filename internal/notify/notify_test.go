package notify_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/event"
	"multihost/internal/notify"
	"multihost/internal/testkit"
)

// server answers each post with the next of the given statuses, and repeats the last one.
// It keeps the bodies.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int
	bodies   []string
}

func serve(t *testing.T, statuses ...int) *server {
	s := &server{statuses: statuses}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		status := s.statuses[min(len(s.bodies), len(s.statuses)-1)]
		s.bodies = append(s.bodies, string(body))
		if status/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) target(t *testing.T) *url.URL {
	t.Helper()
	u, err := notify.ParseURL(s.URL + "/hook/password?key=password")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// events are the names of the events in JSON lines.
func events(t *testing.T, lines []string) (names []string) {
	t.Helper()
	for _, l := range lines {
		var m notify.Message
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatalf("message %q: %v", l, err)
		}
		names = append(names, m.Event)
	}
	return names
}

// play emits the events of a run with two attempts, the first of which fails. As in package
// job, only the last attempt has a summary.
func play(n *notify.Notifier, code int) {
	begin := func(attempt int) {
		n.Emit(event.Attempt{Run: "r", Attempt: attempt, Command: "train --key=hunter2", Slices: []string{"t-0"}, Workers: 4, LogDir: "/logs"})
		n.Emit(event.Release{Attempt: attempt})
	}
	begin(1)
	n.Emit(event.AttemptEnd{Run: "r", Attempt: 1, Cause: "preempted", Why: "slice t-0 is PREEMPTED", Code: 143, Again: true, Next: "trying again (loss 1)"})
	begin(2)
	n.Emit(event.AttemptEnd{Run: "r", Attempt: 2, OK: code == 0, Code: code})
	n.Emit(event.Summary{Run: "r", Attempt: 2, OK: code == 0, ExitCode: code, Text: "run r ended"})
}

func TestEachMomentIsToldInOrderToBoth(t *testing.T) {
	testkit.NoLeaks(t)
	s := serve(t, 200)
	told := filepath.Join(t.TempDir(), "told")
	notes := &testkit.Recorder{}
	n := notify.New(notify.Options{
		Program: []string{"sh", "-c", `cat >>"$1"; echo "$#" >>"$1".args`, "sh", told, "two words; $HOME"},
		URL:     s.target(t), Run: "r", Project: "p", Zone: "z", Secrets: []string{"hunter2"}, Sink: notes, Clock: limits{},
	})
	play(n, 0)
	n.Close(t.Context(), 0, "")
	data, err := os.ReadFile(told)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	want := []string{"start", "failure", "restart", "end"}
	if diff := cmp.Diff(want, events(t, lines)); diff != "" {
		t.Errorf("the program was told (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, events(t, s.bodies)); diff != "" {
		t.Errorf("the server was told (-want +got):\n%s", diff)
	}
	if !strings.Contains(lines[1], `"text":"preempted: slice t-0 is PREEMPTED; trying again (loss 1)"`) {
		t.Errorf("why the first attempt failed is not told: %s", lines[1])
	}
	if strings.Contains(string(data), "hunter2") || !strings.Contains(lines[0], "train --key=***") {
		t.Errorf("the secret is not masked in %s", lines[0])
	}
	args, _ := os.ReadFile(told + ".args")
	if !strings.HasPrefix(string(args), "2\n") {
		t.Errorf("the program had %q arguments, want 2: no shell splits them", args)
	}
	if len(notes.Notes()) > 0 {
		t.Errorf("notes = %v, want none", notes.Notes())
	}
}

func TestWhatEndsBeforeItsStartIsAFailureToo(t *testing.T) {
	for _, tt := range []struct {
		story string
		code  int
		want  []string
	}{
		{"no capacity", 75, []string{"failure", "end"}},
		{"the user's Ctrl-C", 130, []string{"end"}},
	} {
		s := serve(t, 200)
		n := notify.New(notify.Options{URL: s.target(t), Sink: event.Discard, Clock: limits{}})
		n.Close(t.Context(), tt.code, "it ended")
		if diff := cmp.Diff(tt.want, events(t, s.bodies)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.story, diff)
		}
	}
}

// A failure of the last attempt is reported once, also if another attempt was announced.
func TestEachFailureIsToldOnce(t *testing.T) {
	for _, tt := range []struct {
		story string
		play  func(n *notify.Notifier)
		want  []string
	}{
		{"the last attempt fails", func(n *notify.Notifier) { play(n, 7) }, []string{"start", "failure", "restart", "failure", "end"}},
		{"no slices for the next attempt", func(n *notify.Notifier) {
			n.Emit(event.Release{Attempt: 1})
			n.Emit(event.AttemptEnd{Attempt: 1, Cause: "preempted", Again: true})
		}, []string{"start", "failure", "failure", "end"}},
	} {
		s := serve(t, 200)
		n := notify.New(notify.Options{URL: s.target(t), Sink: event.Discard, Clock: limits{}})
		tt.play(n)
		n.Close(t.Context(), 7, "it ended")
		if diff := cmp.Diff(tt.want, events(t, s.bodies)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.story, diff)
		}
	}
}

const errSlow = "it took too long"

func TestAFailureIsSaidAndHurtsNothing(t *testing.T) {
	for _, tt := range []struct {
		story   string
		program []string
		posts   []int
		tries   int
		said    string
	}{
		{"the program fails", []string{"sh", "-c", "echo no bus >&2; exit 3"}, nil, 0, `"sh" did not get the message about its end: exit status 3: no bus`},
		{"the program hangs, and its child too", []string{"sh", "-c", "sleep 1000 & sleep 1000"}, nil, 0, errSlow},
		{"the program leaves a child that keeps its output", []string{"sh", "-c", "sleep 3 & exit 0"}, nil, 0, ""},
		{"the server is busy once", nil, []int{503, 200}, 2, ""},
		{"the server fails for good", nil, []int{500}, 4, "it answered 500"},
		{"the server refuses", nil, []int{404}, 1, "it answered 404"},
		{"the server sends elsewhere", nil, []int{307}, 1, "it answered 307"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			notes := &testkit.Recorder{}
			o := notify.Options{Program: tt.program, Sink: notes, Clock: limits{pass: tt.said == errSlow}}
			s := serve(t, append(tt.posts, 200)[:max(1, len(tt.posts))]...)
			if tt.posts != nil {
				o.URL = s.target(t)
			}
			notify.New(o).Close(t.Context(), 0, "")
			if len(s.bodies) != tt.tries {
				t.Errorf("it was posted %d times, want %d", len(s.bodies), tt.tries)
			}
			got := notes.Notes()
			if tt.said == "" && len(got) > 0 || tt.said != "" && !notes.Said(event.Warn, tt.said) {
				t.Errorf("notes = %v, want %q", got, tt.said)
			}
			for _, n := range got {
				if strings.Contains(n.Text, "password") {
					t.Errorf("%q shows the path of the URL", n.Text)
				}
			}
		})
	}
}

func TestTheUserNeedNotWaitForAMessage(t *testing.T) {
	testkit.NoLeaks(t)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	begin := time.Now()
	n := notify.New(notify.Options{Program: []string{"sleep", "1000"}, Sink: event.Discard, Clock: limits{}})
	n.Close(ctx, 0, "")
	if took := time.Since(begin); took > 2*time.Minute {
		t.Errorf("Close took %v after the user had left", took)
	}
}

// limits is a clock whose pauses end at once. Its limits pass soon if pass is true, otherwise
// never, so that a slow machine does not fail the test.
type limits struct{ pass bool }

func (limits) Now() time.Time { return time.Now() }

func (l limits) After(d time.Duration) <-chan time.Time {
	switch {
	case d < 10*time.Second:
		return time.After(time.Millisecond)
	case l.pass && d < time.Minute:
		return time.After(50 * time.Millisecond)
	}
	return nil
}

func TestNobodyToTell(t *testing.T) {
	n := notify.New(notify.Options{})
	n.Emit(event.Release{})
	n.Close(t.Context(), 0, "")
}

func TestParseURL(t *testing.T) {
	for text, ok := range map[string]bool{
		"https://hooks.example.com/x": true, "http://127.0.0.1:9/x": true, "http://[::1]:9": true, "http://localhost/": true,
		"http://hooks.example.com/x": false, "ftp://localhost/": false, "hooks.example.com": false, "https://": false, "http://10.0.0.1/": false,
	} {
		if _, err := notify.ParseURL(text); (err == nil) != ok {
			t.Errorf("ParseURL(%q): %v", text, err)
		}
	}
}

func TestParseProgram(t *testing.T) {
	got, err := notify.ParseProgram(`sh -c 'a b' "$HOME"`)
	if diff := cmp.Diff([]string{"sh", "-c", "a b", "$HOME"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, text := range []string{"", "'open", "no-such-program-here -x"} {
		if got, err := notify.ParseProgram(text); err == nil {
			t.Errorf("ParseProgram(%q) = %q, want an error", text, got)
		}
	}
}
