package transfer

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"multihost/internal/remote"
)

//go:embed put.sh
var putText string

var putScript = remote.NewProgram("put", remote.Prelude(), putText)

// A Parcel is a set of files of this machine to send. It is safe for concurrent use.
type Parcel struct {
	Names   []string // names under which they arrive
	Size    int64    // bytes of contents
	Files   int
	LeftOut []string // names of anything but a file, directory or link

	items  []item
	digest string
}

// item is one file, directory or link.
type item struct {
	path string // on this machine
	name string // in the parcel
	info fs.FileInfo
	link string
}

// Pack reads the files and directories to send. If a file changes later, Send fails.
func Pack(ctx context.Context, sources []string) (*Parcel, error) {
	p := &Parcel{}
	for _, source := range sources {
		whole, err := filepath.Abs(source)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(whole)
		if name == "/" || name == "." {
			return nil, fmt.Errorf("copy %q: it has no name", source)
		}
		if strings.HasSuffix(source, "/") { // send the target of a link
			if whole, err = filepath.EvalSymlinks(whole); err != nil {
				return nil, fmt.Errorf("copy %q: %w", source, bare(err))
			}
		}
		if slices.Contains(p.Names, name) {
			return nil, fmt.Errorf("copy %q: another of the files is called %s, too", source, name)
		}
		p.Names = append(p.Names, name)
		if err := p.add(whole, name); err != nil {
			return nil, err
		}
	}
	return p, p.hash(ctx)
}

func bare(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

func (p *Parcel) add(root, name string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		it := item{path: path, name: filepath.ToSlash(filepath.Join(name, rel))}
		if it.info, err = d.Info(); err != nil {
			return err
		}
		switch kind := it.info.Mode().Type(); kind {
		case 0:
			p.Size += it.info.Size()
			p.Files++
		case fs.ModeDir:
		case fs.ModeSymlink:
			if it.link, err = os.Readlink(path); err != nil {
				return err
			}
		default:
			p.LeftOut = append(p.LeftOut, it.name)
			return nil
		}
		p.items = append(p.items, it)
		return nil
	})
}

// hash computes the digest that the worker must return (see put.sh).
func (p *Parcel) hash(ctx context.Context) error {
	kinds := make([]string, len(p.items))
	sums := make([]string, len(p.items))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for i, it := range p.items {
		switch it.info.Mode().Type() {
		case fs.ModeDir:
			kinds[i] = "d ./" + it.name + " \x00"
		case fs.ModeSymlink:
			kinds[i] = "l ./" + it.name + " " + it.link + "\x00"
		default:
			kinds[i] = "f ./" + it.name + " \x00"
			group.Go(func() error {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				sum, err := sumOf(it.path)
				sums[i] = sum + "  ./" + it.name + "\x00"
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	slices.Sort(kinds)
	files := slices.DeleteFunc(sums, func(s string) bool { return s == "" })
	slices.SortFunc(files, func(a, b string) int { return strings.Compare(a[2*sha256.Size:], b[2*sha256.Size:]) })
	h := sha256.New()
	for _, s := range slices.Concat(kinds, files) {
		io.WriteString(h, s)
	}
	p.digest = hex.EncodeToString(h.Sum(nil))
	return nil
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// A Sent is a parcel that has arrived on a worker and waits beside its place. The caller must
// call either Put or Drop, once.
type Sent struct {
	orders *io.PipeWriter
	over   chan struct{}
	err    error // read it only after over is closed
	done   bool  // the worker has reported that the files are in place
}

// Send sends the parcel to dest on a worker. dest is relative to the home directory, is
// absolute, or begins with "~/". The files keep their names and go into the directory dest
// if into is true, if dest ends with a slash or is a directory, or if the parcel has
// several names. Otherwise the only file gets the name dest. Send calls progress with the
// number of bytes of contents that it has just sent.
//
// Send ends with ctx, but its result does not depend on ctx: the caller must call Put or
// Drop. The error may be a *WorkerError.
func (p *Parcel) Send(ctx context.Context, r remote.Runner, dest string, into bool, progress func(n int64)) (*Sent, error) {
	many := "0"
	if into || len(p.Names) != 1 {
		many = "1"
	}
	session, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	in, orders := io.Pipe()
	s := &Sent{orders: orders, over: make(chan struct{})}
	words := make(chan string, 8) // enough for all answers of our script
	answer := &remote.Answer{Nonce: remote.NewNonce(), Next: func(r remote.Record) bool {
		select {
		case words <- r.Word + " " + r.Rest:
		default:
		}
		if r.Word == "put" {
			s.done = true
			orders.Close() // otherwise the session waits for a reader of its input
		}
		return false
	}}
	errs := &remote.Answer{Nonce: answer.Nonce}
	go func() {
		defer close(s.over)
		defer cancel(nil)
		cmd := putScript.Cmd(in, answer.Nonce, dest, many)
		cmd.Stdout, cmd.Stderr = answer, errs
		status, err := r.Run(session, cmd)
		in.CloseWithError(io.ErrClosedPipe)
		switch {
		case err != nil:
			s.err = err
		case !s.done:
			if s.err = trouble(errs, answer); status.Code == 0 {
				s.err = fmt.Errorf("%w (%s)", s.err, describe(status))
			}
		}
	}()
	err := p.stream(ctx, s, words, progress)
	unwatch()
	if err != nil {
		s.Drop()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, io.ErrClosedPipe) && s.err != nil {
			err = s.err // the worker's error says more
		}
		return nil, err
	}
	return s, nil
}

// stream writes the archive, and compares the digest of what has arrived.
func (p *Parcel) stream(ctx context.Context, s *Sent, words <-chan string, progress moved) error {
	if word, err := s.word(ctx, words); err != nil || word != "ready " {
		return cmpOr(err, &WorkerError{"answer not understood: " + remote.Clean(word, 500)})
	}
	pieces := &pieces{w: s.orders}
	archive := tar.NewWriter(pieces)
	for _, it := range p.items {
		if err := it.write(ctx, archive, progress); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	if err := pieces.end(); err != nil {
		return err
	}
	word, err := s.word(ctx, words)
	if err != nil {
		return err
	}
	if word != "arrived "+p.digest {
		return &WorkerError{"what has arrived is not what was sent, by its digest: a file changed meanwhile, or the disk there is faulty"}
	}
	return nil
}

func cmpOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

func (it item) write(ctx context.Context, archive *tar.Writer, progress moved) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	h := &tar.Header{Name: it.name, Mode: int64(it.info.Mode().Perm()), ModTime: it.info.ModTime(), Format: tar.FormatPAX}
	switch it.info.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, it.name+"/"
		return archive.WriteHeader(h)
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, it.link
		return archive.WriteHeader(h)
	}
	h.Typeflag, h.Size = tar.TypeReg, it.info.Size()
	f, err := os.Open(it.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := archive.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(archive, &counted{io.LimitReader(f, h.Size), progress})
	if err == nil && n < h.Size {
		err = fmt.Errorf("copy %q: it became shorter while it was read", it.path)
	}
	return err
}

// counted is a reader that reports how many bytes were read.
type counted struct {
	r        io.Reader
	progress moved
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.progress.add(n)
	return n, err
}

// word waits for the worker's next answer.
func (s *Sent) word(ctx context.Context, words <-chan string) (string, error) {
	select {
	case w := <-words:
		if strings.HasPrefix(w, "error ") {
			<-s.over
			return "", s.err
		}
		return w, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-s.over:
		select {
		case w := <-words:
			if !strings.HasPrefix(w, "error ") {
				return w, nil
			}
		default:
		}
		return "", s.err
	}
}

// Put moves the files to their place.
func (s *Sent) Put() error {
	if _, err := io.WriteString(s.orders, "put\n"); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	<-s.over
	return s.err
}

// Drop removes the files. It waits until the worker has removed them, or the connection is
// lost.
func (s *Sent) Drop() {
	s.orders.Close()
	<-s.over
}

// pieces writes an archive in pieces, because the length of the archive is unknown. A line
// with its length comes before each piece.
type pieces struct {
	w    io.Writer
	buf  []byte
	lent *[]byte // buf's buffer from the pool; nil before the first byte
}

const pieceSize = 1 << 20

func (p *pieces) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if p.lent == nil {
			p.lent = buffers.Get().(*[]byte)
			p.buf = (*p.lent)[:0]
		}
		k := min(len(b), pieceSize-len(p.buf))
		p.buf = append(p.buf, b[:k]...)
		b = b[k:]
		if len(p.buf) == pieceSize {
			if err := p.flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func (p *pieces) flush() error {
	if len(p.buf) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(p.w, "%d\n", len(p.buf))
	if err == nil {
		_, err = p.w.Write(p.buf)
	}
	p.buf = p.buf[:0]
	return err
}

func (p *pieces) end() error {
	err := p.flush()
	if err == nil {
		_, err = io.WriteString(p.w, "0\n")
	}
	if p.lent != nil {
		buffers.Put(p.lent)
		p.lent, p.buf = nil, nil
	}
	return err
}

var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, pieceSize)
	return &b
}}
