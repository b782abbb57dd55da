package kubelet

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// LogOptions say which part of a log to read.
type LogOptions struct {
	Follow, Timestamps, Previous bool
	Since                        time.Time // zero: from the beginning
	Tail                         int64     // number of lines; below 0: all
	Limit                        int64     // number of bytes; below 0: all
	Stream                       string    // "": both
}

// ReadLogOptions reads the options in the query of a request. Errors are for the client.
func ReadLogOptions(q url.Values, now time.Time) (LogOptions, error) {
	o := LogOptions{Follow: flag(q, "follow"), Timestamps: flag(q, "timestamps"), Previous: flag(q, "previous"), Tail: -1, Limit: -1}
	number := func(name string, into *int64) error {
		text := q.Get(name)
		if text == "" {
			return nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("%s: Invalid value: %q: must be greater than or equal to 0", name, text)
		}
		*into = n
		return nil
	}
	since := int64(-1)
	if err := errors.Join(number("tailLines", &o.Tail), number("limitBytes", &o.Limit), number("sinceSeconds", &since)); err != nil {
		return o, err
	}
	if since >= 0 {
		o.Since = now.Add(-time.Duration(since) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return o, err
		}
		o.Since = t.Truncate(time.Second) // times of the API have whole seconds
	}
	switch stream := q.Get("stream"); stream {
	case "", "All":
	case "Stdout", "Stderr":
		o.Stream = strings.ToLower(stream)
	default:
		return o, fmt.Errorf("stream: Unsupported value: %q: supported values: \"All\", \"Stderr\", \"Stdout\"", stream)
	}
	return o, nil
}

func flag(q url.Values, name string) bool {
	v, _ := strconv.ParseBool(q.Get(name)) // a text without a truth value means false
	return v
}
