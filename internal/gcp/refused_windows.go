package gcp

import "golang.org/x/sys/windows"

// errRefused is the error of a connection to a port on which nothing listens.
const errRefused = windows.WSAECONNREFUSED
