package report

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Source returns what a live page shows, and whether the run has ended. It is not called
// after the end. If it returns an error, the page stays as it is.
type Source func() (in Input, ended bool, err error)

// A Clock says when to read the run again. gcp.SystemClock is one.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

// Live serves a page that follows its run.
//
// Only a client that knows the whole address gets anything. The address has a secret part,
// because everybody on this machine can reach a loopback address. Live refuses requests for
// a host that is not this machine's loopback: a foreign page could make its own name
// resolve to 127.0.0.1, and must not be able to read this one.
type Live struct {
	source Source
	clock  Clock
	secret string

	mu      sync.Mutex // guards the fields below
	title   string
	parts   []livePart
	version int
	ended   bool
	err     error         // error of the last read
	changed chan struct{} // closed when a field above changes
}

// livePart is a section and the version in which it last changed.
type livePart struct {
	section
	version int
}

// lookEvery is how often Live reads the run while reading is cheap.
const lookEvery = 2 * time.Second

// NewLive makes a page and reads the run for the first time. The error is that of this
// read.
func NewLive(source Source, clock Clock) (*Live, error) {
	l := &Live{source: source, clock: clock, secret: rand.Text(), changed: make(chan struct{})}
	l.look()
	return l, l.err
}

// URL returns the address of the page served at a listener on 127.0.0.1.
func (l *Live) URL(at net.Addr) string { return "http://" + at.String() + "/" + l.secret + "/" }

// hasEnded reports whether the page shows the end of the run.
func (l *Live) hasEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// Serve serves the page at the listener until ctx ends, then closes the listener. If the
// run ends before, it calls onEnd, and the page stays.
func (l *Live) Serve(ctx context.Context, at net.Listener, onEnd func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { l.follow(ctx, onEnd) })

	server := &http.Server{
		Handler:           l.guard(at.Addr()),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	group.Go(func() {
		<-ctx.Done()
		server.Close()
	})
	err := server.Serve(at)
	cancel()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the report: %w", err)
}

// follow reads the run until the run has ended. Reading 2048 workers may be expensive, so
// it spends at most a tenth of the time on that.
func (l *Live) follow(ctx context.Context, onEnd func()) {
	pause := lookEvery
	for !l.hasEnded() {
		select {
		case <-ctx.Done():
			return
		case <-l.clock.After(pause):
		}
		before := l.clock.Now()
		l.look()
		pause = max(lookEvery, 9*l.clock.Now().Sub(before))
	}
	onEnd()
}

func (l *Live) look() {
	in, ended, err := l.source()
	var v *view
	var body []section
	if err == nil {
		v = newView(in)
		body, err = sections(v)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	if err != nil {
		return
	}
	l.version++
	if l.parts == nil {
		l.parts = make([]livePart, len(body))
	}
	for i, s := range body {
		if l.parts[i].html != s.html {
			l.parts[i] = livePart{s, l.version}
		}
	}
	l.title, l.ended = v.Title, ended
	close(l.changed)
	l.changed = make(chan struct{})
}

// guard refuses requests that are not meant for this page.
func (l *Live) guard(at net.Addr) http.Handler {
	_, port, _ := net.SplitHostPort(at.String())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{secret}/{$}", l.page)
	mux.HandleFunc("GET /{secret}/events", l.events)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", policy(true)+"; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		if r.Host != "127.0.0.1:"+port && r.Host != "localhost:"+port {
			http.Error(w, "this page is only for the machine it is on", http.StatusMisdirectedRequest)
			return
		}
		secret, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if subtle.ConstantTimeCompare([]byte(secret), []byte(l.secret)) != 1 {
			http.Error(w, "this page has a secret part in its address: open it as multihost printed it", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (l *Live) page(w http.ResponseWriter, _ *http.Request) {
	l.mu.Lock()
	s := skeleton{title: l.title, live: "events?since=" + strconv.Itoa(l.version)}
	for _, p := range l.parts {
		s.body = append(s.body, p.section)
	}
	l.mu.Unlock()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = s.write(w) // a reader that has gone needs no answer
}

// events sends the sections that have changed since the reader's version, again and again
// until the run has ended.
func (l *Live) events(w http.ResponseWriter, r *http.Request) {
	since, _ := strconv.Atoi(r.URL.Query().Get("since"))
	if last, err := strconv.Atoi(r.Header.Get("Last-Event-ID")); err == nil {
		since = last // the reader has reconnected
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for {
		l.mu.Lock()
		parts := map[string]string{}
		for _, p := range l.parts {
			if p.version > since {
				parts[p.id] = p.html
			}
		}
		version, ended, changed := l.version, l.ended, l.changed
		l.mu.Unlock()
		data, err := json.Marshal(parts)
		if err != nil {
			return
		}
		if len(parts) > 0 {
			_, err = fmt.Fprintf(w, "id: %d\nevent: parts\ndata: %s\n\n", version, data)
		} else {
			_, err = fmt.Fprint(w, ": nothing new\n\n")
		}
		if err == nil && ended {
			_, err = fmt.Fprint(w, "event: end\ndata:\n\n")
		}
		if err != nil || out.Flush() != nil || ended {
			return
		}
		since = version
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
