package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"

	"multihost/internal/sshkey"
)

// TestLife plays random stories of a job with several commands, machines and faults, on
// stand-ins for the cloud and the workers. It judges each story by the rules at the head of
// docs/reliability.md. A story runs in a bubble of testing/synctest, where hours pass as
// soon as all goroutines wait. LIFE_STORIES and LIFE_SEED say how many stories and which.
// LIFE_WIDE=1 adds more kinds of faults.
func TestLife(t *testing.T) { tellStories(t, lifeWhole(), envNumber(t, "LIFE_STORIES", 2000)) }

// TestLifeOnComputeEngine is TestLife for slices that Compute Engine makes, with the faults
// of Compute Engine. LIFE_GCE_STORIES, LIFE_SEED and LIFE_WIDE say how many stories and
// which.
func TestLifeOnComputeEngine(t *testing.T) {
	tellStories(t, lifeOnGCE(), envNumber(t, "LIFE_GCE_STORIES", 200))
}

func tellStories(t *testing.T, from lifeDraw, stories int) {
	t.Helper()
	kit := newLifeKit(t)
	setFlag(t, "rapid.checks", strconv.Itoa(stories))
	setFlag(t, "rapid.seed", strconv.Itoa(envNumber(t, "LIFE_SEED", 1)))
	setFlag(t, "rapid.nofailfile", "true")
	defer debug.SetGCPercent(debug.SetGCPercent(1600)) // without this, a fifth of the time goes to garbage collection
	dir, err := os.MkdirTemp(memoryDir(), "multihost-life-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	from.wide = envNumber(t, "LIFE_WIDE", 0) > 0
	told, failed := 0, false
	began := time.Now()
	rapid.Check(t, func(rt *rapid.T) {
		story := lifeStories(from).Draw(rt, "story")
		tries := 1
		if failed {
			tries = 4 // goroutines run in no fixed order, so a failure needs several tries to appear again
		}
		for range tries {
			told++
			if why := tellStory(t, story, filepath.Join(dir, strconv.Itoa(told)), kit); why != "" {
				failed = true
				rt.Fatalf("%s\n%s", story, why)
			}
		}
	})
	if told < stories { // rapid stops without an error when the time of the test is nearly over
		t.Errorf("only %d of %d stories could be told in %s", told, stories, time.Since(began).Round(time.Second))
	}
	t.Logf("%d stories in %s", told, time.Since(began).Round(time.Millisecond))
}

func setFlag(t *testing.T, name, value string) {
	t.Helper()
	old := flag.Lookup(name).Value.String()
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { flag.Set(name, old) })
}

func envNumber(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%q: it is a number", name, text)
	}
	return n
}

func newLifeKit(t *testing.T) *lifeKit {
	t.Helper()
	identity, err := sshkey.Create(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	kit := &lifeKit{identity: identity}
	for range 8 {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		signer, err := ssh.NewSignerFromKey(key)
		if err != nil {
			t.Fatal(err)
		}
		kit.keys = append(kit.keys, signer)
	}
	return kit
}

// tellStory plays one story. It returns which rule the story breaks and how, or "" if it
// keeps all rules.
func tellStory(t *testing.T, story lifeStory, dir string, kit *lifeKit) (why string) {
	defer os.RemoveAll(dir)
	defer func() {
		if r := recover(); r != nil {
			stacks := make([]byte, 1<<20)
			why = fmt.Sprintf("%v\n%s", r, stacks[:runtime.Stack(stacks, true)])
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w, err := newLifeWorld(story, dir, kit)
		if err != nil {
			t.Fatal(err)
		}
		why = w.tell()
		if why != "" {
			why += "\n\n" + w.report()
		}
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	return why
}

// tell plays the story. It returns which rule the story breaks and how, or "".
func (w *lifeWorld) tell() (why string) {
	for _, d := range w.story.steps {
		kind := lifeDeeds()[d.what]
		if kind.loss {
			w.note(lifeFact{kind: factLoss, text: d.what})
		}
		kind.do(w, d)
		time.Sleep(d.then) // the pace of the story; takes no real time in the bubble
		if why := w.judge(); why != "" {
			return why
		}
	}
	limit := time.Now().Add(w.endLimit)
	for _, m := range w.machines {
		for _, p := range m.running() {
			select {
			case <-p.done:
			case <-time.After(time.Until(limit)):
				w.note(lifeFact{kind: factHangs, who: p.name, text: "it does not end"})
			}
		}
	}
	if why := w.judge(); why != "" {
		return why
	}
	if w.real != nil {
		w.awaitGone(w.goLimit)
	} else {
		time.Sleep(w.goLimit) // takes no real time in the bubble
	}
	if r := w.resource(); r.billed && r.state == "ACTIVE" && w.story.goes() {
		w.note(lifeFact{kind: factLeft, text: "the queued resource is " + r.state + " and billed, and no runner lives"})
	}
	return w.judge()
}

// goes reports whether everything that the story leaves must be deleted without the help of
// a person.
func (s lifeStory) goes() bool {
	return s.ttl > 0 || s.keep == "" || s.keep == "on failure 10m"
}

// judge returns which rule the story has broken so far and how, or "".
func (w *lifeWorld) judge() string { return w.facts().broken() }

// report describes, for people, what happened.
func (w *lifeWorld) report() string {
	var b strings.Builder
	for _, f := range w.facts() {
		fmt.Fprintln(&b, f)
	}
	for _, m := range w.machines {
		for _, p := range m.processes {
			p.mu.Lock()
			fmt.Fprintf(&b, "\n--- %s:\n%s", p.name, p.said.String())
			p.mu.Unlock()
		}
	}
	return b.String()
}
