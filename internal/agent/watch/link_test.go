//go:build linux

package watch

import (
	"io"
	"os"
	"testing"

	"multihost/internal/testkit"
)

// Another login owns the index and puts links in the place of our files.
func TestNothingIsWrittenThroughALink(t *testing.T) {
	t.Parallel()
	w := newCloud(t, 1).workers[0]
	h := w.host(io.Discard)
	testkit.Must(t, h.prepare())
	victim := w.index("victim")
	testkit.Must(t, os.WriteFile(victim, []byte("old"), 0o600))
	file := w.index(watchFile("train", h.Login))
	testkit.Must(t, os.Symlink(victim, file))
	if lock, err := h.Lock(t.Context(), "train"); err == nil {
		t.Error("locked a link", lock)
	}
	testkit.Must(t, os.Remove(file))
	lock, err := h.Lock(t.Context(), "train")
	testkit.Must(t, err)
	testkit.Must(t, os.Remove(file))
	testkit.Must(t, os.Symlink(victim, file))
	testkit.Must(t, os.Symlink(victim, w.index(leaseFile("train", h.Login))))
	testkit.Must(t, h.writeLease("train", "new"))
	w.power()
	_ = h.watch(w.alive, "train", lock, Defaults)
	if got := readSome(victim); got != "old" {
		t.Errorf("got %q", got)
	}
}
