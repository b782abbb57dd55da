package ui

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// IsClosedPipe reports whether a write failed because its reader has gone.
func IsClosedPipe(err error) bool {
	return errors.Is(err, windows.ERROR_BROKEN_PIPE) || errors.Is(err, windows.ERROR_NO_DATA)
}

// takesEscapes makes the console obey escape sequences, and reports whether it does.
// Consoles before Windows 10 cannot.
func takesEscapes(fd uintptr) bool {
	var mode uint32
	console := windows.Handle(fd)
	if windows.GetConsoleMode(console, &mode) != nil {
		return false
	}
	return windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}

// mayRead always returns false, see CanAsk.
func mayRead(*os.File) bool { return false }

func readKey(context.Context, int, string) (byte, error) { return 0, errors.ErrUnsupported }

func dropTyped(int) {}
