package ui

import (
	"bytes"
	"hash/maphash"
	"slices"
	"time"

	"multihost/internal/tpu"
)

// A foldWindow holds the lines of the last moment, so that equal lines of several workers
// are shown once, with the names of all these workers. Every (worker, line) pair is shown
// exactly once. The lines of one worker keep their order, because a line joins only entries
// after the last one that its worker has joined.
//
// All memory is reused. At a steady rate, a line costs no allocation.
type foldWindow struct {
	window  time.Duration
	seed    maphash.Seed
	text    []byte
	entries []foldEntry
	members []foldMember
	base    uint64           // sequence number of entries[0]
	index   map[uint64]int32 // hash of a line → first entry with that hash

	ids  []tpu.WorkerID // scratch
	prev []tpu.WorkerID // members and tag of the last folded entry that was shown
	tag  string
}

type foldEntry struct {
	at         time.Time
	hash       uint64
	start, end int   // in text
	next       int32 // next entry with the same hash, or -1
	head, last int32 // members
	count      int32
	hidden     bool // s0w0 has shown it
}

type foldMember struct {
	s    *stream
	next int32
}

const (
	foldText    = 1 << 20 // most bytes of text in the window
	foldEntries = 8 << 10
	foldMembers = 64 << 10
	foldChain   = 64 // how many lines of equal hash add looks at before it gives up folding
)

func (f *foldWindow) init(window time.Duration) {
	f.window = window
	f.seed = maphash.MakeSeed()
	f.index = make(map[uint64]int32)
}

func (f *foldWindow) empty() bool { return len(f.entries) == 0 }

func (f *foldWindow) full() bool {
	return len(f.text) > foldText || len(f.entries) >= foldEntries || len(f.members) >= foldMembers
}

// add puts a line of s into the window. A hidden line is not shown. Equal lines of other
// workers that join it are not shown, either.
func (f *foldWindow) add(s *stream, line []byte, now time.Time, hidden bool) {
	h := maphash.Bytes(f.seed, line)
	first, seen := f.index[h]
	prev := int32(-1)
	if seen {
		steps := 0
		for i := first; i >= 0; i = f.entries[i].next {
			e := &f.entries[i]
			if f.base+uint64(i) >= s.lastEntry && bytes.Equal(f.text[e.start:e.end], line) {
				f.members = append(f.members, foldMember{s, -1})
				f.members[e.last].next = int32(len(f.members) - 1)
				e.last = int32(len(f.members) - 1)
				e.count++
				e.hidden = e.hidden || hidden
				s.lastEntry = f.base + uint64(i) + 1
				return
			}
			prev = i
			if steps++; steps == foldChain {
				// Make this line the head of a new chain.
				prev, seen = -1, false
				break
			}
		}
	}
	i := int32(len(f.entries))
	m := int32(len(f.members))
	f.members = append(f.members, foldMember{s, -1})
	start := len(f.text)
	f.text = append(f.text, line...)
	f.entries = append(f.entries, foldEntry{
		at: now, hash: h, start: start, end: len(f.text),
		next: -1, head: m, last: m, count: 1, hidden: hidden,
	})
	if prev >= 0 {
		f.entries[prev].next = i
	}
	if !seen {
		f.index[h] = i
	}
	s.lastEntry = f.base + uint64(i) + 1
}

// drop removes the n oldest entries.
func (f *foldWindow) drop(n int) {
	if n == 0 {
		return
	}
	f.base += uint64(n)
	rest := f.entries[n:]
	if len(rest) == 0 {
		f.text, f.entries, f.members = f.text[:0], f.entries[:0], f.members[:0]
		clear(f.index)
		return
	}
	off := rest[0].start
	f.text = f.text[:copy(f.text, f.text[off:])]
	// Members of kept entries can be anywhere after the head of the first kept entry:
	// members may have joined older entries later.
	mem := rest[0].head
	f.members = f.members[:copy(f.members, f.members[mem:])]
	for i := range f.members {
		if f.members[i].next >= 0 {
			f.members[i].next -= mem
		}
	}
	f.entries = f.entries[:copy(f.entries, rest)]
	clear(f.index)
	for i := range f.entries {
		e := &f.entries[i]
		e.start, e.end, e.head, e.last, e.next = e.start-off, e.end-off, e.head-mem, e.last-mem, -1
	}
	// Backwards, so that each chain is in order.
	for i := len(f.entries) - 1; i >= 0; i-- {
		e := &f.entries[i]
		if j, ok := f.index[e.hash]; ok {
			e.next = j
		}
		f.index[e.hash] = int32(i)
	}
}

// tagOf returns the name of an entry's workers, folded.
func (f *foldWindow) tagOf(e *foldEntry) string {
	if e.count == 1 {
		return f.members[e.head].s.tag
	}
	f.ids = f.ids[:0]
	for m := e.head; m >= 0; m = f.members[m].next {
		f.ids = append(f.ids, f.members[m].s.id)
	}
	slices.SortFunc(f.ids, tpu.CompareWorkers)
	f.ids = slices.Compact(f.ids)
	if !slices.Equal(f.ids, f.prev) {
		f.tag = tpu.Fold(f.ids)
		f.prev = append(f.prev[:0], f.ids...)
	}
	return f.tag
}
