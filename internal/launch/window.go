package launch

import (
	"io"
	"strconv"
	"sync"
)

// An SSH channel of x/crypto lets the far side send 2 MiB that nobody has read
// yet, and no option changes that: 2048 workers that print while the local disk
// is slow would fill 4 GiB. So the worker sends only what it was asked for, and
// it is asked for more when that has been written.

// A Window bounds how many bytes are on their way from the workers, sent and not
// yet written, over all the Follow calls that share it.
type Window struct {
	base int64 // of each follower, always

	mu   sync.Mutex
	free int64 // for those that have much to catch up with
}

// Bytes of a piece. A piece costs a round trip, and the worker a few processes;
// more than the channel holds is of no use.
const (
	minPiece = 1 << 10
	midPiece = 64 << 10
	maxPiece = 2 << 20
)

// NewWindow returns a window of total bytes for so many followers. Each always
// has a share of its own, at least 1 KiB, so that none waits for another; half
// of the window or more goes to those with the most to send.
func NewWindow(total int64, followers int) *Window {
	base := min(max(total/2/int64(max(followers, 1)), minPiece), midPiece)
	return &Window{base: base, free: max(total-base*int64(followers), 0)}
}

// join makes a follower of the window; of nil, one with a window of its own.
func (w *Window) join() *ration {
	if w == nil {
		w = NewWindow(midPiece+maxPiece, 1)
	}
	return &ration{window: w}
}

// take returns how many of n bytes the caller may use until it puts them back.
func (w *Window) take(n int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n = max(min(n, w.free), 0)
	w.free -= n
	return n
}

func (w *Window) put(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free += n
}

// A ration is one follower's part of a window. It asks for the next piece when
// the last one was written and the worker has told how much more there is. More
// than the base is asked for only of what is there: it comes at once, so nobody
// who is silent keeps it.
type ration struct {
	window *Window

	mu     sync.Mutex
	orders *orders // of the stream under way
	offset int64   // written up to here
	asked  int64   // of the piece under way, not yet written
	extra  int64   // taken from the window for it
	told   bool    // the worker has told the size since the piece was asked for
	there  int64   // that size
}

func (r *ration) begin(o *orders, offset int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.orders, r.offset, r.asked, r.told = o, offset, 0, false
}

// end gives back what the stream has taken.
func (r *ration) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.orders = nil
	r.window.put(r.extra)
	r.extra = 0
}

func (r *ration) received(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offset += n
	r.asked -= n
	r.next()
}

func (r *ration) size(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told, r.there = true, n
	r.next()
}

func (r *ration) next() {
	if r.orders == nil || r.asked > 0 || !r.told {
		return
	}
	r.window.put(r.extra)
	n := r.window.base
	r.extra = r.window.take(min(r.there-r.offset, maxPiece) - n)
	n += r.extra
	r.asked, r.told = n, false
	r.orders.ask(n)
}

// orders is the standard input of follow.sh: numbers, one a line. Writing to it
// never blocks, because it is written to where output is read.
type orders struct {
	mu     sync.Mutex
	cond   *sync.Cond
	text   []byte
	closed bool
}

func newOrders() *orders {
	o := &orders{}
	o.cond = sync.NewCond(&o.mu)
	return o
}

func (o *orders) ask(n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(strconv.AppendInt(o.text, n, 10), '\n')
	o.cond.Signal()
}

// Close is the end of the input, now or once all was read.
func (o *orders) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.cond.Broadcast()
	return nil
}

func (o *orders) Read(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.text) == 0 && !o.closed {
		o.cond.Wait()
	}
	if len(o.text) == 0 {
		return 0, io.EOF
	}
	n := copy(p, o.text)
	o.text = o.text[n:]
	return n, nil
}
