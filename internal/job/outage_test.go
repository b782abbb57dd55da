package job

import (
	"errors"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

func TestAWorkerIsNotLostForWantOfALogin(t *testing.T) {
	for _, tt := range []struct {
		story string
		err   error
		lost  bool
	}{
		{"the login has ended", &gcp.CredentialsError{Err: errors.New("invalid_rapt"), Expired: true}, false},
		{"the worker is away", errors.New("connection refused"), true},
	} {
		clock := testkit.NewJumpClock()
		f := &following{Deps: &Deps{Clock: clock, Sink: event.Discard}, team: &team{ids: []tpu.WorkerID{{}}}, patience: Patience{Lost: 10 * time.Minute}}
		var o outage
		gaveUp := false
		for range 30 {
			o.lost(f, 0, func(error) { gaveUp = true }, tt.err)
			<-clock.After(time.Minute)
		}
		if gaveUp != tt.lost {
			t.Errorf("%s: given up = %v, want %v", tt.story, gaveUp, tt.lost)
		}
	}
}
