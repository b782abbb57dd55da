//go:build linux

package worker

import (
	"net"
	"sync"
	"time"
)

// unlimited means that the bytes of a direction have no limit.
const unlimited = -1

// FaultyConn is the machine's side of a TCP connection, with the faults of the transport.
type FaultyConn struct {
	*net.TCPConn
	d      *Door
	closed chan struct{}
	once   sync.Once

	mu      sync.Mutex
	inLeft  int64 // bytes until the cut, or unlimited
	outLeft int64
}

func newFaultyConn(d *Door, c *net.TCPConn) *FaultyConn {
	return &FaultyConn{TCPConn: c, d: d, closed: make(chan struct{}), inLeft: unlimited, outLeft: unlimited}
}

func (c *FaultyConn) limit(mode string, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch mode {
	case "in":
		c.inLeft = bytes
	case "out":
		c.outLeft = bytes
	}
}

func (c *FaultyConn) unlimit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inLeft, c.outLeft = unlimited, unlimited
}

// left returns how many of n bytes may pass.
func (c *FaultyConn) left(limit *int64, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *limit == unlimited || *limit > int64(n) {
		return n
	}
	return int(*limit)
}

// passed counts n bytes, and reports whether to cut the connection now.
func (c *FaultyConn) passed(limit *int64, n int) bool {
	c.mu.Lock()
	if *limit == unlimited {
		c.mu.Unlock()
		return false
	}
	*limit = max(*limit-int64(n), 0)
	spent := *limit == 0
	c.mu.Unlock()
	if !spent {
		return false
	}
	if c.d.takeCut() {
		return true
	}
	c.unlimit()
	return false
}

// Read delivers nothing while the machine is frozen, not even bytes that have arrived
// before.
func (c *FaultyConn) Read(p []byte) (int, error) {
	want := c.left(&c.inLeft, len(p))
	if want == 0 && len(p) > 0 {
		if c.passed(&c.inLeft, 0) {
			c.Reset()
			return 0, net.ErrClosed
		}
		want = len(p)
	}
	n, err := c.TCPConn.Read(p[:want])
	if !c.awaitThaw() {
		return 0, net.ErrClosed
	}
	if c.passed(&c.inLeft, n) {
		c.Reset()
	}
	return n, err
}

func (c *FaultyConn) Write(p []byte) (int, error) {
	done := 0
	for {
		if !c.awaitThaw() {
			return done, net.ErrClosed
		}
		n, err := c.TCPConn.Write(p[done : done+c.left(&c.outLeft, len(p)-done)])
		done += n
		if c.passed(&c.outLeft, n) {
			c.Reset()
			return done, net.ErrClosed
		}
		if err != nil || done == len(p) {
			return done, err
		}
	}
}

// awaitThaw blocks while the machine is frozen. It returns false if the connection is
// closed meanwhile.
func (c *FaultyConn) awaitThaw() bool {
	for {
		thaw := c.d.frozen()
		if thaw == nil {
			return true
		}
		select {
		case <-thaw:
		case <-c.closed:
			return false
		}
	}
}

func (c *FaultyConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.TCPConn.Close()
}

// Reset closes the connection with a reset, as the kernel of a vanished peer does.
func (c *FaultyConn) Reset() {
	_ = c.SetLinger(0)
	c.Close()
}

// Pause waits for the time d. It returns false if the connection is closed meanwhile.
func (c *FaultyConn) Pause(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.closed:
		return false
	}
}
