package kubeapi

import (
	"errors"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"multihost/internal/sim/kubeapi/store"
)

// faults has the active failures.
type faults struct {
	code  int // status that requests get; 0: no fault
	count int // how many more requests get it
}

// meetFaults returns the error with which a fault answers a request, or nil.
func (s *Server) meetFaults(*http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.count == 0 {
		return nil
	}
	s.faults.count--
	return statusError(s.faults.code, "", "the server answers "+strconv.Itoa(s.faults.code)+" on request")
}

// FailRequests answers the next n requests with an HTTP status.
func (s *Server) FailRequests(code, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.code, s.faults.count = code, n
}

// SetAway(true) takes the API away: connections end, and new ones are refused.
// SetAway(false) brings it back at the same address. The pods run on meanwhile.
func (s *Server) SetAway(away bool) error {
	s.mu.Lock()
	server, addr := s.http, s.addr
	if away {
		s.http = nil
	}
	s.mu.Unlock()
	switch {
	case away && server != nil:
		err := server.Close()
		s.CutExecs()
		return err
	case !away && server == nil:
		if err := s.listenAgain(addr); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
	}
	return nil
}

// listenAgain listens at an address that the server had before. Meanwhile another program of
// this machine may have the port for a moment, so listenAgain tries for a while.
func (s *Server) listenAgain(addr string) error {
	limit := time.After(10 * time.Second)
	for {
		err := s.listen(addr)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-limit:
			return err
		case <-s.ctx.Done():
			return http.ErrServerClosed
		}
	}
}

// CutExecs resets the connections of all execs.
func (s *Server) CutExecs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.execs {
		e.cut()
	}
}

// Kill kills process 1 of every container of a pod. With oom, it does so as the kernel does
// when the memory of a container is used up.
func (s *Server) Kill(namespace, pod string, oom bool) error {
	return s.kubelet.Kill(namespace, pod, oom)
}

// Hold keeps deleted pods in Terminating if their name matches a pattern (see path.Match).
// "" ends this.
func (s *Server) Hold(pattern string) { s.kubelet.Hold(pattern) }

// RemoveNode takes a node away, as if its machine had gone. The processes of its pods end
// at once, and the pods fail with the condition DisruptionTarget.
func (s *Server) RemoveNode(name string) error {
	s.kubelet.Lose(name)
	_, _, err := s.store.Remove(store.Nodes, "", name, store.Removal{})
	return err
}
