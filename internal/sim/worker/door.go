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
	modeRefuse           // nobody listens
	modeHang             // connection attempts get no answer
)

var errStopped = errors.New("worker is stopped")

// way is one address at which a machine is reached.
type way struct {
	listen func() (*net.TCPListener, error)
	dial   func() (net.Conn, error) // as somebody who is to be kept waiting
}

// door is what stands between a machine and those who connect to it: the
// listeners, and every fault of the transport. Each connection that gets in is
// given to handle.
type door struct {
	spec   Spec
	handle func(*faultyConn)

	ctx    context.Context // ends at Stop
	cancel context.CancelFunc
	wg     sync.WaitGroup // connections, sessions, timers

	// The ports are changed by one goroutine at a time, which may block in
	// system calls while it holds reach.
	reach     sync.Mutex
	ways      []way
	listeners []*net.TCPListener
	fillers   []net.Conn // fill the accept queues in modeHang
	serving   serveMode
	accepting sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	booting bool
	faults  map[FaultKind]Fault // in force; Slow, Missing, Denied and Fixed are kept elsewhere
	slow    map[string]Fault    // by mode
	epoch   map[string]int      // per timed fault: which setting of it a timer belongs to
	thaw    chan struct{}       // not nil while frozen; closed at its end
	conns   map[*faultyConn]struct{}
}

// init makes a closed door.
func (d *door) init(spec Spec, handle func(*faultyConn)) {
	d.spec, d.handle = spec, handle
	d.serving, d.booting = modeRefuse, true
	d.faults = make(map[FaultKind]Fault)
	d.slow = make(map[string]Fault)
	d.epoch = make(map[string]int)
	d.conns = make(map[*faultyConn]struct{})
	d.ctx, d.cancel = context.WithCancel(context.Background())
}

// wantMode is what the faults and the state ask of the port.
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

// reconcile makes the port behave as it should now.
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

// listenAgain listens on an address that was given up just before: its socket is
// closed for good only when the goroutine that accepted on it has let go.
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

// open ends a new machine's boot, with the listeners of all its ways.
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

// fillQueue makes connection attempts to ln hang: Linux drops them when the
// queue of connections that nobody accepted is full, and one fills a queue of
// length 0.
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
			// No file descriptor is left: try again a little later rather
			// than spin.
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

// frozen returns a channel that is closed when the machine thaws, or nil when
// it is not frozen.
func (d *door) frozen() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.thaw == nil {
		return nil
	}
	return d.thaw
}

// after runs f when delay has passed, unless the machine stops or another timer
// of that name is set first.
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

// setDoorFault puts a fault in force. end is called when its time is over; for
// kinds that are not the door's it does no more than that.
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
	if f.Kind != Clock { // of which it is not how long
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

// clearDoorFaults ends the faults of one kind, or all. The caller reconciles.
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

// settleFreeze opens or closes the gate of all connections. d.mu is held.
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

// takeCut reports whether a connection that has used up its bytes is to be
// cut, and counts it.
func (d *door) takeCut() bool { return d.take(Cut) }

// takeRefusal reports whether a connection's keys are to be refused, and
// counts it.
func (d *door) takeRefusal() bool { return d.take(RefuseAuth) }

// take reports whether a fault that happens a number of times happens now.
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

// fault returns the fault of a kind that is in force.
func (d *door) fault(kind FaultKind) (Fault, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.faults[kind]
	return f, ok
}
