package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// ReadText reads a whole file of UTF-8 text, without its byte order mark. Errors
// are *FileError; the cause of ctx is returned as it is. A named pipe may have no
// writer for ever: when ctx ends, the program is expected to end, since the read
// itself cannot be taken back.
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
