package gcp

import "golang.org/x/sys/windows"

// errRefused means that nothing listens there.
const errRefused = windows.WSAECONNREFUSED
