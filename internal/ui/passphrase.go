package ui

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// ReadPassphrase asks for the passphrase of a key on a terminal, without
// showing what is typed. Where in is no terminal it fails at once: a prompt
// must never hold up a script.
func ReadPassphrase(in io.Reader, out io.Writer, key string) (string, error) {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return "", errors.New("it has a passphrase and there is no terminal to ask for it")
	}
	fmt.Fprintf(out, "multihost: passphrase of %s: ", key)
	text, err := term.ReadPassword(int(file.Fd()))
	fmt.Fprintln(out)
	if err != nil {
		return "", fmt.Errorf("read passphrase: %w", err)
	}
	return string(text), nil
}
