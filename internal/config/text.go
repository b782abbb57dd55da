package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ReadText reads a whole file of UTF-8 text, at most limit bytes, without its byte order mark.
// Errors are *FileError. When ctx ends, ReadText returns the cause of ctx. The read itself
// continues, because nothing can cancel it, and a named pipe may never get a writer. The program
// should therefore end soon after ctx.
func ReadText(ctx context.Context, path string, limit int) (string, error) {
	type answer struct {
		text string
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		text, err := readLimited(path, limit)
		read <- answer{text, err}
	}()
	select {
	case a := <-read:
		if a.err != nil {
			return "", fileError(path, a.err)
		}
		if strings.HasPrefix(a.text, "\xff\xfe") || strings.HasPrefix(a.text, "\xfe\xff") {
			return "", &FileError{Path: path, Err: errors.New("it is UTF-16, want UTF-8")}
		}
		return strings.TrimPrefix(a.text, "\ufeff"), nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func readLimited(path string, limit int) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return "", err
	}
	if len(data) > limit {
		return "", fmt.Errorf("larger than %d bytes", limit)
	}
	return string(data), nil
}

// WriteWhole replaces a file in one step, so that no reader sees half of it.
func WriteWhole(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}

// WriteNew writes a new file. An existing file is an error.
func WriteNew(path, text string, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
