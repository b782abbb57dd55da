//go:build unix

package detached

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"multihost/internal/agent"
)

// kitLimit limits the bytes of an unpacked kit.
const kitLimit = 64 << 20

// A fetcher gets the files and the login that a worker needs for the job.
type fetcher struct{ *worker }

// fetch gets the kit and the login that the command runs as, once after each boot.
func (w fetcher) fetch(ctx context.Context) error {
	if err := w.fetchKit(ctx); err != nil {
		return fmt.Errorf("the job cannot be fetched: %w", err)
	}
	if err := w.awaitLogin(ctx); err != nil {
		return err
	}
	w.m.disk = w.disk.look()
	if w.job.CloudLogging {
		w.beside.Go(func() { cloudLog(w).opsAgent(ctx) })
	}
	return nil
}

// fetchKit reads the kit. It uses the kit of an earlier boot if that kit is whole.
func (w fetcher) fetchKit(ctx context.Context) error {
	path := w.disk.path("kit.tar.gz")
	if !hasSum(path, w.job.KitSum) {
		err := w.patiently(ctx, w.job.Patience, func() error { return w.download(ctx, "kit.tar.gz", path) })
		if err != nil {
			return err
		}
	}
	if !hasSum(path, w.job.KitSum) {
		return errors.New("kit.tar.gz is not what the job was started with")
	}
	var err error
	if w.kit, err = readKit(path); err != nil {
		return fmt.Errorf("kit.tar.gz cannot be unpacked: %w", plain(err))
	}
	return nil
}

// download gets a file of this start of the run.
func (w *worker) download(ctx context.Context, name, path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+name+".*")
	if err != nil {
		return plain(err)
	}
	defer os.Remove(f.Name())
	_, err = w.bucket.Get(ctx, "starts/"+w.job.Start+"/"+name, f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// hasSum reports whether a file has this SHA-256.
func hasSum(path, sum string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, f)
	return err == nil && hex.EncodeToString(hash.Sum(nil)) == sum
}

func readKit(path string) (map[string][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	files, all := map[string][]byte{}, tar.NewReader(io.LimitReader(z, kitLimit))
	for {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[h.Name], err = io.ReadAll(all); err != nil {
			return nil, err
		}
	}
}

// loginLimit is how long a worker waits for the login of ssh-keys. The guest agent makes
// that login some time after the boot.
const loginLimit = 2 * time.Minute

// awaitLogin waits for the login that the command runs as. Without it the command runs as
// root. After a reboot the command must run as the same user as before, because the run is
// in that user's home. So awaitLogin then waits longer, and never takes another login.
func (w fetcher) awaitLogin(ctx context.Context) error {
	name, limit := w.job.Login, loginLimit
	before := w.disk.recall("login")
	if before != "" {
		name, limit = before, w.job.Patience
	} else if name == "" {
		keys, _ := w.cfg.Metadata.Value(ctx, "attributes/ssh-keys")
		name, _, _ = strings.Cut(keys, ":")
	}
	if name == "" {
		name = "root"
	}
	w.m.missingLogin = ""
	for end := time.Now().Add(limit); name != "root" && !w.exists(ctx, name); {
		if !time.Now().Before(end) {
			if before != "" {
				return fmt.Errorf("login %s, which the run belongs to, was not there after %d s", name, int(limit.Seconds()))
			}
			w.m.missingLogin, name = name, "root"
			break
		}
		if err := agent.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	w.user = user{name, w.cfg.Home}
	if before == "" {
		w.disk.remember("login", name)
	}
	out, err := w.user.run(ctx, w.cfg.System, Program{Args: []string{"bash", "--norc", "-c", `printf %s "$HOME"`}, Limit: time.Minute})
	if w.home = string(out.Out); err != nil || out.Code != 0 || w.home == "" {
		return fmt.Errorf("login %s cannot run a command", name)
	}
	if info, err := os.Stat(w.home); err != nil || !info.IsDir() {
		w.makeHome(ctx)
	}
	w.disk.runs = filepath.Join(w.home, ".multihost/runs", w.job.Run)
	w.disk.remember("runs", w.disk.runs)
	return nil
}

func (w fetcher) exists(ctx context.Context, login string) bool {
	out, err := w.cfg.System.Run(ctx, Program{Args: []string{"id", "-u", login}, Limit: time.Minute})
	return err == nil && out.Code == 0
}

// makeHome makes the home of the login. A login of OS Login exists from the boot on, but
// without a home: the first SSH login would make it.
func (w fetcher) makeHome(ctx context.Context) {
	run := func(args ...string) (Output, bool) {
		out, err := w.cfg.System.Run(ctx, Program{Args: args, Limit: time.Minute})
		return out, err == nil && out.Code == 0
	}
	if _, ok := run("mkhomedir_helper", w.user.name); ok {
		return
	}
	if group, ok := run("id", "-g", w.user.name); ok {
		run("install", "-d", "-o", w.user.name, "-g", strings.TrimSpace(string(group.Out)), "--", w.home)
	}
}
