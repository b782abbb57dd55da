// Package localworker reaches workers without a network. Each command is a local process with the
// worker's environment. The package implements remote.Conn and remote.Dialer. Its users show that
// no package above package remote needs SSH. A command gets no terminal, and cannot log in to
// other workers.
package localworker
