package options

import (
	"fmt"
	"strings"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/gcp"
	"multihost/internal/logs"
	"multihost/internal/tpu"
)

// Logs reads which logs to print, and which part of them.
func Logs(c *Call, inJSON bool) logs.LogOptions {
	o := logs.LogOptions{
		All: c.Bool("all"), FirstFailure: c.Bool("first-failure"), Attempt: c.Int("attempt"), Follow: c.Bool("follow"), Lost: c.Duration("lost-timeout"),
		Tail: -1, Times: c.Bool("timestamps"),
	}
	var err error
	if o.Worker, err = tpu.ParseWorkerID(c.String("worker")); err != nil {
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--worker: %w", err)}, "worker")
	}
	c.NotNegative(c, "lost-timeout", "attempt", "tail")
	if c.IsSet("tail") {
		o.Tail = c.Int("tail")
	}
	if text := c.String("since"); text != "" {
		if o.Since, err = config.ParseSince(text, gcp.SystemClock.Now()); err != nil {
			c.Refuse(&cmdline.UsageError{Err: err, Advice: "such as --since=10m, --since=15:04, --since=2006-01-02 or --since=2006-01-02T15:04:05Z"}, "since")
		}
	}
	_, typed := c.Typed["worker"]
	o.Named = typed || inJSON
	var chosen []string
	for _, flag := range []string{"worker", "all", "first-failure", "verify"} {
		if flag == "worker" && typed || flag != "worker" && c.Bool(flag) {
			chosen = append(chosen, flag)
		}
	}
	if len(chosen) > 1 {
		c.Refuse(cmdline.Usagef("give only one of --%s", strings.Join(chosen, " and --")), chosen...)
	}
	for _, flag := range []string{"attempt", "follow", "lost-timeout", "since", "tail", "timestamps"} {
		switch _, typed := c.Typed[flag]; {
		case typed && c.Bool("verify"):
			c.Refuse(cmdline.Usagef("--%s: it does nothing with --verify", flag), flag, "verify")
		case typed && flag == "lost-timeout" && !c.Bool("follow"):
			c.Refuse(cmdline.Usagef("--lost-timeout: it does nothing without --follow"), flag)
		}
	}
	return o
}
