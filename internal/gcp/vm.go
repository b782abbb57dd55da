package gcp

import _ "embed" // the script

// VMScript is bash for scripts that run on workers without a runner. It defines
// functions that call Google's APIs with the VM's own token and delete the queued
// resource that the VM belongs to. It begins with a #! line. Append the script that
// uses the functions.
//
//go:embed vm.sh
var VMScript string
