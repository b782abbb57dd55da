package main

import (
	"bytes"
	"io"
	"net"
	"sync"
	"time"
)

// A lifePipe is one end of a connection in memory. A write never waits. If it did, SSH
// would hold a lock meanwhile, and in a bubble of testing/synctest time would stop for
// ever.
type lifePipe struct {
	in, out *lifeStream
	addr    lifeAddr
}

func newLifePipe(addr string) (near, far *lifePipe) {
	up, down := newLifeStream(), newLifeStream()
	return &lifePipe{down, up, lifeAddr(addr)}, &lifePipe{up, down, lifeAddr("runner")}
}

func (p *lifePipe) Read(b []byte) (int, error)  { return p.in.read(b) }
func (p *lifePipe) Write(b []byte) (int, error) { return p.out.write(b) }

// Close ends both directions.
func (p *lifePipe) Close() error {
	p.in.close()
	p.out.close()
	return nil
}

// silence drops everything that either end sends from now on, as if the network were down.
func (p *lifePipe) silence() {
	p.in.silence()
	p.out.silence()
}

func (p *lifePipe) LocalAddr() net.Addr              { return lifeAddr("here") }
func (p *lifePipe) RemoteAddr() net.Addr             { return p.addr }
func (p *lifePipe) SetDeadline(time.Time) error      { return nil }
func (p *lifePipe) SetReadDeadline(time.Time) error  { return nil }
func (p *lifePipe) SetWriteDeadline(time.Time) error { return nil }

// lifeAddr is the address of a worker.
type lifeAddr string

func (a lifeAddr) Network() string { return "memory" }
func (a lifeAddr) String() string  { return string(a) }

// A lifeStream is one direction of a connection.
type lifeStream struct {
	mu     sync.Mutex
	more   *sync.Cond
	data   bytes.Buffer
	closed bool
	silent bool
}

func newLifeStream() *lifeStream {
	s := &lifeStream{}
	s.more = sync.NewCond(&s.mu)
	return s
}

func (s *lifeStream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.data.Len() == 0 && !s.closed {
		s.more.Wait()
	}
	return s.data.Read(b)
}

func (s *lifeStream) write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	if !s.silent {
		s.data.Write(b)
		s.more.Broadcast()
	}
	return len(b), nil
}

func (s *lifeStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.more.Broadcast()
}

func (s *lifeStream) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = true
	s.data.Reset()
}
