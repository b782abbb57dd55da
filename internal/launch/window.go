package launch

import (
	"io"
	"strconv"
	"sync"
)

// An SSH channel of x/crypto lets the worker send 2 MiB that nobody has read yet, and no
// option changes that. With a slow local disk, 2048 workers that print would fill 4 GiB of
// memory. So the worker sends only as many bytes as Follow asks for. Follow asks for more
// when those bytes are written.

// A Window limits the bytes that workers have sent and that are not yet written, over all
// Follow calls that share the Window.
type Window struct {
	base int64 // the share that each follower always has

	mu   sync.Mutex
	free int64 // for followers that are far behind
}

// Sizes of a piece in bytes. A piece costs a round trip, and a few processes on the worker.
// A piece above the channel's 2 MiB has no advantage.
const (
	minPiece = 1 << 10
	midPiece = 64 << 10
	maxPiece = 2 << 20
)

// NewWindow returns a window of total bytes for this number of followers. Each follower
// always has a share of its own, at least 1 KiB, so that none waits for another. The rest,
// usually half of the window or more, goes to workers with much output.
func NewWindow(total int64, followers int) *Window {
	base := min(max(total/2/int64(max(followers, 1)), minPiece), midPiece)
	return &Window{base: base, free: max(total-base*int64(followers), 0)}
}

// join returns a new follower of the window. If w is nil, the follower gets a window of its
// own.
func (w *Window) join() *ration {
	if w == nil {
		w = NewWindow(midPiece+maxPiece, 1)
	}
	return &ration{window: w}
}

// take returns how many of n bytes the caller may use. The caller gives them back with put.
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

// A ration is one follower's part of a window. It asks for the next piece when the last one
// is written and the worker has reported the size of the log. It asks for more than the
// base only if the log already has the bytes. The worker sends such bytes at once, so a
// silent worker never keeps a part of the shared window.
type ration struct {
	window *Window

	mu     sync.Mutex
	orders *orders // orders of the present stream
	offset int64   // written up to here
	asked  int64   // bytes of the current piece that are still to be written
	extra  int64   // bytes taken from the window for the current piece
	told   bool    // the worker has reported the log's size since the last piece was asked for
	there  int64   // the size that the worker reported
}

func (r *ration) begin(o *orders, offset int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.orders, r.offset, r.asked, r.told = o, offset, 0, false
}

// end gives back the bytes that the stream has taken from the window.
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

// orders is the standard input of follow.sh, with one number in each line. ask never
// blocks, because the goroutine that reads the output calls it.
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

// Close ends the input once follow.sh has read all of it.
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
