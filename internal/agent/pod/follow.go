//go:build linux

package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"multihost/internal/agent"
	"multihost/internal/fault"
)

// Tail writes the output of the command from offset on, until the output is complete or ctx
// ends. After a break, call it again with the number of bytes received so far. Tail may be
// called before Run.
func Tail(ctx context.Context, dir string, offset int64, w io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, followedName), nil, 0o644); err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(dir, logName))
	for errors.Is(err, os.ErrNotExist) {
		if err := agent.Sleep(ctx, look); err != nil {
			return err
		}
		f, err = os.Open(filepath.Join(dir, logName))
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return err
	} else if info.Size() < offset {
		return fmt.Errorf("read output from byte %d: it has %d bytes", offset, info.Size())
	}
	for {
		end, over, err := ReadEnd(dir) // read before the output: with an end, the output is complete
		if err != nil {
			return err
		}
		n, err := io.Copy(w, io.NewSectionReader(f, offset, 1<<62))
		offset += n
		switch {
		case err != nil:
			return err
		case over && offset >= end.Length:
			return nil
		case over:
			return fmt.Errorf("read output: it ends at byte %d of %d", offset, end.Length)
		}
		if err := agent.Sleep(ctx, look); err != nil {
			return err
		}
	}
}

// ReadEnd returns how the command ended. It returns false if the command has not ended.
func ReadEnd(dir string) (End, bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, endName))
	if errors.Is(err, os.ErrNotExist) {
		return End{}, false, nil
	}
	if err != nil {
		return End{}, false, err
	}
	var end End
	if err := json.Unmarshal(data, &end); err != nil {
		return End{}, false, fmt.Errorf("read %q: %w", filepath.Join(dir, endName), err)
	}
	return end, true, nil
}

// ErrIncomplete says that a follower lacks a part of the output.
var ErrIncomplete = fault.New(fault.Unavailable, "the output is not complete")

// Acknowledge tells Run that a follower has length bytes of the output. The error is
// ErrIncomplete if the output is longer or not complete yet.
func Acknowledge(dir string, length int64) error {
	end, over, err := ReadEnd(dir)
	if err != nil {
		return err
	}
	if !over || length != end.Length {
		return ErrIncomplete
	}
	return agent.WriteFile(filepath.Join(dir, ackName), []byte(strconv.FormatInt(length, 10)), 0o644)
}

// Place copies files into an existing folder, under their own names, as executable files.
// It skips files that do not exist.
func Place(dir string, files ...string) error {
	for _, path := range files {
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := agent.WriteFile(filepath.Join(dir, filepath.Base(path)), data, 0o755); err != nil {
			return err
		}
	}
	return nil
}
