package ui

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// IsClosedPipe reports whether a write has failed because the reader is gone.
func IsClosedPipe(err error) bool {
	return errors.Is(err, windows.ERROR_BROKEN_PIPE) || errors.Is(err, windows.ERROR_NO_DATA)
}

// takesEscapes makes the console obey escape sequences. It reports whether the console
// does: consoles before Windows 10 do not know them.
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
