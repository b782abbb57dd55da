package report_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"multihost/internal/metrics"
	"multihost/internal/report"
	"multihost/internal/testkit"
	"multihost/internal/testkit/browser"
	"multihost/internal/tpu"
)

// stage is a run whose states a live page shows one after the other.
type stage struct {
	mu    sync.Mutex
	in    report.Input
	ended bool
	err   error
}

func (s *stage) show(in report.Input, ended bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in, s.ended, s.err = in, ended, err
}

func (s *stage) source() (report.Input, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in, s.ended, s.err
}

// serve serves the stage until the test ends. ended is closed when the page has said that
// the run has ended.
func serve(t *testing.T, s *stage) (address string, ended chan struct{}) {
	t.Helper()
	live, err := report.NewLive(s.source, testkit.NewFastClock())
	testkit.Must(t, err)
	at, err := net.Listen("tcp4", "127.0.0.1:0")
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- live.Serve(ctx, at, func() { close(ended) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return live.URL(at.Addr()), ended
}

func running(t *testing.T, steps int) report.Input {
	return training{slices: 2, workers: 2, steps: steps, slow: tpu.WorkerID{Slice: 9}, running: true}.input(t)
}

func get(t *testing.T, method, address, host string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	testkit.Must(t, err)
	if host != "" {
		r.Host = host
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	testkit.Must(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func TestALivePageIsForWhoHasItsAddressOnThisMachine(t *testing.T) {
	testkit.NoLeaks(t)
	s := &stage{in: running(t, 20)}
	address, _ := serve(t, s)
	root := strings.Join(strings.SplitN(address, "/", 4)[:3], "/") + "/"
	port := address[strings.LastIndex(root[:len(root)-1], ":")+1 : len(root)-1]
	for _, tc := range []struct {
		story, method, address, host string
		want                         int
	}{
		{"who has the address", "GET", address, "", 200},
		{"by the name of the loopback", "GET", address, "localhost:" + port, 200},
		{"a name that was turned into 127.0.0.1", "GET", address, "evil.example:" + port, 421},
		{"another port in the name", "GET", address, "127.0.0.1:1", 421},
		{"no port in the name", "GET", address, "127.0.0.1", 421},
		{"without the secret", "GET", root, "", 403},
		{"a wrong secret", "GET", root + "x/", "", 403},
		{"events without the secret", "GET", root + "events", "", 403},
		{"what is not there", "GET", address + "other", "", 404},
		{"a change", "POST", address, "", 405},
	} {
		resp := get(t, tc.method, tc.address, tc.host)
		body, err := io.ReadAll(resp.Body)
		testkit.Must(t, err)
		if resp.StatusCode != tc.want {
			t.Errorf("%s: status %d, want %d", tc.story, resp.StatusCode, tc.want)
		}
		if shows := strings.Contains(string(body), "python3 train.py"); shows != (tc.want == 200) {
			t.Errorf("%s: shows the run: %v", tc.story, shows)
		}
		if p := resp.Header.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") {
			t.Errorf("%s: policy %q", tc.story, p)
		}
	}
}

func TestUpdatesAreWhatHasChanged(t *testing.T) {
	testkit.NoLeaks(t)
	s := &stage{in: running(t, 20)}
	address, ended := serve(t, s)
	lines := bufio.NewScanner(get(t, "GET", address+"events?since=0", "").Body)
	lines.Buffer(nil, 16<<20)
	next := func() (event string, parts map[string]string) {
		for lines.Scan() {
			if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				event = name
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data:"); ok && event == "parts" {
				testkit.Must(t, json.Unmarshal([]byte(data), &parts))
			}
			if lines.Text() == "" && event != "" {
				return event, parts
			}
		}
		return "", nil
	}
	if _, parts := next(); len(parts) != 11 || !strings.Contains(parts["verdict"], "step 19") {
		t.Errorf("first all parts of the page but the empty one of a failure, got %d", len(parts))
	}
	// The page must not change if the run cannot be read or has not changed.
	s.show(report.Input{}, false, errors.New("disk"))
	more := running(t, 21)
	s.show(more, false, nil)
	event, parts := next()
	if _, changed := parts["preflight"]; event != "parts" || changed || !strings.Contains(parts["figures"], `value="20"`) {
		t.Errorf("after a step: %s of %d parts, the preflight among them: %v", event, len(parts), changed)
	}
	s.show(more, true, nil)
	if event, _ = next(); event != "end" {
		t.Errorf("after the end: %q, want end", event)
	}
	<-ended
	if lines.Scan() {
		t.Errorf("after the end: %q, want no more", lines.Text())
	}
	if resp := get(t, "GET", address, ""); resp.StatusCode != 200 {
		t.Errorf("after the end the page answers %d", resp.StatusCode)
	}
}

func TestALivePageOfNothingIsRefused(t *testing.T) {
	s := &stage{err: errors.New("no such run")}
	if _, err := report.NewLive(s.source, testkit.NewFastClock()); err == nil || err.Error() != "no such run" {
		t.Errorf("error %v", err)
	}
}

func testLivePage(t *testing.T, p *browser.Page) {
	s := &stage{in: running(t, 100)}
	address, _ := serve(t, s)
	p.See(browser.View{})
	p.Go(address)
	p.Wait(`document.getElementById("link").textContent === "live"`)
	browser.Eval[int](p, `(() => { document.getElementById("points").open = true; document.querySelector("[data-chart=loss]").focus(); return 0; })()`)
	p.Press(kb.ArrowRight)
	before := browser.Eval[string](p, `document.getElementById("loss-read").textContent`)
	if !strings.HasPrefix(before, "step 0: ") {
		t.Errorf("the chart reads %q", before)
	}
	s.show(running(t, 101), false, nil)
	p.Wait(`document.querySelector(".say").textContent.startsWith("step 100")`)
	if got := browser.Eval[string](p, `document.querySelector("data[data-at='/attempts/0/last/step']").value`); got != "100" {
		t.Errorf("the step is %s after an update, want 100", got)
	}
	if got := browser.Eval[[]bool](p, `[document.getElementById("points").open, document.activeElement.dataset.chart === "loss"]`); !got[0] || !got[1] {
		t.Errorf("after an update: table open %v, focus kept %v", got[0], got[1])
	}
	if got := browser.Eval[string](p, `document.getElementById("loss-read").textContent`); got != before {
		t.Errorf("after an update the chart reads %q, want %q still", got, before)
	}
	doc := decode(t, running(t, 101).Document)
	for _, f := range browser.Eval[[]pageFigure](p, allFigures) {
		if v, ok := at(t, doc, f.At).(json.Number); !ok || v.String() != f.Value {
			t.Errorf("%s is %v in the document, %s on the page", f.At, v, f.Value)
		}
	}
	end := training{slices: 2, workers: 2, steps: 120, slow: tpu.WorkerID{Slice: 9}, fails: true}.input(t)
	end.Document.Attempts[0].Stalls = []metrics.Stall{{Text: "no step for 10 minutes, s1w0 stopped first"}}
	s.show(end, true, nil)
	p.Wait(`document.getElementById("link").textContent === "the run has ended"`)
	if got := browser.Eval[string](p, `document.title + " " + document.querySelector(".attention").textContent.trim()`); !strings.HasPrefix(got, "train · Failed") || !strings.Contains(got, "s1w0 stopped first") {
		t.Errorf("at the end the page says %q", got)
	}
}
