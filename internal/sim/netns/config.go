// Package netns makes workers of the simulator, each with kernel namespaces, a file system
// and an OpenSSH server of its own. It needs Linux and root.
//
// # Decisions
//
//   - The machines belong to one locked thread with a private network and mount namespace,
//     and to process 1 of each machine, which dies with the thread. So the kernel removes
//     everything after a SIGKILL, and nobody needs a record of it. Outside of the
//     namespaces there are only one link (mhs…) and a route for each worker.
//   - The clock of a machine is libfaketime in ~/.ssh/environment. Time namespaces do not
//     change the wall clock, and sshd does not run with the library.
package netns

// A Config configures the netns backend.
type Config struct {
	Root string // directory for its files; it is created, and Close empties it
	Port int    // SSH port at which the caller reaches every machine; 0: a free port
}
