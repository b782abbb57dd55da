//go:build linux

package worker

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strconv"
	"sync"
	"syscall"
)

// addressTries limits the search for an address where nothing listens.
const addressTries = 200

// Loopback gives each machine its own address in 127.64.0.0/10, and the same port.
type Loopback struct {
	taking sync.Mutex
	port   int    // port of all addresses. If it is not configured, the first address chooses it; 0 until then
	next   uint32 // the next address to try
}

// TryPort returns why machines cannot listen on a port here, or nil if they can.
func TryPort(port int) error {
	var l Loopback
	if err := l.Init(port); err != nil {
		return err
	}
	ln, err := l.Listen()
	if err != nil {
		return err
	}
	return ln.Close()
}

// Init sets the port; 0 means that the first address chooses a free one. The first address
// is random, so that two simulators rarely use the same.
func (l *Loopback) Init(port int) error {
	n, err := rand.Int(rand.Reader, big.NewInt(1<<14))
	if err != nil {
		return err
	}
	l.port = port
	l.next = 127<<24 | 64<<16 | uint32(n.Int64())<<8 | 1
	return nil
}

// Port returns the SSH port of all machines.
func (l *Loopback) Port() int {
	l.taking.Lock()
	defer l.taking.Unlock()
	return l.port
}

// Listen opens the port on a new address for a new machine.
func (l *Loopback) Listen() (*net.TCPListener, error) {
	l.taking.Lock()
	defer l.taking.Unlock()
	var last error
	for range addressTries {
		ln, err := ListenTCP(l.nextAddr(), l.port)
		if err == nil {
			_, l.port = SplitAddr(ln.Addr())
			return ln, nil
		}
		last = err
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, fmt.Errorf("listen on a loopback address: %w", last)
}

// nextAddr goes through 127.64.0.0/10 without .0 and .255, which some programs take for
// network and broadcast.
func (l *Loopback) nextAddr() string {
	for {
		n := l.next
		l.next = 127<<24 | 64<<16 | (n+1)&(1<<22-1)
		if last := n & 0xff; last != 0 && last != 255 {
			return net.IPv4(byte(n>>24), byte(n>>16), byte(n>>8), byte(n)).String()
		}
	}
}

// ListenTCP listens at a TCP address. The caller closes the listener.
func ListenTCP(addr string, port int) (*net.TCPListener, error) {
	ln, err := net.Listen("tcp4", JoinPort(addr, port))
	if err != nil {
		return nil, err
	}
	return ln.(*net.TCPListener), nil
}

// JoinPort returns addr:port.
func JoinPort(addr string, port int) string { return net.JoinHostPort(addr, strconv.Itoa(port)) }

// SplitAddr returns the parts of a TCP address.
func SplitAddr(a net.Addr) (ip string, port int) {
	t := a.(*net.TCPAddr)
	return t.IP.String(), t.Port
}
