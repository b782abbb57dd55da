package gcp

import _ "embed" // the script

// VMScript is bash for what runs on workers without a runner: calls of Google's
// APIs with the VM's own token, and the deletion of the queued resource that the
// VM belongs to. It begins with a line for the kernel and defines functions; the
// script that uses them follows it.
//
//go:embed vm.sh
var VMScript string
