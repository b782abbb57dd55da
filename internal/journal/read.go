package journal

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"multihost/internal/event"
)

// An Entry is one line of a journal.
type Entry struct {
	Time time.Time
	By   string // the command that wrote it: equal for its lines only
	Kind string

	// Event is the event as it was emitted, secrets masked; nil for a kind that
	// this version does not know. The Data of a Result is a json.RawMessage.
	Event event.Event
}

// Read returns the entries of the journal in the directory of a run, in the
// order in which they were written. A run without a journal has none. What is
// no entry, such as a line that a crash has cut, is left out.
func Read(dir string) ([]Entry, error) {
	file, err := os.Open(filepath.Join(dir, Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	defer file.Close()
	// Another version may have another bound; a file of this size is no journal.
	scan := bufio.NewScanner(io.LimitReader(file, 4*MaxBytes))
	scan.Buffer(make([]byte, 0, 64<<10), 2*maxLine)
	var all []Entry
	for scan.Scan() {
		if e, ok := parse(scan.Bytes()); ok {
			all = append(all, e)
		}
	}
	if err := scan.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return all, fmt.Errorf("read the journal: %w", err)
	}
	return all, nil
}

func parse(line []byte) (Entry, bool) {
	var h head
	if json.Unmarshal(line, &h) != nil || h.V != version || h.Kind == "" {
		return Entry{}, false
	}
	e := Entry{Time: h.Time, By: h.By, Kind: h.Kind}
	switch h.Kind {
	case Begin{}.Kind():
		e.Event = decode[Begin](line)
	case End{}.Kind():
		e.Event = decode[End](line)
	case event.Note{}.Kind():
		e.Event = decode[event.Note](line)
	case event.Phase{}.Kind():
		e.Event = decode[event.Phase](line)
	case event.State{}.Kind():
		e.Event = decode[event.State](line)
	case event.Attempt{}.Kind():
		e.Event = decode[event.Attempt](line)
	case event.Stall{}.Kind():
		e.Event = decode[event.Stall](line)
	case event.AttemptEnd{}.Kind():
		e.Event = decode[event.AttemptEnd](line)
	case event.Release{}.Kind():
		e.Event = decode[event.Release](line)
	case event.AttemptEnd{}.Kind():
		e.Event = decode[event.AttemptEnd](line)
	case event.WorkerDone{}.Kind():
		e.Event = decode[event.WorkerDone](line)
	case event.Summary{}.Kind():
		e.Event = decode[event.Summary](line)
	case event.Result{}.Kind():
		var r struct {
			Name string          `json:"name"`
			Data json.RawMessage `json:"data"`
		}
		if json.Unmarshal(line, &r) == nil {
			e.Event = event.Result{Name: r.Name, Data: r.Data}
		}
	}
	return e, true
}

// decode returns nil for a line that is not of the kind it claims to be.
func decode[E event.Event](line []byte) event.Event {
	var e E
	if json.Unmarshal(line, &e) != nil {
		return nil
	}
	return e
}
