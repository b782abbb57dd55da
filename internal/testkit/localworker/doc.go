// Package localworker reaches workers without a network: each command is a local process
// with the environment of the worker. It implements remote.Conn and remote.Dialer for
// tests, so that they show what a connection must do, and that nothing above it needs SSH.
// A command gets no terminal, and cannot log in to other workers.
package localworker
