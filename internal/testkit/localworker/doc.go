// Package localworker reaches workers without a network. Each command is a local process
// with the worker's environment. The package implements remote.Conn and remote.Dialer. So
// tests show what a connection must do, and that no package above it needs SSH. A command
// gets no terminal, and cannot log in to other workers.
package localworker
