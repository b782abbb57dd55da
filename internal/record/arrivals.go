package record

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"time"

	"multihost/internal/tpu"
)

const (
	// arrivalEvery is the shortest time between two entries of an index of arrivals, as a
	// mean over a long time. For a log that grows steadily, it is the precision of the
	// times.
	arrivalEvery = time.Second
	// arrivalBurst is how many entries may come at once after a quiet time. So lines that
	// come one by one have their own times, and the lines of a failure keep their order.
	arrivalBurst = 60
	// arrivalLeast is the shortest time between any two entries.
	arrivalLeast = 5 * time.Millisecond
)

// ArrivalsPath returns the path of a file beside a worker's local log that says when the
// log's bytes arrived here. Its name begins with a dot, so that programs that read all
// files in a directory of logs do not see it.
func ArrivalsPath(dir string, id tpu.WorkerID) string {
	return filepath.Join(dir, fmt.Sprintf(".arrivals_slice_%04d_worker_%04d", id.Slice, id.Worker))
}

// LogNames are patterns for what commands make in a directory of logs: the files of LogPath
// and of ArrivalsPath, and the stacks from dump.
var LogNames = []string{"output_slice_*.txt", ".arrivals_slice_*", "stacks-*"}

// An ArrivalWriter writes the index of arrivals of one log while the log is copied to this
// machine. An entry has a time in milliseconds and the offset of the first byte that came
// then. The first entry of each writer is absolute ("@TIME OFFSET"), the others are
// differences to the previous entry. So the index for a day of steady output is smaller
// than 1 MB.
//
// If the index cannot be written, the writer stops without an error, because the run does not
// need the index. The file is open only while an entry is written, because a run may have
// thousands of logs.
type ArrivalWriter struct {
	Path string
	Now  func() time.Time

	begun, failed bool
	at            int64 // time of the last entry, in milliseconds
	offset        int64
	saved         int64 // credit for further entries, in milliseconds; an entry costs arrivalEvery
}

// Mark notes that the bytes from offset on arrive now.
func (w *ArrivalWriter) Mark(offset int64) {
	if w == nil || w.failed {
		return
	}
	at := w.Now().UnixMilli()
	since, saved := at-w.at, int64(arrivalBurst*arrivalEvery/time.Millisecond)
	if w.begun {
		saved = min(w.saved+max(since, 0), saved)
		if since >= 0 && (since < arrivalLeast.Milliseconds() || saved < arrivalEvery.Milliseconds()) {
			return
		}
	}
	line := fmt.Appendf(nil, "%d %d\n", since, offset-w.offset)
	if !w.begun {
		line = fmt.Appendf(nil, "\n@%d %d\n", at, offset) // the previous line may be cut off
	}
	if !w.begun && offset == 0 { // the existing entries are about an earlier log that is gone
		_ = os.Remove(w.Path)
	}
	if err := appendTo(w.Path, line); err != nil {
		w.failed = true
		return
	}
	w.begun, w.at, w.offset, w.saved = true, at, offset, max(saved-arrivalEvery.Milliseconds(), 0)
}

func appendTo(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}

// Arrivals say when the bytes of a log arrived here. They keep only the entries for the
// shown bytes: a log of several days has very many, and there may be thousands of logs.
type Arrivals struct {
	from  int64 // no byte before this offset is shown
	after int64 // no byte that came before this time is shown, in milliseconds

	entries []arrival
	first   int64     // offset of the very first entry
	Known   int64     // size of the local copy; later bytes arrive now
	last    time.Time // time of the newest arrival, if Known > 0 and there are no entries
}

type arrival struct {
	at     int64 // in milliseconds
	offset int64
}

// newArrivals returns arrivals for the bytes after the offset from that came at the time
// since or later, or at any time if since is zero.
func newArrivals(from int64, since time.Time) *Arrivals {
	a := &Arrivals{from: from, after: math.MinInt64}
	if !since.IsZero() {
		a.after = afterOf(since)
	}
	return a
}

// afterOf returns the time up to which entries are too old for the time since, in
// milliseconds.
func afterOf(since time.Time) int64 { return since.Add(-arrivalEvery).UnixMilli() }

// ReadArrivals reads the index of the local log in dir, for the bytes after the offset from
// that came at the time since or later. Of a log without an index, only the time of the
// last byte is known.
func ReadArrivals(dir string, id tpu.WorkerID, from int64, since time.Time) (*Arrivals, error) {
	a := newArrivals(from, since)
	if dir == "" {
		return a, nil
	}
	info, err := os.Stat(LogPath(dir, id))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return a, nil
	case err != nil:
		return nil, err
	}
	a.Known, a.last = info.Size(), info.ModTime()
	file, err := os.Open(ArrivalsPath(dir, id))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return a, nil
	case err != nil:
		return nil, err
	}
	defer file.Close()
	return a, a.parse(file)
}

func (a *Arrivals) parse(r io.Reader) error {
	in := bufio.NewScanner(r)
	var at, offset int64
	absolute := false // an entry with a difference needs an absolute one before it
	for in.Scan() {
		line := in.Bytes()
		first, second, found := bytes.Cut(bytes.TrimPrefix(line, []byte("@")), []byte(" "))
		t, err1 := strconv.ParseInt(string(first), 10, 64)
		o, err2 := strconv.ParseInt(string(second), 10, 64)
		switch {
		case len(line) == 0:
			continue
		case !found || err1 != nil || err2 != nil:
			absolute = false
			continue
		case line[0] == '@':
			at, offset, absolute = t, o, true
		case !absolute:
			continue
		default:
			at, offset = at+t, offset+o
		}
		a.add(arrival{at, offset})
	}
	return in.Err()
}

// add appends an entry. If two commands have copied the same bytes, the first arrival
// counts. If a clock was set back, the previous entry's time is kept, so that times never
// go back.
func (a *Arrivals) add(e arrival) {
	if n := len(a.entries); n > 0 {
		before := a.entries[n-1]
		if e.offset <= before.offset {
			return
		}
		e.at = max(e.at, before.at)
	} else {
		a.first = e.offset
	}
	if e.offset <= a.from || e.at <= a.after { // the shown bytes came with this entry or later
		a.entries = a.entries[:0]
	}
	a.entries = append(a.entries, e)
}

// Unknown returns how many bytes of the local copy arrived at an unknown time: those before
// the first entry.
func (a *Arrivals) Unknown() int64 {
	if len(a.entries) > 0 {
		return min(a.first, a.Known)
	}
	return a.Known
}

// At returns when the byte at offset arrived. It returns now for a byte that is not here
// yet. If the time is unknown, it returns a later time at which the byte was here already.
func (a *Arrivals) At(offset int64, now time.Time) time.Time {
	switch i := sort.Search(len(a.entries), func(i int) bool { return a.entries[i].offset > offset }); {
	case offset >= a.Known:
		return now
	case i > 0:
		return time.UnixMilli(a.entries[i-1].at)
	case len(a.entries) > 0:
		return time.UnixMilli(a.entries[0].at)
	}
	return a.last
}

// Since returns an offset before which no byte arrived at the time since or later. Bytes
// after it may have arrived earlier than since, but at most arrivalEvery earlier.
func (a *Arrivals) Since(since time.Time) int64 {
	if len(a.entries) == 0 {
		if a.last.Before(since) {
			return a.Known
		}
		return 0
	}
	after := afterOf(since)
	i := sort.Search(len(a.entries), func(i int) bool { return a.entries[i].at > after })
	switch {
	case i == 0:
		return 0
	case i == len(a.entries):
		return a.Known
	}
	return a.entries[i].offset
}
