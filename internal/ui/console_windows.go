package ui

import (
	"errors"
	"os"
)

// consoleTTY is never opened, see CanAsk.
type consoleTTY struct{ resized chan struct{} }

func (*consoleTTY) open() error { return errors.ErrUnsupported }

func (*consoleTTY) close() {}

func (*consoleTTY) read(*os.File, []byte) (int, error) { return 0, errors.ErrUnsupported }
