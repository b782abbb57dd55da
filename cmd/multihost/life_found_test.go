package main

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestLifeStoriesFound plays stories that once broke a rule, and some that TestLife rarely
// makes at random. It checks the rules, and also how every command ends.
func TestLifeStoriesFound(t *testing.T) {
	kit := newLifeKit(t)
	const laptop, desk = 0, 1
	const partLog = 74
	const soon = 4*lifeStep + 100*time.Millisecond // the slices are just ready; a waiting command notices that some seconds later
	deed := func(what string, machine int, then time.Duration) lifeDeed {
		return lifeDeed{what: what, machine: machine, then: then}
	}
	for i, tt := range []struct {
		name  string
		story lifeStory
		want  []map[string]int // the right exit statuses; several, if chance decides which worker fails first
		by    time.Duration    // by then, the last command must have ended; 0: no limit
	}{
		{"Ctrl-C while another runner has started the command",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, soon), deed("type job", desk, time.Millisecond), deed("Ctrl-C", laptop, 10*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": exitInterrupt, "job 1 of desk": 0}, {"job 1 of laptop": exitInterrupt, "job 1 of desk": 128 + 15}}, 0},
		{"two machines ask again for slices that were lost",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", desk, 2*time.Minute), deed("the queued resource is suspended", 0, time.Second), deed("type job", laptop, 20*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 0, "job 1 of desk": 0}}, 0},
		{"the first attempt of another machine, where another job of the name has ended",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 10*time.Minute), deed("type job", desk, 2*time.Minute), deed("type job", laptop, 10*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 0, "job 1 of desk": 0, "job 2 of laptop": 0}}, 0},
		{"a stop where another machine has begun again what has ended here",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 10*time.Minute), deed("type job", desk, 2*time.Minute), deed("type stop", laptop, 5*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 0, "job 1 of desk": 128 + 15, "stop 2 of laptop": 0}}, 0},
		{"attaching where another machine has begun again what has ended here",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 10*time.Minute), deed("type job", desk, 2*time.Minute), deed("type attach", laptop, 5*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 0, "job 1 of desk": 0, "attach 2 of laptop": 0}}, 0},
		{"another machine begins an attempt that this one cannot see, and the queued resource fails",
			lifeStory{lasts: 10 * time.Minute, ttl: 30 * time.Minute, steps: []lifeDeed{
				deed("type job at a terminal", laptop, time.Second), {what: "no answer from", worker: 0, lasts: 20 * time.Second, then: 2 * time.Minute},
				{what: "the command fails on", worker: 1, then: time.Second}, {what: "new host keys of", worker: 1, then: time.Second},
				deed("type job --detach", desk, 2*time.Minute), {what: "the queued resource fails", then: 2 * time.Minute},
			}}, []map[string]int{{"job 1 of laptop": 0, "detach 1 of desk": 0}}, 0},
		{"each change of a request to Compute Engine takes more than half a minute",
			lifeStory{lasts: 3 * time.Minute, onGCE: true, workers: 2, steps: []lifeDeed{
				deed("type job", laptop, time.Second), {what: "changes of a state take 1m more", lasts: 20 * time.Second, then: 20 * time.Minute},
			}}, []map[string]int{{"job 1 of laptop": 0}}, 0},
		{"another run is first on the slices of a job",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, soon), deed("type run", desk, 10*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": exitUnavailable, "run 1 of desk": 0}, {"job 1 of laptop": 0, "run 1 of desk": exitUnavailable}}, 0},
		{"a worker reboots while it reboots",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), {what: "a reboot of", then: 10 * time.Second}, {what: "a reboot of", then: 20 * time.Minute},
			}}, []map[string]int{{"job 1 of laptop": 0}}, 0},
		{"no worker answers for longer than a boot may take when the job is typed again",
			lifeStory{lasts: 40 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), deed("kill -9", laptop, time.Second),
				{what: "no answer from", worker: 0, lasts: 6 * time.Minute, then: time.Second},
				{what: "no answer from", worker: 1, lasts: 6 * time.Minute, then: time.Second},
				deed("type job", laptop, 20*time.Minute),
			}}, []map[string]int{{"job 2 of laptop": 0}}, 0},
		{"a stop of a run that this machine does not know, while a slice does not answer",
			lifeStory{lasts: 40 * time.Minute, steps: []lifeDeed{
				deed("type job", desk, 2*time.Minute),
				{what: "no answer from", worker: 1, lasts: 6 * time.Minute, then: 40 * time.Second}, deed("type stop", laptop, 20*time.Minute),
			}}, []map[string]int{{"job 1 of desk": 128 + 15, "stop 1 of laptop": exitUnavailable}}, 0},
		{"a stop while a runner stops an attempt to begin the next one",
			lifeStory{lasts: 3 * time.Minute, restarts: 1, steps: []lifeDeed{
				deed("type job", desk, 2*time.Minute), {what: "the command fails on", worker: 1, then: 500 * time.Millisecond}, deed("type stop", laptop, 20*time.Minute),
			}}, []map[string]int{{"job 1 of desk": 9, "stop 1 of laptop": 0}, {"job 1 of desk": 128 + 15, "stop 1 of laptop": 0}}, 0},
		{"the job is typed elsewhere after its success, which its runner cannot see",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), {what: "no network", machine: laptop, lasts: 6 * time.Minute, then: 3 * time.Minute}, deed("type job", desk, 20*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 0, "job 1 of desk": 0}, {"job 1 of laptop": exitUnavailable, "job 1 of desk": 0}}, 0},
		{"a runner that still waits for a log, while another machine has begun the next attempt",
			lifeStory{lasts: 6 * time.Minute, fails: 1, steps: []lifeDeed{
				deed("type job", laptop, 3*time.Minute), {what: "logs cannot be read on", worker: 0, lasts: 2 * time.Minute, then: 90 * time.Second}, deed("type job", desk, 20*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 3, "job 1 of desk": 0}}, 0},
		{"another machine makes the slices again while their job deletes them",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 3*time.Minute+50*time.Second), deed("type job", desk, 20*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 0, "job 1 of desk": 0}}, 0},
		{"attaching to a run that this machine does not know, while a slice does not answer",
			lifeStory{lasts: 10 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 10*time.Minute), {what: "no answer from", worker: 1, lasts: 4 * time.Minute, then: 2 * time.Minute}, deed("type attach", desk, 20*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 0, "attach 1 of desk": exitUnavailable}}, 0},
		{"SIGTERM while a worker cannot be reached",
			lifeStory{lasts: 9 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), {what: "no answer from", worker: 1, lasts: 20 * time.Minute, then: 3 * time.Minute}, deed("SIGTERM", laptop, 30*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 128 + 15}}, 0},
		{"--ttl passes while a worker cannot be reached",
			lifeStory{lasts: 27 * time.Minute, ttl: 12 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 8*time.Minute), {what: "no answer from", worker: 1, lasts: 6 * time.Minute, then: 30 * time.Minute},
			}}, []map[string]int{{"job 1 of laptop": exitTempFail}}, 0},
		{"the job is typed again after --ttl has ended the command",
			lifeStory{lasts: 40 * time.Minute, ttl: 12 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), deed("SIGHUP", laptop, 10*time.Minute+10*time.Second), deed("type job", laptop, 20*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 128 + 1, "job 2 of laptop": exitTempFail}}, 0},
		{"a stop is marked while a job that another machine has typed again waits for a worker",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), {what: fullDisk, machine: laptop, lasts: 20 * time.Minute, then: time.Second}, deed("type stop", laptop, 5*time.Minute+10*time.Second),
				{what: "no answer from", worker: 1, lasts: time.Minute, then: 5 * time.Second}, deed("type stop", laptop, time.Second),
				deed("type job --detach", desk, 20*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 128 + 15, "stop 2 of laptop": 0, "stop 3 of laptop": exitUnavailable, "detach 1 of desk": 128 + 15}}, 0},
		{"the disk is full at the end",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, time.Minute), {what: fullDisk, machine: laptop, lasts: 20 * time.Minute, then: 30 * time.Minute},
			}}, []map[string]int{{"job 1 of laptop": partLog}}, 0},
		{"the disk has room before --log-timeout",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, time.Minute), {what: fullDisk, machine: laptop, lasts: 5 * time.Minute, then: 30 * time.Minute},
			}}, []map[string]int{{"job 1 of laptop": 0}}, 0},
		{"the slices are taken away while the disk is full",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, time.Minute), {what: fullDisk, machine: laptop, lasts: 20 * time.Minute, then: 3 * time.Minute}, {what: "preempted is", worker: 1, then: 20 * time.Minute},
			}}, []map[string]int{{"job 1 of laptop": partLog}}, 6 * time.Minute},
		{"one of two runners has given up a worker, the other one has begun the next attempt",
			lifeStory{lasts: 40 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 5*time.Minute), {what: "new host keys of", worker: 1, then: 10 * time.Second}, deed("type job", desk, time.Hour),
			}}, []map[string]int{{"job 1 of laptop": exitUnavailable, "job 1 of desk": 0}}, 0},
		{"Ctrl-C while a job connects to slices whose command has ended, with logs that nobody has",
			lifeStory{lasts: 10 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 10*time.Minute), deed("kill -9", laptop, 40*time.Second),
				{what: "no answer from", worker: 0, lasts: 20 * time.Minute, then: time.Second}, deed("type job", laptop, 40*time.Second), deed("Ctrl-C", laptop, 10*time.Minute),
			}}, []map[string]int{{"job 2 of laptop": exitInterrupt}}, 0},
		{"a job is left running again after a worker has rebooted",
			lifeStory{lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), deed("kill -9", laptop, time.Second), {what: "a reboot of", worker: 1, then: 50 * time.Second}, deed("type job --detach", laptop, 20*time.Minute),
			}}, []map[string]int{{"detach 2 of laptop": 0}}, 0},
		{"attaching to a run that this machine does not know, while a slice under maintenance refuses connections",
			lifeStory{lasts: 10 * time.Minute, fails: 1, steps: []lifeDeed{
				deed("type job at a terminal", laptop, 40*time.Second), {what: fullDisk, machine: desk, lasts: 2 * time.Minute, then: 10 * time.Second},
				deed("SIGTERM", desk, 2*time.Minute), {what: "maintenance of", worker: 1, then: 10 * time.Second},
				{what: "connections are refused by", worker: 1, lasts: 20 * time.Minute, then: 40 * time.Second}, deed("SIGHUP", laptop, 5*time.Minute),
				deed("type attach at a terminal", desk, 10*time.Second), deed("type job --detach", desk, 10*time.Minute),
				{what: fullDisk, machine: laptop, lasts: 20 * time.Second, then: time.Second},
			}}, []map[string]int{{"job 1 of laptop": 128 + 1, "attach 1 of desk": exitUnavailable, "detach 2 of desk": exitUnavailable}}, 0},
		{"attaching to a run that this machine does not know, while a slice is under maintenance",
			lifeStory{lasts: 10 * time.Minute, fails: 1, steps: []lifeDeed{
				deed("type job", laptop, 3*time.Minute), {what: "maintenance of", worker: 1, then: 10 * time.Second},
				deed("SIGHUP", laptop, 10*time.Second), deed("type attach", desk, 20*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 128 + 1, "attach 1 of desk": 3}}, 0},
		{"a person deletes the only VM of a slice that Compute Engine makes",
			lifeStory{onGCE: true, bound: true, lasts: 10 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), {what: "a person deletes a VM of", then: 40 * time.Minute},
			}}, []map[string]int{{"job 1 of laptop": 0}}, 0},
		{"a person deletes one of two slices that Compute Engine makes, whose job is left",
			lifeStory{onGCE: true, bound: true, lasts: 40 * time.Minute, steps: []lifeDeed{
				deed("type job at a terminal", laptop, 10*time.Minute), {what: "a person deletes the group of", worker: 1, then: time.Second}, deed("Ctrl-C and the answer detach", laptop, 10*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": exitInterrupt}}, 0},
		{"gc finds a slice that Compute Engine has left, with a log",
			lifeStory{onGCE: true, lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job at a terminal", laptop, 2*time.Minute), deed("Ctrl-C and the answer detach", laptop, time.Second), {what: "preempted is", worker: 1, then: 10 * time.Minute},
				deed("type gc --delete", laptop, time.Minute),
			}}, []map[string]int{{"job 1 of laptop": exitInterrupt, "gc 2 of laptop": 0}}, 0},
		{"a job is typed again when Compute Engine has left one of its slices, with a log",
			lifeStory{onGCE: true, lasts: 10 * time.Minute, steps: []lifeDeed{
				deed("type job at a terminal", laptop, 5*time.Minute), deed("Ctrl-C and the answer detach", laptop, 5*time.Minute), {what: "preempted is", worker: 0, then: 10 * time.Minute},
				deed("type job", laptop, 30*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": exitInterrupt, "job 2 of laptop": 0}}, 0},
		{"a host fails, and Compute Engine repairs the slice",
			lifeStory{onGCE: true, bound: true, workers: 2, lasts: 3 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), {what: "no slice is repaired", lasts: 20 * time.Minute, then: time.Second}, {what: "the host fails of", worker: 1, then: 40 * time.Minute},
			}}, []map[string]int{{"job 1 of laptop": 0}}, 0},
		{"a job is left running on failed slices that are kept, and ends before they are deleted",
			lifeStory{lasts: 30 * time.Second, fails: 1, keep: "on failure 10m", steps: []lifeDeed{
				deed("type job", laptop, 10*time.Minute), deed("type job --detach", desk, 10*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 3, "detach 1 of desk": 0}}, 0},
		{"another machine makes the slices again, while this one learns late that they are gone",
			lifeStory{lasts: 10 * time.Minute, workers: 2, steps: []lifeDeed{
				deed("type job", desk, time.Second), {what: "maintenance of", worker: 3, then: 10 * time.Second}, deed("type job at a terminal", laptop, 20*time.Second),
				{what: "the API takes 30s to answer", lasts: 20 * time.Minute, then: 50 * time.Second}, {what: "no answer from", worker: 1, lasts: 20 * time.Minute, then: time.Hour},
			}}, []map[string]int{{"job 1 of laptop": exitTempFail, "job 1 of desk": 0}, {"job 1 of laptop": exitUnavailable, "job 1 of desk": 0}}, 0},
		{"a stop of what another machine has left running, where an attempt of the same number has ended here",
			lifeStory{lasts: 30 * time.Second, steps: []lifeDeed{
				deed("type job", laptop, 5*time.Minute), deed("type job --detach", desk, 2*time.Minute),
				deed("type stop", laptop, time.Minute), deed("type attach", laptop, time.Minute), deed("type stop", laptop, 5*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 0, "detach 1 of desk": 0, "stop 2 of laptop": exitUnavailable, "attach 3 of laptop": 0, "stop 4 of laptop": 0}}, 0},
		{"a stop, and the slices are taken away before their logs are read",
			lifeStory{lasts: 10 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), {what: "logs cannot be read on", worker: 0, lasts: 2 * time.Minute, then: 10 * time.Second}, deed("SIGTERM", laptop, 10*time.Second),
				{what: "preempted is", worker: 1, then: time.Second}, {what: "a reboot of", worker: 0, then: time.Hour},
			}}, []map[string]int{{"job 1 of laptop": 128 + 15}}, 0},
		{"an attach that ends when the job has begun its next attempt",
			lifeStory{lasts: 10 * time.Minute, restarts: 1, steps: []lifeDeed{
				deed("type job", laptop, 5*time.Minute), {what: "logs cannot be read on", worker: 1, lasts: 6*time.Minute + 20*time.Second, then: 10 * time.Second}, {what: "the command fails on", worker: 0, then: time.Minute},
				deed("type attach", laptop, 30*time.Minute),
			}}, []map[string]int{{"job 1 of laptop": 0, "attach 2 of laptop": 9}}, 0},
		{"slices are rebooted, which takes two minutes",
			lifeStory{lasts: 40 * time.Minute, steps: []lifeDeed{
				deed("type job", laptop, 2*time.Minute), {what: "no answer from", worker: 1, lasts: 20 * time.Minute, then: 10 * time.Second}, {what: "the command fails on", worker: 0, then: time.Minute},
				{what: "changes of a state take 1m more", lasts: 20 * time.Minute, then: 2 * time.Hour},
			}}, []map[string]int{{"job 1 of laptop": 0}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.story.needs(fullDisk) && !hasSmallDisk() {
				t.Skip("a full disk takes root")
			}
			tt.story.lease, tt.story.preemptions = 5*time.Minute, -1
			dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
			synctest.Test(t, func(t *testing.T) {
				w, err := newLifeWorld(tt.story, dir, kit)
				if err != nil {
					t.Fatal(err)
				}
				why := w.tell()
				got, last := map[string]int{}, time.Duration(0)
				for _, f := range w.facts() {
					if f.kind == factReturned {
						got[f.who], last = f.code, f.at
					}
				}
				if tt.by > 0 && last > tt.by {
					t.Errorf("the last command ends at %s, want before %s\n%s", last, tt.by, w.report())
				}
				if why != "" || !slices.ContainsFunc(tt.want, func(want map[string]int) bool { return maps.Equal(got, want) }) {
					t.Errorf("%s\nends with %v, want %v\n%s", why, got, tt.want, w.report())
				}
				if err := w.close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
