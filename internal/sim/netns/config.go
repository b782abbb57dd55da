// Package netns makes workers of the simulator that have their own kernel namespaces, file
// system and OpenSSH server. It needs Linux and root.
package netns

// A Config configures the netns backend.
type Config struct {
	Root string // directory for its files; created when missing, emptied by Close
	Port int    // SSH port at which the caller reaches every machine; 0 means a free one
}
