package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing/fstest"
	"time"

	"multihost/internal/agent"
	agentprogram "multihost/internal/agent/program"
)

// noAgent stands for multihost-agent on workers that run no programs.
func noAgent() agentprogram.Set {
	return agentprogram.In(fstest.MapFS{"amd64.sha256": {Data: []byte(strings.Repeat("0", 64))}})
}

// A lifeLease is what a worker knows of the lease of its run. It has the rules and the
// names of package internal/agent/watch.
type lifeLease struct {
	// On disk.
	saved lifeTerms
	known bool // saved has a value
	born  time.Time

	// The terms in /tmp, which a reboot empties.
	file    lifeTerms
	there   bool
	written int // number of writes

	watched bool

	// The state in the guest attributes, for the other workers.
	state  string
	stated time.Time
}

// lifeTerms are the terms of a lease. Times are in seconds.
type lifeTerms struct {
	run                                                 string
	deletions                                           []agent.Deletion
	total, adopt, lease, fresh, hold, ttl, grace, asked int
	keep                                                string
	keepFor, look                                       int
	adopted                                             bool
}

// read reads lines KEY=VALUE.
func (t *lifeTerms) read(text string) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		n, err := strconv.Atoi(value)
		for name, at := range map[string]*int{"total": &t.total, "adopt": &t.adopt, "lease": &t.lease, "fresh": &t.fresh, "hold": &t.hold,
			"ttl": &t.ttl, "asked": &t.asked, "grace": &t.grace, "keep_for": &t.keepFor, "look": &t.look} {
			if name == key && err == nil {
				*at = n
			}
		}
		switch key {
		case "run":
			if t.run == "" {
				t.run = value
			}
		case "deletion":
			var d agent.Deletion
			if json.Unmarshal([]byte(value), &d) == nil {
				t.deletions = append(t.deletions, d)
			}
		case "keep":
			t.keep = value
		}
	}
	t.look = max(t.look, 1)
}

// boot does what the startup script does after it has read text. The caller holds vm.mu.
func (l *lifeLease) boot(vm *lifeVM, text string) {
	l.there, l.file, l.watched = false, lifeTerms{}, false
	if l.born.IsZero() {
		l.born = time.Now()
	}
	if text == "" {
		return
	}
	if !l.known {
		l.saved.read(text)
		l.known = true
	}
	l.start(vm)
}

// start starts the watch unless one is running. The caller holds vm.mu.
func (l *lifeLease) start(vm *lifeVM) {
	if l.watched {
		return
	}
	l.watched = true
	down := vm.down
	vm.wg.Go(func() { (&lifeWatch{vm: vm, down: down, terms: l.saved, up: time.Now()}).watch() })
}

// write replaces the lease file, as the login does.
func (l *lifeLease) write(t lifeTerms) {
	l.file, l.there = t, true
	l.written++
}

// lease answers a runner's operation on the lease.
func (s *lifeSession) lease(args []string, in *bufio.Reader) {
	vm := s.vm
	text, err := io.ReadAll(in)
	vm.mu.Lock()
	defer vm.mu.Unlock()
	l := &vm.lease
	switch args[0] {
	case "arm", "adopt":
		body, whole := strings.CutSuffix(string(text), "end\n")
		if err != nil || !whole || !vm.up {
			s.say("error the terms did not arrive whole")
			return
		}
		t := lifeTerms{}
		t.read(body)
		l.write(t)
		l.saved, l.known = t, true
		l.saved.adopted = true
		if t.lease > 0 || t.ttl > 0 {
			l.start(vm)
		}
		if args[0] == "arm" {
			s.say("right yes")
		}
	case "renew":
		if l.there {
			t := l.file
			t.hold, _ = strconv.Atoi(args[3])
			l.write(t)
		}
	}
	held := "no"
	if l.watched && l.there {
		held = "yes"
	}
	s.say("lease %s %d %d %d %s %d", held, l.file.lease, l.file.ttl, int(time.Since(l.file.begin(l.born)).Seconds()), orDash(l.file.keep), l.file.keepFor)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// begin returns the time from which --ttl counts.
func (t lifeTerms) begin(born time.Time) time.Time {
	if asked := time.Unix(int64(t.asked), 0); t.asked > 0 && asked.Before(born) {
		return asked
	}
	return born
}

// A lifeWatch is the process on a worker that deletes the queued resource.
type lifeWatch struct {
	vm    *lifeVM
	down  chan struct{}
	terms lifeTerms
	up    time.Time // the time of the present look

	seen                 int
	since, renewed, idle time.Time
	state                string
	again                time.Time
	tries                int
	stopped              bool
	why                  string
}

func (w *lifeWatch) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-w.down:
		return false
	}
}

func (w *lifeWatch) watch() {
	w.since, w.renewed, w.idle = w.up, w.up, w.up
	for {
		w.look()
		if w.terms.lease == 0 && w.terms.ttl == 0 && (w.terms.adopt == 0 || w.terms.adopted) {
			w.vm.mu.Lock()
			w.vm.lease.state, w.vm.lease.watched = "kept", false
			w.vm.mu.Unlock()
			return
		}
		if !w.up.Before(w.again) && w.due() && w.othersEnded() && !w.remove() {
			return
		}
		if !w.sleep(time.Duration(w.terms.look) * time.Second) {
			return
		}
	}
}

// look does what Machine.take of package watch does, and publishes the state for the other
// workers.
func (w *lifeWatch) look() {
	vm := w.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	w.up = time.Now()
	l := &vm.lease
	if l.written != w.seen && l.there {
		w.seen = l.written
		adopted := l.file
		adopted.adopted = true
		w.terms, w.renewed = adopted, w.up
		l.saved = adopted
	}
	w.observe()
	l.state, l.stated = w.state, w.up
}

func (w *lifeWatch) observe() {
	vm := w.vm
	if vm.busy() {
		w.state, w.idle, w.terms.adopted = "running", w.up, true
		return
	}
	var entry *lifeRun
	for _, r := range vm.runs {
		if r.run == w.terms.run && (entry == nil || r.attempt > entry.attempt) {
			entry = r
		}
	}
	w.state = "none"
	switch {
	case entry != nil && entry.phase == "exited" && entry.code == 0:
		w.state = "succeeded"
	case entry != nil:
		w.state = "failed"
	case w.seen > 0 && w.up.Sub(w.renewed) < w.limit():
		w.state = "awaited"
	}
	if entry != nil {
		w.terms.adopted = true
	}
}

func (w *lifeWatch) limit() time.Duration {
	return time.Duration(max(w.terms.lease, w.terms.hold)) * time.Second
}

// due does what Machine.due of package watch does.
func (w *lifeWatch) due() bool {
	t, quiet := w.terms, w.up.Sub(w.renewed)
	seconds := func(n int) time.Duration { return time.Duration(n) * time.Second }
	over := t.begin(w.vm.lease.born).Add(seconds(t.ttl))
	if t.ttl > 0 && !w.up.Before(over) {
		w.why = "--ttl"
		silent := quiet > seconds(t.fresh)
		if w.state == "running" {
			if (silent || !w.up.Before(over.Add(seconds(t.grace)))) && !w.stopped {
				w.stopped = true
				w.stopCommand()
			}
			return !w.up.Before(w.lastMoment())
		}
		return !t.adopted || silent || !w.up.Before(over.Add(seconds(t.grace+60)))
	}
	if !t.adopted {
		w.why = "no runner has come"
		return t.adopt > 0 && w.up.Sub(w.since) >= seconds(t.adopt)
	}
	if t.lease == 0 || w.state == "running" {
		return false
	}
	limit := w.limit()
	if t.keep == "on-failure" && w.state != "succeeded" {
		if t.keepFor == 0 {
			return false
		}
		limit = max(limit, seconds(t.keepFor))
	}
	w.why = fmt.Sprintf("nobody has renewed the lease for %s", quiet)
	return quiet >= limit && w.up.Sub(w.idle) >= limit
}

func (w *lifeWatch) lastMoment() time.Time {
	return w.terms.begin(w.vm.lease.born).Add(time.Duration(w.terms.ttl+w.terms.grace+30) * time.Second)
}

func (w *lifeWatch) stopCommand() {
	if r := w.vm.newest(w.terms.run, 0); r != nil {
		w.vm.mu.Lock()
		live := w.vm.runs[fmt.Sprintf("%s/%d", r.run, r.attempt)]
		w.vm.mu.Unlock()
		w.vm.end(live, 143, "", byLease)
	}
}

// othersEnded decides as Machine.Heard of package watch does, but reads the states of the
// other workers directly.
func (w *lifeWatch) othersEnded() bool {
	expired := w.why == "--ttl"
	if expired && !w.up.Before(w.lastMoment()) {
		return true
	}
	if w.vm.world.apiIsAway() {
		w.later()
		return false
	}
	for _, other := range w.vm.world.vms() {
		if other == w.vm {
			continue
		}
		other.mu.Lock()
		state, stated := other.lease.state, other.lease.stated
		other.mu.Unlock()
		switch {
		case state == "kept" && !expired:
			return false
		case state == "" && w.terms.adopted:
			return false
		case w.up.Sub(stated) > 30*time.Minute:
		case state == "running", state == "awaited" && !expired:
			return false
		case (state == "failed" || state == "none") && !expired && w.terms.adopted && w.terms.keep == "on-failure" &&
			(w.terms.keepFor == 0 || w.up.Sub(w.idle) < time.Duration(w.terms.keepFor)*time.Second):
			return false
		}
	}
	return true
}

// remove deletes the queued resource. If the resource belongs to another run, goOn is
// false, and the watch must end.
func (w *lifeWatch) remove() (goOn bool) {
	if !w.sleep(rand.N(time.Duration(max(w.terms.total, 1)) * time.Second)) {
		return false
	}
	w.look()
	if !w.due() {
		return true
	}
	switch w.vm.world.deleteByLease(w.terms) {
	case http.StatusForbidden:
		return false
	}
	w.later()
	return true
}

func (w *lifeWatch) later() {
	w.tries++
	pause := time.Duration(w.terms.look*3) * time.Second
	if w.tries >= 20 {
		pause = 10 * time.Minute
	}
	w.again = w.up.Add(pause)
}
