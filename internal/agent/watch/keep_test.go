package watch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// If a watch dies at once, Keep restarts it after growing pauses. If it has lived for long,
// Keep restarts it without delay.
func TestKeep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lives := []time.Duration{0, 0, 0, 0, 0, 0, 0, time.Hour, time.Minute, 0}
		var pauses []time.Duration
		var ended time.Time
		n, said := 0, 0
		err := Keep(t.Context(), func(context.Context) error {
			if n > 0 {
				pauses = append(pauses, time.Since(ended))
			}
			time.Sleep(lives[n])
			ended = time.Now()
			if n++; n == len(lives) {
				return nil
			}
			return errors.New("signal: killed")
		}, func(string) { said++ })
		s := time.Second
		if want := []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, s, 2 * s}; err != nil || !slices.Equal(pauses, want) || said != len(want) {
			t.Errorf("got %v, pauses %v, said %d times, want %v", err, pauses, said, want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := Keep(ctx, func(context.Context) error { return errors.New("no") }, func(string) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
