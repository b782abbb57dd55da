package ui

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// A Console lends the user's terminal to a program on another machine. Keys go there
// unchanged, Ctrl-C included, and the program's output may do anything to the terminal. The
// Console handles only two sequences at the beginning of a line: "~." ends the login, even
// if the other side has gone, and "~~" sends one "~".
type Console struct {
	in, out *os.File
	before  *term.State
	resume  func()
	keys    escapes
	tty     consoleTTY
}

// Console lends the terminal in and out to a program. The view writes nothing until Close.
func (r *Renderer) Console(ctx context.Context, in, out *os.File) (*Console, error) {
	resume, err := r.hold(ctx)
	if err != nil {
		return nil, err
	}
	r.err.drain()
	c := &Console{in: in, out: out, resume: resume, keys: escapes{begin: true}}
	if err = c.tty.open(); err == nil {
		if c.before, err = term.MakeRaw(int(in.Fd())); err != nil {
			c.tty.close()
		}
	}
	if err != nil {
		resume()
		return nil, fmt.Errorf("hand over the terminal: %w", err)
	}
	return c, nil
}

// CanHandOver reports whether in and out are a terminal that a program on another machine
// can use. It returns them as files.
func CanHandOver(in io.Reader, out io.Writer) (inFile, outFile *os.File, ok bool) {
	if !CanAsk(in, out) {
		return nil, nil, false
	}
	inFile, _ = in.(*os.File)
	outFile, ok = out.(*os.File)
	return inFile, outFile, ok
}

// Read returns what the user typed. It returns io.EOF after "~.", after Close, and if the
// terminal has gone.
func (c *Console) Read(p []byte) (int, error) {
	if len(p) < 2 {
		return 0, io.ErrShortBuffer
	}
	for {
		// Read only half of p, because a key can release a tilde that was held back.
		n, err := c.tty.read(c.in, p[:len(p)/2])
		typed, left := c.keys.pass(append([]byte(nil), p[:n]...))
		switch {
		case left:
			return copy(p, typed), io.EOF
		case err != nil:
			return copy(p, typed), io.EOF
		case len(typed) > 0:
			return copy(p, typed), nil
		}
	}
}

// Write shows bytes unchanged.
func (c *Console) Write(p []byte) (int, error) { return c.out.Write(p) }

// Size returns the size of the terminal now, or 80 by 24 if it is unknown.
func (c *Console) Size() (columns, rows int) {
	columns, rows, err := term.GetSize(int(c.out.Fd()))
	if err != nil {
		return 80, 24
	}
	return columns, rows
}

// Resized returns a channel that receives a value after a change of the size.
func (c *Console) Resized() <-chan struct{} { return c.tty.resized }

// Close restores the terminal and ends a Read in progress. Further calls do nothing.
func (c *Console) Close() error {
	if c.before == nil {
		return nil
	}
	c.tty.close()
	err := term.Restore(int(c.in.Fd()), c.before)
	c.before = nil
	c.resume()
	return err
}

// escapes finds the sequences that the Console handles: "~." and "~~".
type escapes struct {
	begin bool // the next key is at the beginning of a line
	held  bool // a tilde at the beginning of a line is held back
}

// pass returns what goes to the other side. left reports whether the user has typed "~.".
func (e *escapes) pass(typed []byte) (out []byte, left bool) {
	for _, k := range typed {
		switch {
		case e.held && k == '.':
			return out, true
		case e.held && k == '~':
			e.held = false
		case e.held:
			out = append(out, '~')
			e.held = false
		case e.begin && k == '~':
			e.held = true
			e.begin = false
			continue
		}
		out = append(out, k)
		e.begin = k == '\r' || k == '\n'
	}
	return out, false
}
