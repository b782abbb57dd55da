package gcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/api/googleapi"

	"multihost/internal/event"
)

// tryLimit limits one try of a call. Without it, an answer that stops half-way would block
// the call for ever. The longest usual call of these APIs, a list page of a large project,
// takes a few seconds.
const tryLimit = 90 * time.Second

// retryPause is the pause between tries, before jitter.
var retryPause = Backoff{First: 400 * time.Millisecond, Max: 20 * time.Second, Factor: 2}

// Do runs call, which makes one request. It retries temporary failures: rate limits (429),
// 500, 502, 503, 504, 408, connections that break or time out, and resources that are not
// ready yet according to the API. Pauses grow, have jitter, and are never shorter than the
// server's Retry-After. Do gives up when the next pause would exceed Config.MaxRetry.
//
// If credentials that had worked are refused, Do reports it once, with the command that
// renews them. It then retries for up to Config.LoginWait; see Unattended.
//
// The parameter what describes the work in errors and events: `create network "mtu9k"`. A
// failure of the API is an *Error that wraps the client library's error. When ctx ends, Do
// returns its cause at once, without another call and without a report. A call that changes
// something must be safe to repeat: give it a request id that stays the same over the
// tries.
func (c *Client) Do(ctx context.Context, what string, call func(ctx context.Context) error) error {
	start := c.cfg.Clock.Now()
	pause := retryPause.First
	var renewal loginWait
	for try := 1; ; try++ {
		if ctx.Err() != nil {
			return prefix(what, stoppedBy(ctx))
		}
		err := c.try(ctx, what, call)
		if err == nil {
			c.login.works()
			return nil
		}
		if ctx.Err() != nil {
			return prefix(what, stoppedBy(ctx))
		}
		e := newError(what, err, try)
		if c.refused(e) {
			delay, ok := renewal.next(ctx, c.cfg)
			if !e.Lapsed || !ok {
				return e
			}
			if err := Sleep(ctx, c.cfg.Clock, delay); err != nil {
				return prefix(what, err)
			}
			start = c.cfg.Clock.Now() // the wait for a login does not count
			continue
		}
		if strangeServer(err) && c.login.hasWorked() { // a laptop may now be in a network with a login page
			e.Class = Unavailable
		} else if !retryable(err) {
			return e
		}
		delay := jitter(pause)
		pause = retryPause.next(pause)
		if asked := retryAfter(err, c.cfg.Clock.Now()); asked > delay {
			delay = asked + jitter(retryPause.First)
			e.RetryAfter = asked
		}
		if c.cfg.Clock.Now().Sub(start)+delay > c.cfg.MaxRetry {
			return e
		}
		c.sayRetry(e, try, delay, c.cfg.Clock.Now().Sub(start))
		if err := Sleep(ctx, c.cfg.Clock, delay); err != nil {
			return prefix(what, err)
		}
	}
}

// refused reports whether a call failed because of refused or missing credentials. It
// updates the state of the login.
func (c *Client) refused(e *Error) bool {
	if e.Class != Unauthenticated {
		if e.HTTP != 0 { // the API gives this answer only to valid credentials
			c.login.works()
		}
		return false
	}
	e.Lapsed = c.login.ceased(e, c.remedy(e))
	return true
}

// remedy returns the command that renews the credentials in err.
func (c *Client) remedy(err error) string {
	var ce *CredentialsError
	if errors.As(err, &ce) {
		return ce.Hint()
	}
	return orDefault(c.tokens.lastRemedy(), remedyUser)
}

// A loginWait is one call's wait for new credentials.
type loginWait struct {
	begin time.Time
	pause time.Duration
}

// next returns the pause before the next try. ok is false if the wait is over or must
// not begin.
func (w *loginWait) next(ctx context.Context, cfg Config) (pause time.Duration, ok bool) {
	now := cfg.Clock.Now()
	if w.begin.IsZero() {
		w.begin, w.pause = now, loginPause.First
	}
	pause, w.pause = w.pause, loginPause.next(w.pause)
	return pause, ctx.Value(unattended{}) == nil && now.Sub(w.begin)+pause <= cfg.LoginWait
}

// slowAnswer is the duration of a call after which the user is told of the wait.
const slowAnswer = 30 * time.Second

// try runs call once, for at most tryLimit. It reports a call that takes slowAnswer.
func (c *Client) try(ctx context.Context, what string, call func(ctx context.Context) error) error {
	tryCtx, cancel := context.WithTimeoutCause(ctx, tryLimit, errNoAnswer)
	defer cancel()
	defer time.AfterFunc(slowAnswer, func() { c.sayWaiting(what) }).Stop()
	err := call(tryCtx)
	if err != nil && ctx.Err() == nil && context.Cause(tryCtx) == errNoAnswer {
		return errNoAnswer
	}
	return err
}

var errNoAnswer = fmt.Errorf("no complete answer in %v", tryLimit)

// sayWaiting reports a call without an answer, for all calls of c together at most every half
// minute, because an API that is slow for one call is slow for all.
func (c *Client) sayWaiting(what string) {
	now, told := time.Now(), c.waiting.Load()
	if told != nil && now.Sub(*told) < slowAnswer || !c.waiting.CompareAndSwap(told, &now) {
		return
	}
	event.Notef(c.cfg.Sink, event.Warn, "", "%s: the API has not answered for %v; waiting up to %v", what, slowAnswer, tryLimit)
}

// sayRetry reports a retry. The first two are only debug messages, because they are
// common and usually over before anybody has read the line. waited is the time since the
// first try.
func (c *Client) sayRetry(e *Error, try int, delay, waited time.Duration) {
	level := event.Debug
	if try >= 3 || waited >= slowAnswer {
		level = event.Warn
	}
	event.Notef(c.cfg.Sink, level, "", "%v; try %d in %v", e, try+1, delay.Round(100*time.Millisecond))
}

// jitter returns a random time between half of d and d, so that clients that failed at the
// same moment retry at different moments.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}

// retryAfter returns the pause that the server asked for, or 0.
func retryAfter(err error, now time.Time) time.Duration {
	var ge *googleapi.Error
	if !errors.As(err, &ge) {
		return 0
	}
	if v := strings.TrimSpace(ge.Header.Get("Retry-After")); v != "" {
		if s, err := strconv.Atoi(v); err == nil && s >= 0 {
			return time.Duration(s) * time.Second
		}
		if at, err := http.ParseTime(v); err == nil && at.After(now) {
			return at.Sub(now)
		}
	}
	for _, d := range ge.Details {
		m, ok := d.(map[string]any)
		if !ok || detailType(m) != "RetryInfo" {
			continue
		}
		if s, ok := m["retryDelay"].(string); ok {
			if d, err := time.ParseDuration(s); err == nil && d > 0 {
				return d
			}
		}
	}
	return 0
}

// prefix puts the text what in front of err, unless err already begins with this text.
func prefix(what string, err error) error {
	var e *Error
	if errors.As(err, &e) && e.What == what {
		return err
	}
	if strings.HasPrefix(err.Error(), what+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}
