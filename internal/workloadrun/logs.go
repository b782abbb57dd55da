package workloadrun

import (
	"bytes"
	"context"
	"time"

	"multihost/internal/logs"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workloads"
)

// Logs prints the output of one worker in the newest attempt, from the cluster. Use it if the
// logs on this machine are not complete.
func Logs(ctx context.Context, d Deps, name string, o logs.LogOptions, w logs.LogSink) error {
	for _, of := range []struct {
		flag string
		set  bool
	}{{"--all", o.All}, {"--first-failure", o.FirstFailure}, {"--since", !o.Since.IsZero()}, {"--attempt", o.Attempt != 0}} {
		if of.set {
			return &stage.Error{Stage: stage.Input, Text: of.flag + " needs logs that are whole on this machine: run " + name + " was not followed to its end here",
				Advice: "bring them with: multihost attach " + name + " " + d.Cluster.Flags + "; or name one --worker"}
		}
	}
	out := &lines{to: w, id: o.Worker, most: o.Tail, now: d.Of.Clock.Now}
	if o.Follow {
		out.most = -1
	}
	err := d.Cluster.Logs(ctx, name, workloads.LogOptions{Worker: o.Worker, Follow: o.Follow}, out)
	if left := out.flush(); err == nil {
		err = left
	}
	return err
}

// lines passes all output on, or keeps the last lines until flush.
type lines struct {
	to   logs.LogSink
	id   tpu.WorkerID
	most int // number of last lines; negative: all
	now  func() time.Time
	kept []byte
}

func (l *lines) Write(p []byte) (int, error) {
	if l.most < 0 {
		return len(p), l.to.WriteLog(l.id, l.now(), p)
	}
	l.kept = lastLines(append(l.kept, p...), l.most)
	return len(p), nil
}

func (l *lines) flush() error {
	if len(l.kept) > 0 {
		if err := l.to.WriteLog(l.id, l.now(), l.kept); err != nil {
			return err
		}
	}
	return l.to.Flush()
}

// lastLines returns the last n lines of a text. The last line may have no newline.
func lastLines(text []byte, n int) []byte {
	if n == 0 {
		return nil
	}
	end := len(bytes.TrimSuffix(text, []byte("\n")))
	for range n {
		i := bytes.LastIndexByte(text[:end], '\n')
		if i < 0 {
			return text
		}
		end = i
	}
	return text[end+1:]
}
