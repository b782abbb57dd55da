package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// ReadPassphrase asks for the passphrase of a key on a terminal, without showing what the
// user types. If in is not a terminal, it fails at once: a prompt must never make a script
// wait. When ctx ends, it restores the terminal and returns the cause of ctx. The program
// should then exit, because the read itself cannot be cancelled.
func ReadPassphrase(ctx context.Context, in io.Reader, out io.Writer, key string) (string, error) {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return "", errors.New("it has a passphrase and there is no terminal to ask for it")
	}
	fmt.Fprintf(out, "multihost: passphrase of %s: ", key)
	before, err := term.GetState(int(file.Fd()))
	if err != nil {
		return "", fmt.Errorf("read passphrase: %w", err)
	}
	type answer struct {
		text []byte
		err  error
	}
	typed := make(chan answer, 1)
	go func() {
		text, err := term.ReadPassword(int(file.Fd()))
		typed <- answer{text, err}
	}()
	var a answer
	select {
	case a = <-typed:
	case <-ctx.Done():
		a.err = errors.Join(context.Cause(ctx), term.Restore(int(file.Fd()), before))
	}
	fmt.Fprintln(out)
	if a.err != nil {
		return "", fmt.Errorf("read passphrase: %w", a.err)
	}
	return string(a.text), nil
}
