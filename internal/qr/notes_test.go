package qr_test

import (
	"errors"
	"strings"
	"testing"

	"multihost/internal/event"
	"multihost/internal/qr"
	"multihost/internal/tpu"
)

func TestWhatIsSaidOfARequest(t *testing.T) {
	t.Parallel()
	r, active, failed := qr.Request{ID: "q"}, qr.Resource{ID: "q", State: "ACTIVE", Slices: []qr.SliceState{{Name: "q"}}}, errors.New("x")
	for _, tt := range []struct {
		created, async bool
		err            error
		level          event.Level
		says, hint     string
	}{
		{false, false, nil, "", "", ""},
		{false, false, failed, "", "", ""},
		{true, false, nil, event.Info, "created queued resource q, state ACTIVE", "multihost qr wait q; its slices are billed until: multihost qr delete q --force"},
		{true, true, nil, event.Info, "asked for queued resource q", "multihost qr show q; its slices are billed until"},
		{true, false, failed, event.Warn, "queued resource q exists, state ACTIVE, and is billed", "multihost qr delete q --force"},
	} {
		n, said := qr.Asked(r, active, tt.created, tt.async, tt.err)
		if said != (tt.says != "") || said && n.Level != tt.level || !strings.Contains(n.Text, tt.says) || !strings.Contains(n.Hint, tt.hint) {
			t.Errorf("created %t, async %t, %v: %+v, %t", tt.created, tt.async, tt.err, n, said)
		}
	}
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
		{qr.Answering("q", []tpu.Slice{{Workers: make([]tpu.Worker, 1)}}), event.Info, "queued resource q is ready: 1 slice, 1 worker answers"},
		{qr.Answering("q", []tpu.Slice{{Workers: make([]tpu.Worker, 4)}, {Workers: make([]tpu.Worker, 4)}}), event.Info, "2 slices, 8 workers answer"},
	} {
		if tt.note.Level != tt.level || !strings.Contains(tt.note.Text, tt.says) {
			t.Errorf("%+v, want %q", tt.note, tt.says)
		}
	}
}
