package gcp

import "golang.org/x/sys/windows"

// errRefused is the error of a connection to a port without a listener.
const errRefused = windows.WSAECONNREFUSED
