//go:build linux

package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// serveMode is how a machine's SSH port behaves.
type serveMode int

const (
	modeServe  serveMode = iota
	modeRefuse           // nothing listens
	modeHang             // connection attempts get no answer
)

var errStopped = errors.New("worker is stopped")

// way is one address at which a machine is reachable.
type way struct {
	listen func() (*net.TCPListener, error)
	dial   func() (net.Conn, error) // connects to the address, to fill its accept queue
}

// door is the access to a machine: its listeners and all faults of the transport. It
// passes each accepted connection to handle.
type door struct {
	spec   Spec
	handle func(*faultyConn)

	ctx    context.Context // ends at Stop
	cancel context.CancelFunc
	wg     sync.WaitGroup // connections, sessions, timers

	// Only one goroutine at a time changes the ports; it holds reach, even while it
	// blocks in system calls.
	reach     sync.Mutex
	ways      []way
	listeners []*net.TCPListener
	fillers   []net.Conn // fill the accept queues in modeHang
	serving   serveMode
	accepting sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	booting bool
	faults  map[FaultKind]Fault // in force; Slow is in slow, and Missing, Denied and Fixed are elsewhere
	slow    map[string]Fault    // by mode
	epoch   map[string]int      // per timed fault: counts its settings, so that only the latest timer has an effect
	thaw    chan struct{}       // not nil while frozen; closed when the freeze ends
	conns   map[*faultyConn]struct{}
}

// init initialises a closed door.
func (d *door) init(spec Spec, handle func(*faultyConn)) {
	d.spec, d.handle = spec, handle
	d.serving, d.booting = modeRefuse, true
	d.faults = make(map[FaultKind]Fault)
	d.slow = make(map[string]Fault)
	d.epoch = make(map[string]int)
	d.conns = make(map[*faultyConn]struct{})
	d.ctx, d.cancel = context.WithCancel(context.Background())
}

// wantMode returns how the port should behave, given the faults and the state.
func (d *door) wantMode() serveMode {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped || d.booting {
		return modeRefuse
	}
	if f, ok := d.faults[Unreachable]; ok {
		if f.Mode == "refuse" {
			return modeRefuse
		}
		return modeHang
	}
	return modeServe
}

// reconcile changes the port to the mode that wantMode returns.
func (d *door) reconcile() error {
	d.reach.Lock()
	defer d.reach.Unlock()
	want := d.wantMode()
	if want == d.serving {
		return nil
	}
	d.unlisten()
	d.serving = modeRefuse
	if want == modeRefuse {
		return nil
	}
	var listeners []*net.TCPListener
	for _, w := range d.ways {
		ln, err := listenAgain(w.listen)
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return fmt.Errorf("listen on worker's address: %w", err)
		}
		listeners = append(listeners, ln)
	}
	d.listenWith(listeners, want)
	return nil
}

// listenAgain listens on an address whose previous listener was closed just before. It
// retries for 2 s because the old socket is really closed only when the goroutine that
// accepted on it has returned.
func listenAgain(listen func() (*net.TCPListener, error)) (*net.TCPListener, error) {
	giveUp := time.After(2 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ln, err := listen()
		if !errors.Is(err, syscall.EADDRINUSE) {
			return ln, err
		}
		select {
		case <-tick.C:
		case <-giveUp:
			return nil, err
		}
	}
}

// open ends the boot of a new machine; listeners are those of all its ways.
func (d *door) open(listeners ...*net.TCPListener) {
	d.reach.Lock()
	defer d.reach.Unlock()
	d.mu.Lock()
	d.booting = false
	d.mu.Unlock()
	want := d.wantMode()
	if want == modeRefuse {
		for _, ln := range listeners {
			ln.Close()
		}
		return
	}
	d.listenWith(listeners, want)
}

func (d *door) unlisten() {
	for _, ln := range d.listeners {
		ln.Close()
	}
	for _, c := range d.fillers {
		c.Close()
	}
	d.listeners, d.fillers = nil, nil
	d.accepting.Wait()
}

func (d *door) listenWith(listeners []*net.TCPListener, mode serveMode) {
	d.listeners, d.serving = listeners, mode
	for i, ln := range listeners {
		if mode == modeHang {
			d.fillQueue(ln, d.ways[i])
			continue
		}
		d.accepting.Go(func() { d.accept(ln) })
	}
}

// fillQueue makes connection attempts to ln hang: Linux drops them when the accept queue
// is full, and one connection fills a queue of length 0.
func (d *door) fillQueue(ln *net.TCPListener, w way) {
	raw, err := ln.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), 0) })
	if c, err := w.dial(); err == nil {
		d.fillers = append(d.fillers, c)
	}
}

func (d *door) accept(ln *net.TCPListener) {
	for {
		c, err := ln.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// No file descriptor is free: wait a little before the next try rather than
			// spin.
			t := time.NewTimer(10 * time.Millisecond)
			select {
			case <-t.C:
			case <-d.ctx.Done():
				t.Stop()
				return
			}
			continue
		}
		fc := newFaultyConn(d, c)
		if !d.track(fc) {
			fc.reset()
			continue
		}
		d.wg.Go(func() {
			defer d.untrack(fc)
			defer fc.Close()
			d.handle(fc)
		})
	}
}

func (d *door) track(c *faultyConn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped || d.booting {
		return false
	}
	d.conns[c] = struct{}{}
	if f, ok := d.faults[Cut]; ok {
		c.limit(f.Mode, f.Bytes)
	}
	return true
}

func (d *door) untrack(c *faultyConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

func (d *door) connections() []*faultyConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*faultyConn
	for c := range d.conns {
		all = append(all, c)
	}
	return all
}

func (d *door) resetConnections() {
	for _, c := range d.connections() {
		c.reset()
	}
}

// frozen returns a channel that is closed when the machine thaws, or nil if the machine
// is not frozen.
func (d *door) frozen() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.thaw == nil {
		return nil
	}
	return d.thaw
}

// after runs f after delay, unless the machine stops or another timer with that name is
// set before.
func (d *door) after(delay time.Duration, name string, f func()) {
	d.mu.Lock()
	d.epoch[name]++
	epoch := d.epoch[name]
	stopped := d.stopped
	d.mu.Unlock()
	if stopped || delay <= 0 {
		return
	}
	d.wg.Go(func() {
		t := time.NewTimer(delay)
		defer t.Stop()
		select {
		case <-d.ctx.Done():
			return
		case <-t.C:
		}
		d.mu.Lock()
		current := d.epoch[name] == epoch
		d.mu.Unlock()
		if current {
			f()
		}
	})
}

// setDoorFault puts a fault in force and calls end when its duration is over. For kinds
// that do not concern the transport it only stores the fault and sets the timer.
func (d *door) setDoorFault(f Fault, end func(FaultKind) error) error {
	d.mu.Lock()
	if f.Kind == Slow {
		d.slow[f.Mode] = f
		d.mu.Unlock()
		return nil
	}
	d.faults[f.Kind] = f
	d.settleFreeze()
	d.mu.Unlock()
	if f.Kind != Clock { // its Duration is the offset of the clock
		d.after(f.Duration, string(f.Kind), func() { _ = end(f.Kind) })
	}
	switch f.Kind {
	case Unreachable:
		err := d.reconcile()
		if f.Mode == "refuse" {
			d.resetConnections()
		}
		return err
	case Cut:
		for _, c := range d.connections() {
			c.unlimit()
			c.limit(f.Mode, f.Bytes)
		}
	}
	return nil
}

// clearDoorFaults ends the faults of one kind, or all. The caller must call reconcile.
func (d *door) clearDoorFaults(kind FaultKind) {
	d.mu.Lock()
	if kind == "" || kind == Slow {
		clear(d.slow)
	}
	for k := range d.faults {
		if kind == "" || kind == k {
			delete(d.faults, k)
		}
	}
	d.settleFreeze()
	d.mu.Unlock()
	if kind == "" || kind == Cut {
		for _, c := range d.connections() {
			c.unlimit()
		}
	}
}

// settleFreeze freezes or thaws all connections, as the faults demand. The caller holds
// d.mu.
func (d *door) settleFreeze() {
	_, freeze := d.faults[Freeze]
	u, unreachable := d.faults[Unreachable]
	want := freeze || unreachable && u.Mode == "hang"
	switch {
	case want && d.thaw == nil:
		d.thaw = make(chan struct{})
	case !want && d.thaw != nil:
		close(d.thaw)
		d.thaw = nil
	}
}

// takeCut reports whether to cut a connection that has used up its bytes, and counts the
// cut.
func (d *door) takeCut() bool { return d.take(Cut) }

// takeRefusal reports whether to refuse the keys of a connection, and counts the refusal.
func (d *door) takeRefusal() bool { return d.take(RefuseAuth) }

// take reports whether the fault of that kind is in force, and counts one use of it.
func (d *door) take(kind FaultKind) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.faults[kind]
	if !ok {
		return false
	}
	if f.Count > 0 {
		if f.Count--; f.Count == 0 {
			delete(d.faults, kind)
		} else {
			d.faults[kind] = f
		}
	}
	return true
}

func (d *door) slowness(mode string) Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.slow[mode]
}

// fault returns the fault of that kind if it is in force.
func (d *door) fault(kind FaultKind) (Fault, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.faults[kind]
	return f, ok
}
