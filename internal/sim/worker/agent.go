//go:build linux

package worker

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/crypto/ssh"
)

// forwardedAgent is a socket on the machine that leads to the client's agent. As with sshd,
// it exists from the first session that requests it to the end of the connection. A second
// request is refused.
type forwardedAgent struct {
	mu       sync.Mutex
	listener *net.UnixListener
	dir      string
	closed   bool
}

// longestSocket is the longest path that fits into sockaddr_un.
const longestSocket = 107

func (l *login) forwardAgent() error {
	a := &l.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return errors.New("the connection has ended")
	}
	if a.listener != nil {
		return errors.New("authentication forwarding requested twice")
	}
	parent := l.m.path("tmp")
	if len(parent)+len("/ssh-0123456789/agent") > longestSocket {
		parent = "" // take a directory of the real machine while the connection lasts
	}
	dir, err := os.MkdirTemp(parent, "ssh-")
	if err != nil {
		return err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "agent"), Net: "unix"})
	if err != nil {
		_ = os.RemoveAll(dir)
		return err
	}
	a.listener, a.dir = ln, dir
	l.wg.Go(func() {
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.passToAgent(c) })
		}
	})
	return nil
}

// passToAgent forwards one connection on the socket to the client.
func (l *login) passToAgent(c *net.UnixConn) {
	defer c.Close()
	ch, reqs, err := l.conn.OpenChannel("auth-agent@openssh.com", nil)
	if err != nil {
		return // for example, the client has not requested forwarding
	}
	var ends sync.WaitGroup
	ends.Go(func() { ssh.DiscardRequests(reqs) })
	ends.Go(func() {
		_, _ = io.Copy(ch, c)
		_ = ch.CloseWrite()
	})
	_, _ = io.Copy(c, ch)
	c.Close()
	ch.Close()
	ends.Wait()
}

func (a *forwardedAgent) path() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listener == nil {
		return ""
	}
	return a.listener.Addr().String()
}

// close closes the agent. A later request finds that the connection has ended.
func (a *forwardedAgent) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.listener != nil {
		a.listener.Close()
		_ = os.RemoveAll(a.dir)
	}
}
