package gcp

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/googleapi"

	"multihost/internal/event"
)

// Several calls wait at the same time. One line reports all of them, and the next line
// comes half a minute later at the earliest.
func TestASlowAnswerIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		c := New(Config{DisableAuth: true, Clock: SystemClock, Sink: event.SinkFunc(func(e event.Event) {
			if n, ok := e.(event.Note); ok && n.Level == event.Warn {
				said = append(said, n.Text)
			}
		})})
		slow := func(d time.Duration) {
			err := c.Do(t.Context(), "read m", func(context.Context) error { time.Sleep(d); return nil })
			if err != nil {
				t.Error(err)
			}
		}
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if len(said) != len(want) || len(want) > 0 && !strings.Contains(said[0], want[0]) {
				t.Errorf("%s: %q, want %q", when, said, want)
			}
			said = nil
		}
		slow(slowAnswer / 2)
		expect("a call that is answered")
		for range 3 {
			go slow(slowAnswer + time.Second)
		}
		slow(slowAnswer + time.Second)
		expect("four at once", "read m: the API has not answered for 30s; waiting up to 1m30s")
		go slow(slowAnswer + time.Second)
		time.Sleep(slowAnswer / 2)
		go slow(slowAnswer + time.Second)
		time.Sleep(slowAnswer)
		expect("two at different moments", "read m: the API has not answered")
		slow(slowAnswer + time.Second)
		expect("half a minute later", "read m: the API has not answered")

		tries := 0
		err := c.Do(t.Context(), "read m", func(context.Context) error {
			if tries++; tries == 3 {
				return nil
			}
			time.Sleep(slowAnswer / 2)
			return &googleapi.Error{Code: http.StatusServiceUnavailable, Message: "busy"}
		})
		if err != nil {
			t.Error(err)
		}
		expect("the second failure after half a minute", "busy")
	})
}
