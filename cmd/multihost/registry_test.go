package main

import (
	"os"
	"os/exec"
	"sync"

	"multihost/internal/sim"
)

// background is a program that a script started in the background.
type background struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the program ends; then err is set
	err  error

	keyboard *os.File // keyboard of the program's terminal, or nil
}

// registry keeps what scripts have started. Each key is a path that belongs to one script.
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
