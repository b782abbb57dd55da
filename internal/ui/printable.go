package ui

import (
	"bytes"
	"io"
)

// printable returns a writer for the bytes of a log. If w is a terminal, everything that
// could act on it becomes visible, as in every view; nothing is cut, and \r ends a line. If
// w is not a terminal, it gets the bytes unchanged. Close writes the bytes of an unfinished
// character, and does not close w.
func printable(w io.Writer, terminal bool) io.WriteCloser {
	if !terminal {
		return rawBytes{w}
	}
	return &visibleBytes{w: w}
}

type rawBytes struct{ io.Writer }

func (rawBytes) Close() error { return nil }

type visibleBytes struct {
	w        io.Writer
	held     []byte // the beginning of an unfinished character
	returned bool   // the last byte was \r and became \n
	out      []byte
}

func (v *visibleBytes) Write(p []byte) (int, error) {
	text := append(v.held, p...)
	whole := wholeRunes(text)
	err := v.put(whole)
	v.held = append(v.held[:0], text[len(whole):]...)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (v *visibleBytes) Close() error {
	err := v.put(v.held)
	v.held = nil
	return err
}

func (v *visibleBytes) put(text []byte) error {
	v.out = v.out[:0]
	for len(text) > 0 {
		if v.returned && text[0] == '\n' {
			text = text[1:]
		}
		v.returned = false
		n := bytes.IndexAny(text, "\r\n")
		if n < 0 {
			v.out = appendVisible(v.out, text)
			break
		}
		v.out = append(appendVisible(v.out, text[:n]), '\n')
		v.returned = text[n] == '\r'
		text = text[n+1:]
	}
	if len(v.out) == 0 {
		return nil
	}
	_, err := v.w.Write(v.out)
	return err
}
