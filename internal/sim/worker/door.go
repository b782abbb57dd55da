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

	"multihost/internal/fault"

	"golang.org/x/sys/unix"
)

// serveMode is how a machine's SSH port behaves.
type serveMode int

const (
	modeServe  serveMode = iota
	modeRefuse           // nothing listens
	modeHang             // attempts to connect get no answer
)

var ErrStopped = fault.New(fault.Unavailable, "worker is stopped")

// Way is one address at which a machine is reachable.
type Way struct {
	Listen func() (*net.TCPListener, error)
	Dial   func() (net.Conn, error) // connects to the address, to fill its accept queue
}

// Door is the way into a machine: its listeners, and all faults of the transport. It passes
// each accepted connection to handle.
type Door struct {
	Spec   Spec
	handle func(*FaultyConn)

	Ctx    context.Context // ends at Stop
	Cancel context.CancelFunc
	Wg     sync.WaitGroup // connections, sessions, timers

	// Whoever changes the ports holds reach, even while blocked in system calls.
	reach     sync.Mutex
	Ways      []Way
	listeners []*net.TCPListener
	fillers   []net.Conn // connections that fill the accept queues in modeHang
	serving   serveMode
	accepting sync.WaitGroup

	Mu      sync.Mutex
	Stopped bool
	Booting bool
	Faults  map[FaultKind]Fault // active faults, without Slow (see slow), Missing, Denied and Fixed
	Slow    map[string]Fault    // Slow faults by mode
	epoch   map[string]int      // by timed fault: how often it was set; only the latest timer counts
	thaw    chan struct{}       // closed when the freeze ends; nil if there is none
	conns   map[*FaultyConn]struct{}
}

// Init prepares a closed door.
func (d *Door) Init(spec Spec, handle func(*FaultyConn)) {
	d.Spec, d.handle = spec, handle
	d.serving, d.Booting = modeRefuse, true
	d.Faults = make(map[FaultKind]Fault)
	d.Slow = make(map[string]Fault)
	d.epoch = make(map[string]int)
	d.conns = make(map[*FaultyConn]struct{})
	d.Ctx, d.Cancel = context.WithCancel(context.Background())
}

// wantMode returns how the port should behave with the present faults and state.
func (d *Door) wantMode() serveMode {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.Stopped || d.Booting {
		return modeRefuse
	}
	if f, ok := d.Faults[Unreachable]; ok {
		if f.Mode == "refuse" {
			return modeRefuse
		}
		return modeHang
	}
	return modeServe
}

// Reconcile changes the port to the mode that wantMode returns.
func (d *Door) Reconcile() error {
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
	for _, w := range d.Ways {
		ln, err := listenAgain(w.Listen)
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

// listenAgain listens on an address whose previous listener was just closed. It retries for
// 2 s: the old socket is closed only when the goroutine that accepted connections on it has
// returned.
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

// Open ends the boot of a new machine. listeners belong to all its ways.
func (d *Door) Open(listeners ...*net.TCPListener) {
	d.reach.Lock()
	defer d.reach.Unlock()
	d.Mu.Lock()
	d.Booting = false
	d.Mu.Unlock()
	want := d.wantMode()
	if want == modeRefuse {
		for _, ln := range listeners {
			ln.Close()
		}
		return
	}
	d.listenWith(listeners, want)
}

func (d *Door) unlisten() {
	for _, ln := range d.listeners {
		ln.Close()
	}
	for _, c := range d.fillers {
		c.Close()
	}
	d.listeners, d.fillers = nil, nil
	d.accepting.Wait()
}

func (d *Door) listenWith(listeners []*net.TCPListener, mode serveMode) {
	d.listeners, d.serving = listeners, mode
	for i, ln := range listeners {
		if mode == modeHang {
			d.fillQueue(ln, d.Ways[i])
			continue
		}
		d.accepting.Go(func() { d.accept(ln) })
	}
}

// fillQueue makes attempts to connect to ln hang. Linux drops them when the accept queue is
// full, and one connection fills a queue of length 0.
func (d *Door) fillQueue(ln *net.TCPListener, w Way) {
	raw, err := ln.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), 0) })
	if c, err := w.Dial(); err == nil {
		d.fillers = append(d.fillers, c)
	}
}

func (d *Door) accept(ln *net.TCPListener) {
	for {
		c, err := ln.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// No file descriptor is free. Wait a little, so that this loop does not spin.
			t := time.NewTimer(10 * time.Millisecond)
			select {
			case <-t.C:
			case <-d.Ctx.Done():
				t.Stop()
				return
			}
			continue
		}
		fc := newFaultyConn(d, c)
		if !d.track(fc) {
			fc.Reset()
			continue
		}
		d.Wg.Go(func() {
			defer d.untrack(fc)
			defer fc.Close()
			d.handle(fc)
		})
	}
}

func (d *Door) track(c *FaultyConn) bool {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.Stopped || d.Booting {
		return false
	}
	d.conns[c] = struct{}{}
	if f, ok := d.Faults[Cut]; ok {
		c.limit(f.Mode, f.Bytes)
	}
	return true
}

func (d *Door) untrack(c *FaultyConn) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	delete(d.conns, c)
}

func (d *Door) connections() []*FaultyConn {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	var all []*FaultyConn
	for c := range d.conns {
		all = append(all, c)
	}
	return all
}

// ResetConnections cuts all connections, as a rebooted host does.
func (d *Door) ResetConnections() {
	for _, c := range d.connections() {
		c.Reset()
	}
}

// frozen returns a channel that is closed when the machine thaws, or nil if the machine
// is not frozen.
func (d *Door) frozen() <-chan struct{} {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.thaw == nil {
		return nil
	}
	return d.thaw
}

// After runs f after delay, unless the machine stops or another timer with that name is set
// meanwhile.
func (d *Door) After(delay time.Duration, name string, f func()) {
	d.Mu.Lock()
	d.epoch[name]++
	epoch := d.epoch[name]
	stopped := d.Stopped
	d.Mu.Unlock()
	if stopped || delay <= 0 {
		return
	}
	d.Wg.Go(func() {
		t := time.NewTimer(delay)
		defer t.Stop()
		select {
		case <-d.Ctx.Done():
			return
		case <-t.C:
		}
		d.Mu.Lock()
		current := d.epoch[name] == epoch
		d.Mu.Unlock()
		if current {
			f()
		}
	})
}

// SetDoorFault makes a fault active, and calls end when its duration is over. A fault that
// is not about the transport is only stored.
func (d *Door) SetDoorFault(f Fault, end func(FaultKind) error) error {
	d.Mu.Lock()
	if f.Kind == Slow {
		d.Slow[f.Mode] = f
		d.Mu.Unlock()
		return nil
	}
	d.Faults[f.Kind] = f
	d.settleFreeze()
	d.Mu.Unlock()
	if f.Kind != Clock { // the Duration of Clock is an offset
		d.After(f.Duration, string(f.Kind), func() { _ = end(f.Kind) })
	}
	switch f.Kind {
	case Unreachable:
		err := d.Reconcile()
		if f.Mode == "refuse" {
			d.ResetConnections()
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

// ClearDoorFaults ends the faults of one kind, or all. The caller must call Reconcile.
func (d *Door) ClearDoorFaults(kind FaultKind) {
	d.Mu.Lock()
	if kind == "" || kind == Slow {
		clear(d.Slow)
	}
	for k := range d.Faults {
		if kind == "" || kind == k {
			delete(d.Faults, k)
		}
	}
	d.settleFreeze()
	d.Mu.Unlock()
	if kind == "" || kind == Cut {
		for _, c := range d.connections() {
			c.unlimit()
		}
	}
}

// settleFreeze freezes or thaws all connections, depending on the faults. The caller holds
// d.mu.
func (d *Door) settleFreeze() {
	_, freeze := d.Faults[Freeze]
	u, unreachable := d.Faults[Unreachable]
	want := freeze || unreachable && u.Mode == "hang"
	switch {
	case want && d.thaw == nil:
		d.thaw = make(chan struct{})
	case !want && d.thaw != nil:
		close(d.thaw)
		d.thaw = nil
	}
}

// takeCut reports whether to cut a connection that has reached its number of bytes. If so,
// that uses the fault once.
func (d *Door) takeCut() bool { return d.take(Cut) }

// TakeRefusal reports whether to refuse the keys of a connection. If so, that uses the
// fault once.
func (d *Door) TakeRefusal() bool { return d.take(RefuseAuth) }

// take reports whether a fault of that kind is active, and uses it once.
func (d *Door) take(kind FaultKind) bool {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	f, ok := d.Faults[kind]
	if !ok {
		return false
	}
	if f.Count > 0 {
		if f.Count--; f.Count == 0 {
			delete(d.Faults, kind)
		} else {
			d.Faults[kind] = f
		}
	}
	return true
}

// Slowness returns the fault that slows the worker down in that way, or the zero Fault.
func (d *Door) Slowness(mode string) Fault {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return d.Slow[mode]
}

// fault returns the fault of that kind if it is active.
func (d *Door) fault(kind FaultKind) (Fault, bool) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	f, ok := d.Faults[kind]
	return f, ok
}
