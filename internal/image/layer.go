package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"multihost/internal/fault"
)

// Dir is the folder of the user's code in an image. The program starts there. XPK uses the same
// folder.
const Dir = "/app"

// A Layer has files that Push adds to an image.
type Layer struct {
	what string // for the image's history
	dir  string // folder in which the program starts; "": unchanged
	file *os.File
	data []byte // content, if the layer has no file
}

// An Archiver writes a tree of files as a gzipped tar archive, below a folder. The same tree
// gives the same bytes. codesync.Tree implements it.
type Archiver interface {
	ArchiveBelow(ctx context.Context, w io.Writer, folder string) error
}

// Files makes a layer with a tree of files in Dir. It writes the layer to a file in tempDir, or
// in the system's folder if tempDir is "". Close removes the file.
func Files(ctx context.Context, tree Archiver, tempDir string) (_ *Layer, err error) {
	f, err := os.CreateTemp(tempDir, "multihost-layer-*")
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	l := &Layer{what: "code", dir: Dir, file: f}
	defer func() {
		if err != nil {
			err = fmt.Errorf("make layer: %w", err)
			_ = l.Close() // err is returned
		}
	}()
	if err := tree.ArchiveBelow(ctx, f, strings.TrimPrefix(Dir, "/")); err != nil {
		return nil, err
	}
	return l, l.check()
}

// Executable makes a layer of one program.
func Executable(name string, program []byte) (*Layer, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(z)
	err = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "/"), Mode: 0o755, Size: int64(len(program))})
	if err == nil {
		_, err = archive.Write(program)
	}
	if err == nil {
		err = archive.Close()
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("make layer of %q: %w", name, err)
	}
	return &Layer{what: path.Base(name), data: b.Bytes()}, nil
}

// Close removes the file of the layer. Call it after Push.
func (l *Layer) Close() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	if gone := os.Remove(l.file.Name()); err == nil {
		err = gone
	}
	return err
}

func (l *Layer) open() (io.ReadCloser, error) {
	if l.file == nil {
		return io.NopCloser(bytes.NewReader(l.data)), nil
	}
	size, err := l.file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(io.NewSectionReader(l.file, 0, size)), nil
}

// as returns the layer for an image of a media type.
func (l *Layer) as(image types.MediaType) (v1.Layer, error) {
	kind := types.DockerLayer
	if image == types.OCIManifestSchema1 {
		kind = types.OCILayer
	}
	return tarball.LayerFromOpener(l.open, tarball.WithMediaType(kind))
}

// whiteout begins the name of a file in a layer that removes a file of a lower layer.
const whiteout = ".wh."

// A WhiteoutError reports a file that a layer cannot contain, because its name means a removal.
type WhiteoutError struct{ Path string }

func (e *WhiteoutError) Error() string {
	return fmt.Sprintf("file %q cannot be part of an image: names that begin with %q remove files", e.Path, whiteout)
}

// Fault returns fault.Configuration.
func (e *WhiteoutError) Fault() fault.Kind { return fault.Configuration }

func (e *WhiteoutError) Hint() string {
	return "rename the file, or leave it out with a line in .multihostignore"
}

// check returns a *WhiteoutError if the layer has a name that means a removal.
func (l *Layer) check() error {
	r, err := l.open()
	if err != nil {
		return err
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case strings.HasPrefix(path.Base(h.Name), whiteout):
			return &WhiteoutError{h.Name}
		}
	}
}
