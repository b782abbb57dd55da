package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// packed is a file of an archive.
type packed struct {
	name, from string
	mode       fs.FileMode
}

// packedTime is the time of every file in an archive: the earliest one that zip supports.
func packedTime() time.Time { return time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC) }

func writeTar(path, top string, files []packed) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	compressed, _ := gzip.NewWriterLevel(out, gzip.BestCompression) // the level is valid
	archive := tar.NewWriter(compressed)
	for _, f := range files {
		var info fs.FileInfo
		if info, err = os.Stat(f.from); err == nil {
			err = archive.WriteHeader(&tar.Header{
				Name: top + "/" + f.name, Mode: int64(f.mode), Size: info.Size(), ModTime: packedTime(), Format: tar.FormatUSTAR,
			})
		}
		if err == nil {
			err = copyFile(archive, f.from)
		}
		if err != nil {
			break
		}
	}
	if err = errors.Join(err, archive.Close(), compressed.Close(), out.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func writeZip(path, top string, files []packed) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	archive := zip.NewWriter(out)
	for _, f := range files {
		header := &zip.FileHeader{Name: top + "/" + f.name, Method: zip.Deflate, Modified: packedTime()}
		header.SetMode(f.mode)
		w, createErr := archive.CreateHeader(header)
		if err = createErr; err == nil {
			err = copyFile(w, f.from)
		}
		if err != nil {
			break
		}
	}
	if err = errors.Join(err, archive.Close(), out.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// sumsName is the name of the file with the digests.
const sumsName = "SHA256SUMS"

// writeSums writes SHA256SUMS in the format of sha256sum, so that sha256sum -c can check
// it.
func writeSums(dir string, names []string) error {
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		sum := sha256.New()
		if err := copyFile(sum, filepath.Join(dir, name)); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sum.Sum(nil), name)
	}
	return os.WriteFile(filepath.Join(dir, sumsName), []byte(b.String()), 0o644)
}
