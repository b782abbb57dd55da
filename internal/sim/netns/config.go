// Package netns makes workers of the simulator that have their own kernel namespaces, file
// system and OpenSSH server. It needs Linux and root.
//
// # Decisions
//
//   - The machines belong to one locked thread with a private network and mount
//     namespace, and to process 1 of each machine, which dies with the thread. So the
//     kernel removes everything after a SIGKILL, and no record is needed. Outside
//     there is one link (mhs…) and a route for each worker.
//   - The clock of a machine is libfaketime in ~/.ssh/environment: time namespaces do
//     not change the wall clock, and sshd does not run with the library.
package netns

// A Config configures the netns backend.
type Config struct {
	Root string // directory for its files; created when missing, emptied by Close
	Port int    // SSH port at which the caller reaches every machine; 0 means a free one
}
