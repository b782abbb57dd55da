package kube

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"
)

// LogOptions choose what Logs returns.
type LogOptions struct {
	Container  string // "": the only one
	Follow     bool   // wait for more text until the container has ended
	Timestamps bool   // begin each line with the time at which the node received it
	Since      time.Time
	TailLines  int64 // 0: all
	Previous   bool  // log of the container before its last restart
}

// Logs opens the log of a pod on the node, with stdout and stderr in one. The log begins at
// the whole second of Since. io.EOF says that the container has ended or, without Follow,
// that there is no more text now. Any other error of the reader says that the connection
// broke, or that ctx has ended. The caller closes the result.
func (c *Client) Logs(ctx context.Context, namespace, pod string, l LogOptions) (io.ReadCloser, error) {
	namespace = namespaceOf(namespace, c)
	r := c.rest.Get().AbsPath("/api/v1/namespaces", namespace, "pods", pod, "log")
	if l.Container != "" {
		r.Param("container", l.Container)
	}
	for name, set := range map[string]bool{"follow": l.Follow, "timestamps": l.Timestamps, "previous": l.Previous} {
		if set {
			r.Param(name, "true")
		}
	}
	if !l.Since.IsZero() {
		r.Param("sinceTime", l.Since.UTC().Truncate(time.Second).Format(time.RFC3339))
	}
	if l.TailLines > 0 {
		r.Param("tailLines", strconv.FormatInt(l.TailLines, 10))
	}
	what := fmt.Sprintf("read the log of pod %q", namespace+"/"+pod)
	stream, err := r.Stream(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
		return nil, c.fail(what, err, 1)
	}
	return stream, nil
}
