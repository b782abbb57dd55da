// Package localworker reaches workers without a network. Each command is a local process
// with the environment of the worker. It implements remote.Conn and remote.Dialer. So tests
// show what a connection must do. They also show that no package above it needs SSH. A
// command gets no terminal. It cannot log in to other workers.
package localworker
