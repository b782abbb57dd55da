package main

import (
	"context"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/notify"
	"multihost/internal/options"
	"multihost/internal/stage"
)

// notifyOptions completes the options of notifications with what the command line does not
// say.
func (s *session) notifyOptions(c *options.Call, run string, env []config.EnvVar) notify.Options {
	o := options.Notify(c, run, env)
	o.Sink, o.Clock = s.sink, gcp.SystemClock
	if s.cloud != nil {
		o.Project, o.Zone = s.cloud.Project(), s.cloud.Zone()
	}
	return o
}

// notified calls work, which runs a command, and sends the notifications of o.
func notified(c *call, o notify.Options, d *deps, work func() (stage.Outcome, error)) error {
	n := notify.New(o)
	if n != nil {
		d.Sink = event.Tee(d.Sink, n)
	}
	out, err := work()
	err = outcome(out, err)
	why := ""
	switch {
	case err != nil:
		why = err.Error()
	case out.Detached:
		why = "the run goes on without this machine: multihost attach " + o.Run
	}
	leave, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends after the notifier's Close below
		select {
		case <-c.leave:
			cancel()
		case <-leave.Done():
		}
	}()
	n.Close(leave, exitCode(err), why)
	return err
}
