package ui

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// A Console is the user's terminal in the hands of a program elsewhere: what is
// typed goes there as it is, Ctrl-C too, and what comes from there may do to the
// terminal what it likes. Only "~." at the begin of a line is for us: it is the
// way out when the other side is gone; "~~" types one "~" there.
type Console struct {
	in, out *os.File
	before  *term.State
	resume  func()
	keys    escapes
	tty     consoleTTY
}

// Console hands the terminal in and out over. The view stands still until Close.
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

// CanHandOver reports whether in and out are a terminal that a program elsewhere
// can have.
func CanHandOver(in io.Reader, out io.Writer) (inFile, outFile *os.File, ok bool) {
	if !CanAsk(in, out) {
		return nil, nil, false
	}
	inFile, _ = in.(*os.File)
	outFile, ok = out.(*os.File)
	return inFile, outFile, ok
}

// Read returns what was typed. It ends with io.EOF at "~.", after Close, and when
// the terminal is gone.
func (c *Console) Read(p []byte) (int, error) {
	if len(p) < 2 {
		return 0, io.ErrShortBuffer
	}
	for {
		// A key may let one follow that was held back.
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

// Write shows bytes as they are.
func (c *Console) Write(p []byte) (int, error) { return c.out.Write(p) }

// Size is that of the terminal now.
func (c *Console) Size() (columns, rows int) {
	columns, rows, err := term.GetSize(int(c.out.Fd()))
	if err != nil {
		return 80, 24
	}
	return columns, rows
}

// Resized tells that the size has changed.
func (c *Console) Resized() <-chan struct{} { return c.tty.resized }

// Close gives the terminal back as it was, and ends a Read under way. It may be
// called again.
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

// escapes finds what is typed for us.
type escapes struct {
	begin bool // of a line
	held  bool // a tilde there
}

// pass returns what goes to the other side, and whether the user wants out.
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
