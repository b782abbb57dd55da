// Package journal records the events of a run, except the bytes of its output. Each event
// is one JSON line in a file that only grows.
//
// The file is a record of all attempts, and of every command that followed the run. Several
// commands may write it at the same time. Each line is one write at the moment of its
// event, so a command that dies loses nothing that it emitted. Secrets are masked before
// they reach the file. The file stays below MaxBytes: when it is nearly full, it takes no
// more notes, states and results.
//
// # Decisions
//
//   - The journal is for people. No code reads it to act on it.
//   - The file is made when the run exists. It then also gets the earlier events.
package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"multihost/internal/event"
)

// Name is the name of the file in the directory of a run.
const Name = "events.jsonl"

// MaxBytes limits the file of a run. The ends of 2048 workers take 0.3 MB, and the attempts
// of a month some more. The rest is for repeated failures.
const MaxBytes = 16 << 20

const (
	version = 1

	// reserve is the space for phases, attempts and ends when notes have filled the file.
	reserve = 2 << 20

	// maxHeld limits the events held until Open.
	maxHeld = 1000

	// maxLine limits the bytes of one event, because a reader has one line in memory.
	maxLine = 1 << 20
)

// A Journal is an event.Sink that writes to a file once Open has named one. It holds the
// events before Open. So the journal of a run also has the events that led to the run, and
// without a run nothing is written. A Journal is safe for concurrent use. All methods of a
// nil Journal do nothing.
type Journal struct {
	now func() time.Time
	by  string // distinguishes this command's lines from others

	mu     sync.Mutex // guards the fields below
	held   []line
	file   *os.File
	size   int64
	full   bool
	masks  [][]byte
	failed func(error)
	fault  error // error for failed
}

type line struct {
	kind string
	data []byte
	body int // begin of the event's own fields, where secrets are masked
}

// New returns a Journal. now gives the times of its lines.
func New(now func() time.Time) *Journal {
	var id [4]byte
	_, _ = rand.Read(id[:]) // never fails
	return &Journal{now: now, by: hex.EncodeToString(id[:])}
}

type Options struct {
	Dir     string   // of the run; made if missing
	Command string   // multihost command that writes: run, job, attach
	Secrets []string // to mask in the whole file
	// Failed is called once if the file cannot be written any more. The run continues.
	Failed func(error)
}

// Begin is the first line of every command that writes.
type Begin struct {
	Command string `json:"command"`
}

// End is the last line of every command that writes.
type End struct {
	Error    string `json:"error,omitempty"`
	ExitCode int    `json:"exit_code"`
	Detached bool   `json:"detached,omitempty"` // the run continues without the command
}

// Kind implements event.Event.
func (Begin) Kind() string { return "begin" }

// Kind implements event.Event.
func (End) Kind() string { return "end" }

// Open makes the journal append to the file Name in o.Dir, first the held events. The
// caller closes the journal. A second Open has no effect.
func (j *Journal) Open(o Options) error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.unlock()
	if j.file != nil {
		return nil
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(o.Dir, Name), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	if j.size, err = mend(file); err != nil {
		file.Close()
		return fmt.Errorf("open the journal: %w", err)
	}
	j.file, j.failed = file, o.Failed
	for _, s := range o.Secrets {
		// Mask the secret in its form inside a JSON string.
		if text, err := encode(s); err == nil && len(text) > 2 {
			j.masks = append(j.masks, text[1:len(text)-1])
		}
	}
	if begin, ok := j.encode(Begin{o.Command}); ok {
		j.write(begin)
	}
	for _, l := range j.held {
		j.write(l)
	}
	j.held = nil
	return nil
}

// mend adds a newline if a crash has cut off the last line. It returns the size of the file.
func mend(file *os.File) (int64, error) {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return 0, err
	}
	var last [1]byte
	if _, err := file.ReadAt(last[:], size-1); err != nil {
		return 0, err
	}
	if last[0] == '\n' {
		return size, nil
	}
	_, err = file.Write([]byte{'\n'})
	return size + 1, err
}

// Emit implements event.Sink. It drops Output, Progress and Training events, which mean
// nothing later, and notes of level Debug.
func (j *Journal) Emit(e event.Event) {
	if j == nil {
		return
	}
	switch e := e.(type) {
	case event.Output, event.Progress, event.Training:
		return
	case event.Note:
		if e.Level == event.Debug {
			return
		}
	}
	l, ok := j.encode(e)
	if !ok {
		return
	}
	j.mu.Lock()
	defer j.unlock()
	switch {
	case j.file != nil:
		j.write(l)
	case len(j.held) < maxHeld && l.kind != (event.Result{}).Kind(): // before Open, a Result belongs to no run
		j.held = append(j.held, l)
	}
}

// Close writes end, if Open was called, and closes the file.
func (j *Journal) Close(end End) {
	if j == nil {
		return
	}
	last, ok := j.encode(end)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return
	}
	if ok {
		j.write(last)
	}
	j.file.Close()
	j.file, j.held = nil, nil
}

// head is the beginning of every line.
type head struct {
	V    int       `json:"v"`
	Time time.Time `json:"time"`
	By   string    `json:"by"`
	Kind string    `json:"kind"`
}

func (j *Journal) encode(e event.Event) (line, bool) {
	fields, err := encode(e)
	if err != nil || len(fields) < 2 || fields[0] != '{' {
		return line{}, false
	}
	data, err := encode(head{version, j.now().UTC(), j.by, e.Kind()})
	if err != nil || len(data)+len(fields) > maxLine {
		return line{}, false
	}
	body := len(data)
	if len(fields) > len("{}") {
		data = append(data[:len(data)-1], ',')
		data = append(data, fields[1:]...)
	}
	return line{e.Kind(), append(data, '\n'), body}, true
}

func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(buf.Bytes()), err
}

// masked returns text with words masked inside JSON strings. Keys and numbers stay, so the
// line is valid JSON even if a secret has only digits.
func masked(text []byte, words [][]byte) []byte {
	if len(words) == 0 {
		return text
	}
	var out []byte
	for {
		begin := bytes.IndexByte(text, '"') + 1
		end := begin
		for end < len(text) && text[end] != '"' {
			if text[end] == '\\' {
				end++
			}
			end++
		}
		if begin == 0 || end >= len(text) {
			return append(out, text...)
		}
		value := text[begin:end]
		if text[end+1] != ':' {
			for _, w := range words {
				value = bytes.ReplaceAll(value, w, []byte("***"))
			}
		}
		out = append(append(append(out, text[:begin]...), value...), '"')
		text = text[end+1:]
	}
}

// write appends one line. The caller holds j.mu.
func (j *Journal) write(l line) {
	if j.file == nil {
		return
	}
	l.data = append(l.data[:l.body:l.body], masked(l.data[l.body:], j.masks)...)
	limit := int64(MaxBytes)
	if l.kind == (event.Note{}).Kind() || l.kind == (event.State{}).Kind() || l.kind == (event.Result{}).Kind() {
		limit -= reserve
	}
	if j.size+int64(len(l.data)) > limit {
		if !j.full {
			j.full = true
			l, _ = j.encode(event.Note{Level: event.Warn, Text: "the journal of this run is full: what else is noted is not kept"})
			j.append(l.data)
		}
		return
	}
	j.append(l.data)
}

func (j *Journal) append(data []byte) {
	n, err := j.file.Write(data)
	j.size += int64(n)
	if err == nil {
		return
	}
	j.file.Close()
	j.file, j.fault = nil, fmt.Errorf("write the journal: %w", err)
}

// unlock unlocks j.mu. It reports a failed write only afterwards, because the callback may
// call Emit, which locks j.mu.
func (j *Journal) unlock() {
	fault, failed := j.fault, j.failed
	j.fault = nil
	j.mu.Unlock()
	if fault != nil && failed != nil {
		failed(fault)
	}
}
