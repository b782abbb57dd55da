package gcp

import (
	_ "embed" // the script

	"multihost/internal/remote"
)

//go:embed vm.sh
var vmFile string

// VMScript is bash for scripts that run on workers without a runner. Its functions read
// JSON, call Google's APIs with the VM's own token and delete the VM's own resource. It
// begins with a #! line. Append the script that uses the functions.
var VMScript = vmFile + remote.JSON()
