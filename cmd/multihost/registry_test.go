package main

import (
	"os"
	"os/exec"
	"sync"

	"multihost/internal/sim"
)

// background is a program that a script started.
type background struct {
	cmd  *exec.Cmd
	done chan struct{} // closed at its end; err is set then
	err  error

	keyboard *os.File // of the terminal it was started on, or nil
}

// registry keeps what scripts have started, by a path that belongs to one script only.
type registry[T any] struct {
	mu sync.Mutex
	m  map[string]T
}

func (r *registry[T]) put(key string, v T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = map[string]T{}
	}
	r.m[key] = v
}

func (r *registry[T]) get(key string) T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m[key]
}

var (
	servers     registry[*sim.Server]
	backgrounds registry[*background]
)
