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
	By   string // identifies the command that wrote the line
	Kind string

	// Event is the emitted event, with masked secrets. It is nil for a kind that this
	// version does not know. The Data of a Result is a json.RawMessage.
	Event event.Event
}

// Read returns the entries of the journal in the directory of a run, in the order of their
// writing. A run without a journal has no entries. Read skips lines that are not entries,
// for example one that a crash has cut off.
func Read(dir string) ([]Entry, error) {
	file, err := os.Open(filepath.Join(dir, Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	defer file.Close()
	// Another version may have another limit, but a file of this size is no journal.
	limited := &io.LimitedReader{R: file, N: 4 * MaxBytes}
	in := bufio.NewReaderSize(limited, 64<<10)
	var all []Entry
	for {
		line, err := readLine(in)
		if e, ok := parse(line); ok {
			all = append(all, e)
		}
		switch {
		case err == io.EOF && limited.N <= 0:
			return all, fmt.Errorf("read the journal: %q is larger than %d bytes", file.Name(), 4*MaxBytes)
		case err == io.EOF:
			return all, nil
		case err != nil:
			return all, fmt.Errorf("read the journal: %w", err)
		}
	}
}

// readLine returns the next line, or the text before an error. It returns nil for a line
// that is too long for an entry.
func readLine(in *bufio.Reader) (line []byte, err error) {
	long := false
	for {
		piece, err := in.ReadSlice('\n')
		if long = long || len(line)+len(piece) > 2*maxLine; long {
			line = nil
		} else {
			line = append(line, piece...)
		}
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
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
	case event.Request{}.Kind():
		e.Event = decode[event.Request](line)
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

// decode returns nil if a line is not of the kind that it names.
func decode[E event.Event](line []byte) event.Event {
	var e E
	if json.Unmarshal(line, &e) != nil {
		return nil
	}
	return e
}
