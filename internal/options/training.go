package options

import (
	"fmt"
	"time"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/follow"
	"multihost/internal/metrics"
	"multihost/internal/training"
	"multihost/internal/xla"

	"github.com/urfave/cli/v2"
)

func patternFlag() cli.Flag {
	return &cli.StringFlag{Name: "metrics-regex", Usage: "`REGEX` for the step lines of a trainer other than MaxText; its groups: step, and any of seconds, milliseconds, steps_per_second, tflops, tokens, mfu_percent, loss"}
}

func pattern(c *Call) *metrics.Pattern {
	text := c.String("metrics-regex")
	if text == "" {
		return nil
	}
	pattern, err := metrics.ParsePattern(text)
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--metrics-regex: %w", err)}, "metrics-regex")
	}
	return pattern
}

// Watch reads WatchingOptions.
func Watch(c *Call) follow.WatchOptions {
	o := follow.WatchOptions{OnStall: follow.OnStall(c.String("on-stall")), Pattern: pattern(c)}
	c.OneOf("on-stall", string(o.OnStall), string(follow.StallReport), string(follow.StallDump), string(follow.StallRestart), string(follow.StallStop))
	switch text := c.String("stall-timeout"); text {
	case "auto":
	case "off":
		o.StallTimeout = -1
	default:
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--stall-timeout=%s: it is auto, off or a time", text), Advice: "times are written 90s, 10m or 2h"}, "stall-timeout")
		}
		o.StallTimeout = d
	}
	return o
}

// TrainingFlags set how to read the logs of a run.
func TrainingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "compare", Usage: "compare with the published figures `NAME`"},
		&cli.IntFlag{Name: "skip-steps", Value: metrics.DefaultSkip, Usage: "leave the first `N` steps of each worker out of medians"},
		&cli.StringFlag{Name: "log-dir", Usage: "`DIR` with the workers' logs, if this machine has no record of the run"},
		GenerationFlag(),
		patternFlag(),
	}
}

// Training reads TrainingFlags and the name of the run, which may be missing with
// --log-dir.
func Training(c *Call, ownDir string) (run, stateDir string, o training.TrainingOptions) {
	o = training.TrainingOptions{LogDir: c.String("log-dir"), Type: c.String("tpu-type"), Skip: c.Int("skip-steps"), Compare: c.String("compare"), Pattern: pattern(c)}
	run = o.LogDir
	if o.LogDir == "" || len(c.Words) > 0 {
		run = RunWord(c)
		if err := config.CheckRunName(run); err != nil {
			c.Refuse(&cmdline.UsageError{Err: err}, cmdline.Word)
		}
	}
	c.NotNegative(c, "skip-steps")
	if o.Skip == 0 {
		o.Skip = -1 // -1: skip none; 0 would mean the default
	}
	if o.Compare != "" {
		if err := metrics.CheckPublished(o.Compare); err != nil {
			c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--compare: %w", err)}, "compare")
		}
	}
	if stateDir = c.String("state-dir"); stateDir == "" {
		stateDir = ownDir
	}
	return run, stateDir, o
}

// GenerationFlag names a generation of TPUs. See Generation.
func GenerationFlag() cli.Flag {
	return &cli.StringFlag{Name: "tpu-type", Aliases: []string{"TPU_TYPE"}, Usage: "accelerator `TYPE` such as v5litepod-16, its generation, or gpu"}
}

// Generation reads --tpu-type, which may be empty.
func Generation(c *Call, catalogue *xla.Catalogue) string {
	text := c.String("tpu-type")
	if text == "" {
		return ""
	}
	g, err := catalogue.Generation(text)
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--tpu-type: %w", err)}, "tpu-type")
	}
	return g
}
