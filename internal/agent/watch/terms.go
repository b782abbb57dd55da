// Package watch deletes the slices of a job whose runner has died. A watch runs on every
// worker and needs no connection. It deletes the resource in the terms with the VM's own
// token in three cases:
//
//   - No runner has come to any worker within a given time after its boot.
//   - Nobody has renewed the lease in time, and the command has ended on every worker.
//   - The time to live of the slices has passed, even if a command is active.
//
// [Machine] decides. [Host] looks, asks other workers and carries out the decisions. A
// lease is a file of the login that renews it: a changed file means that a runner is
// active. Its lines are the terms. The terms of the newest lease are valid, even after a
// reboot. Every login can write such a file. So nothing in it is run or names a file, and
// unknown lines are ignored. Lines about the job's workers, or about calls with the VM's
// token, are valid only in a file of root or of the watch's own login.
package watch

import (
	"cmp"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/agent"
)

// Terms are the settings of a lease, as its file has them. Times are in seconds, and 0
// means never.
type Terms struct {
	Run    string
	Delete []agent.Deletion // how the resource is deleted
	Peers  agent.Peers      // how to ask the workers of a slice
	Nodes  []string         // slices whose workers share their states
	Total  int64            // workers of all slices

	Adopt   int64  // longest time from the boot until the first runner comes
	Lease   int64  // longest time from the last renewal, and from the end of the command
	Fresh   int64  // a runner is gone when its newest renewal is older than this
	Hold    int64  // longest silence that the runner announced
	TTL     int64  // longest time from the request
	Asked   int64  // Unix time of the request; 0: not known
	Grace   int64  // time for a command to end after TTL
	Keep    string // never or on-failure
	KeepFor int64  // how long on-failure keeps slices
	Look    int64  // time between two looks
	Adopted bool   // set for ever once a runner has come, or a command has run here
}

// Defaults returns the values for keys that the file does not have.
func Defaults() Terms { return Terms{Total: 1, Keep: "never", Look: 20} }

var (
	runName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	number  = regexp.MustCompile(`^[0-9]{1,11}$`)
)

// numbers are the keys whose values are numbers.
func (t *Terms) numbers() []struct {
	key   string
	value *int64
} {
	return []struct {
		key   string
		value *int64
	}{
		{"total", &t.Total}, {"adopt", &t.Adopt}, {"lease", &t.Lease}, {"fresh", &t.Fresh}, {"hold", &t.Hold}, {"ttl", &t.TTL},
		{"asked", &t.Asked}, {"grace", &t.Grace}, {"keep_for", &t.KeepFor}, {"look", &t.Look},
	}
}

// trusted are the keys of lines that are valid only if root or the watch's login wrote
// them. The other lines say when the slices are deleted, and any login that runs a job may
// set them.
var trusted = []string{"deletion", "peers", "nodes", "total"}

// ofAnybody returns the lines of a lease that are valid from any login.
func ofAnybody(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if key, _, _ := strings.Cut(line, "="); !slices.Contains(trusted, key) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Read sets the terms from lines KEY=VALUE. It ignores lines that it does not understand.
// It never changes a run that is already set. Deletions in the text replace earlier ones.
func (t *Terms) Read(text string) {
	var deletions []agent.Deletion
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if key != "deletion" {
			t.set(key, value)
			continue
		}
		var d agent.Deletion
		if json.Unmarshal([]byte(value), &d) == nil {
			deletions = append(deletions, d)
		}
	}
	if len(deletions) > 0 {
		t.Delete = deletions
	}
	t.Look = max(t.Look, 1)
}

func (t *Terms) set(key, value string) {
	switch key {
	case "run":
		if t.Run == "" && runName.MatchString(value) {
			t.Run = value
		}
	case "adopted":
		t.Adopted = t.Adopted || value == "yes"
	case "peers":
		var p agent.Peers
		if json.Unmarshal([]byte(value), &p) == nil {
			t.Peers = p
		}
	case "nodes":
		t.Nodes = strings.Fields(value)
	case "keep":
		if value == "never" || value == "on-failure" {
			t.Keep = value
		}
	}
	if number.MatchString(value) {
		for _, n := range t.numbers() {
			if n.key == key {
				*n.value, _ = strconv.ParseInt(value, 10, 64) // it is a number
			}
		}
	}
}

func (t Terms) Text() string {
	var b strings.Builder
	line := func(key, value string) { b.WriteString(key + "=" + value + "\n") }
	line("run", t.Run)
	for _, d := range t.Delete {
		text, _ := json.Marshal(d) // strings only
		line("deletion", string(text))
	}
	peers, _ := json.Marshal(t.Peers) // strings only
	line("peers", string(peers))
	line("nodes", strings.Join(t.Nodes, " "))
	for _, n := range t.numbers() {
		line(n.key, strconv.FormatInt(*n.value, 10))
	}
	line("keep", t.Keep)
	if t.Adopted {
		line("adopted", "yes")
	}
	return b.String()
}

// resource returns the address of the resource to delete, for messages.
func (t Terms) resource() string {
	var all []string
	for _, d := range t.Delete {
		all = append(all, d.Read)
	}
	return cmp.Or(strings.Join(all, ", "), "nothing")
}

// Errors of terms with which nothing can be deleted.
var (
	errNoWay   = errors.New("it stays: the terms do not say how it is deleted")
	errAnother = errors.New("the terms name another resource to delete: it stays")
)

// undoes returns an error if the terms read one resource and delete another: the proof
// would be about the wrong resource.
func (t Terms) undoes() error {
	if len(t.Delete) == 0 {
		return errNoWay
	}
	for _, d := range t.Delete {
		if address, _, _ := strings.Cut(d.URL, "?"); address != d.Read {
			return errAnother
		}
	}
	return nil
}

// begin returns the start of the time to live: the time of the request. If that time is not
// known, or later than the first boot, begin returns the first boot. A later time means
// that the runner's clock was ahead.
func (t Terms) begin(born time.Time) time.Time {
	if asked := time.Unix(t.Asked, 0); t.Asked > 0 && asked.Before(born) {
		return asked
	}
	return born
}

// limit is how long a lease is valid without renewal.
func (t Terms) limit() time.Duration { return seconds(max(t.Lease, t.Hold)) }

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }
