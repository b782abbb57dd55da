package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// on returns the newest worker in place n (see lifeDeed), or nil if there is none.
func (w *lifeWorld) on(n int) *lifeVM {
	for _, vm := range w.vms() {
		if vm.place() == fmt.Sprintf("m-%d.%d", n%lifeSlices, n/lifeSlices) {
			return vm
		}
	}
	return nil
}

// later calls do after the time d, unless the story ends before.
func (w *lifeWorld) later(d time.Duration, do func()) {
	w.back.Go(func() {
		select {
		case <-time.After(d):
			do()
		case <-w.ctx.Done():
		}
	})
}

// awayFor makes a worker unreachable for a time. The worker itself can still call the API.
func (w *lifeWorld) awayFor(n int, how string, d time.Duration) {
	if w.real != nil {
		w.real.awayFor(n, how, d)
		return
	}
	vm := w.on(n)
	if vm == nil {
		return
	}
	vm.mu.Lock()
	vm.away = how
	vm.mu.Unlock()
	vm.cut("", how != "refuse")
	w.lossIn(lifeLost, d)
	w.later(d, func() {
		vm.mu.Lock()
		vm.away = ""
		vm.mu.Unlock()
	})
}

// nobodyAnswers is the kind of lifeDeed that makes every worker unreachable for everybody.
const nobodyAnswers = "no answer from any worker"

func (w *lifeWorld) allAwayFor(d time.Duration) {
	for n := range lifeSlices * w.story.perSlice() {
		w.awayFor(n, "hang", d)
	}
}

// lossIn notes, after the time limit, that a command may count an unreachable worker as lost.
// If the worker is unreachable only for a shorter time d, lossIn does nothing.
func (w *lifeWorld) lossIn(limit, d time.Duration) {
	if d >= limit {
		w.later(limit, func() { w.note(lifeFact{kind: factLoss, text: "a worker could not be reached for " + limit.String()}) })
	}
}

// offlineFor takes the network from a machine for a time.
func (w *lifeWorld) offlineFor(machine int, d time.Duration) {
	m := w.machines[machine]
	m.setOffline(true)
	w.later(d, func() { m.setOffline(false) })
}

func (w *lifeWorld) starveFor(d time.Duration) { w.injectFor("no-capacity", "no-capacity", d) }

// injectFor sets a fault of the simulator for a time. The fault must be legal.
func (w *lifeWorld) injectFor(text, name string, d time.Duration) {
	_ = w.inject(text)
	w.later(d, func() { _, _ = w.server.Clear(name) })
}

// deleteByPerson deletes the slices as a person does with gcloud.
func (w *lifeWorld) deleteByPerson() {
	if w.story.onGCE {
		for n := range lifeSlices {
			w.groupGoes(lifeDeed{worker: n})
		}
	} else if w.resource().exists {
		w.deletedBy(byPerson, http.MethodDelete, lifeQR+"?force=true")
	}
}

// hit sets a fault of the simulator for the slice with the worker d.worker. The fault ends
// after d.lasts if that is not 0.
func (w *lifeWorld) hit(text string, d lifeDeed) error {
	text = strings.ReplaceAll(text, "%d", fmt.Sprint(d.worker%lifeSlices))
	err := w.inject(text)
	if err == nil && d.lasts > 0 {
		name, _, _ := strings.Cut(text, " ")
		w.later(d.lasts, func() { _, _ = w.server.Clear(name) })
	}
	return err
}

// runEnds lets the maximum run duration of a slice expire.
func (w *lifeWorld) runEnds(d lifeDeed) {
	if w.hit("group-run-ends group=m-%d", d) == nil {
		w.note(lifeFact{kind: factExpired})
	}
}

// groupGoes deletes a slice, as a person would.
func (w *lifeWorld) groupGoes(d lifeDeed) {
	w.deletedBy(byPerson, http.MethodDelete, fmt.Sprintf("%sinstanceGroupManagers/m-%d", inZone, d.worker%lifeSlices))
}

// vmGoes deletes a VM, as a person would.
func (w *lifeWorld) vmGoes(d lifeDeed) {
	if vm := w.on(d.worker); vm != nil {
		w.deletedBy(byPerson, http.MethodDelete, inZone+"instances/"+vm.spec.Name)
	}
}

// rotate gives a worker new host keys.
func (w *lifeWorld) rotate(n int) {
	vm := w.on(n)
	if vm == nil {
		return
	}
	vm.mu.Lock()
	at := slices.Index(w.keys, vm.key)
	vm.key = w.keys[(at+len(w.keys)/2)%len(w.keys)]
	vm.mu.Unlock()
	vm.cut("", false)
	w.lossIn(lifeLost, lifeLost) // until somebody accepts the new key, multihost takes the worker for another machine
}

// fails ends the command on a worker as if the command had failed.
func (w *lifeWorld) fails(n int) {
	if w.real != nil {
		w.real.fails(n)
		return
	}
	vm := w.on(n)
	if vm == nil {
		return
	}
	vm.mu.Lock()
	runs := slices.Collect(maps.Values(vm.runs))
	vm.mu.Unlock()
	for _, r := range runs {
		vm.end(r, 9, "", "")
	}
}

// unreadFor makes the end of a worker's log unreadable for a time.
func (w *lifeWorld) unreadFor(n int, d time.Duration) {
	vm := w.on(n)
	if vm == nil {
		return
	}
	ch := make(chan struct{})
	vm.mu.Lock()
	if vm.unread != nil {
		vm.mu.Unlock()
		return
	}
	vm.unread = ch
	vm.mu.Unlock()
	w.later(d, func() {
		vm.mu.Lock()
		vm.unread = nil
		vm.mu.Unlock()
		close(ch)
	})
}

// slowFor makes each call of the API take half a minute.
func (w *lifeWorld) slowFor(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slow = time.Now().Add(d)
}

// fullDisk is the kind of lifeDeed that fills the disk of a machine. In stories with a
// fullDisk, commands print much, and each machine has a disk of its own.
const fullDisk = "the disk is full"

// fillFor fills the disk of a machine for a time.
func (w *lifeWorld) fillFor(machine int, d time.Duration) {
	m := w.machines[machine]
	set := func(full bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.full = full
		m.fill(full)
	}
	set(true)
	w.later(d, func() { set(false) })
}

// fill takes all free space on the machine's disk, or frees it. The caller holds m.mu.
func (m *lifeMachine) fill(full bool) {
	if m.disk == "" {
		return
	}
	name := filepath.Join(m.disk, "filler")
	if !full {
		os.Remove(name)
		return
	}
	file, err := os.Create(name)
	if err != nil {
		return // the disk is full already
	}
	defer file.Close()
	for page := make([]byte, 64<<10); len(page) > 0; {
		if _, err := file.Write(page); err != nil {
			page = page[:len(page)/2]
		}
	}
}
