package qr_test

import (
	"strings"
	"testing"

	"multihost/internal/event"
	"multihost/internal/qr"
)

func TestWhatIsSaidOfAQueuedResource(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		note  event.Note
		level event.Level
		says  string
	}{
		{qr.Deleted("q", true, false), event.Info, "deleted queued resource q"},
		{qr.Deleted("q", true, true), event.Info, "queued resource q is being deleted"},
		{qr.Deleted("q", false, true), event.Warn, "queued resource q is not there"},
		{qr.Rebooted("q", false), event.Info, "rebooted the workers of queued resource q"},
		{qr.Rebooted("q", true), event.Info, "the workers of queued resource q are being rebooted"},
	} {
		if tt.note.Level != tt.level || !strings.Contains(tt.note.Text, tt.says) {
			t.Errorf("%+v, want %q", tt.note, tt.says)
		}
	}
}
