package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// A Client calls Google's APIs with the VM's token. It is safe for concurrent use.
type Client struct {
	Metadata  *Metadata
	Transport http.RoundTripper
	Held      string        // token for all calls; "": the client asks the metadata server for each call
	Limit     time.Duration // longest time of a whole call; 0: 1 min
	Pause     time.Duration // longest time without a byte sent or received; 0: 1 min
}

// A Call is one request to an API.
type Call struct {
	Method, URL string
	Type        string
	Body        io.Reader // nil: no body
	Size        int64     // bytes in Body
	Into        io.Writer // gets the body of a successful answer; nil: Answer has the body
}

// An Answer is the answer to a successful call.
type Answer struct {
	Body   []byte
	Header http.Header
}

// Do makes one call. An incomplete answer is an error. A refusal is a *StatusError.
func (c *Client) Do(ctx context.Context, call Call) (Answer, error) {
	token := c.Held
	if token == "" {
		var err error
		if token, err = c.Metadata.Token(ctx); err != nil {
			return Answer{}, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, orMinute(c.Limit), fmt.Errorf("it took longer than %v", orMinute(c.Limit)))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	pause := orMinute(c.Pause)
	idle := time.AfterFunc(pause, func() { stop(fmt.Errorf("nothing came for %v", pause)) })
	defer idle.Stop()
	answer, err := c.do(ctx, call, token, func() { idle.Reset(pause) })
	if cause := context.Cause(ctx); err != nil && cause != nil && StatusOf(err) == 0 {
		err = noAnswer(cause)
	}
	return answer, err
}

func (c *Client) do(ctx context.Context, call Call, token string, alive func()) (Answer, error) {
	var body io.Reader
	if call.Body != nil && call.Size > 0 {
		body = &moved{call.Body, alive, new(atomic.Bool)}
	}
	req, err := http.NewRequestWithContext(ctx, call.Method, call.URL, body)
	if err != nil {
		return Answer{}, err
	}
	req.ContentLength = call.Size
	if call.Type != "" {
		req.Header.Set("Content-Type", call.Type)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client(c.Transport).Do(req)
	if err != nil {
		return Answer{}, noAnswer(err)
	}
	defer resp.Body.Close()
	alive()
	from := &moved{resp.Body, alive, new(atomic.Bool)}
	if resp.StatusCode/100 == 2 && call.Into != nil {
		_, err = io.Copy(call.Into, from)
		if err != nil && !from.broken.Load() {
			return Answer{}, fmt.Errorf("write the answer: %w", err)
		}
		if err != nil {
			err = noAnswer(err)
		}
		return Answer{Header: resp.Header}, err
	}
	var text bytes.Buffer
	if n, err := io.Copy(&text, io.LimitReader(from, answerLimit+1)); err != nil {
		return Answer{}, noAnswer(err)
	} else if n > answerLimit {
		return Answer{}, noAnswer(errors.New("it is too long"))
	}
	if resp.StatusCode/100 != 2 {
		return Answer{}, refusal(resp.StatusCode, text.Bytes())
	}
	return Answer{text.Bytes(), resp.Header}, nil
}

func orMinute(d time.Duration) time.Duration {
	if d == 0 {
		return time.Minute
	}
	return d
}

// moved counts the reads that returned bytes.
type moved struct {
	io.Reader
	alive  func()
	broken *atomic.Bool // the reader failed
}

func (m *moved) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	if n > 0 {
		m.alive()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		m.broken.Store(true)
	}
	return n, err
}
