package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/event"
	"multihost/internal/options"
	"multihost/internal/xla"
)

// exitFindings is the exit status of a check that has found an error.
const exitFindings = 1

func xlaCommand() *cli.Command {
	return group(cli.Command{
		Name:  "xla",
		Usage: "look up XLA flags and presets, and check a text of flags",
		Subcommands: []*cli.Command{
			xlaFlagsCommand(), xlaPresetsCommand(), xlaCheckCommand(),
		},
	})
}

// show prints one result, without a session.
func show(c *call, r event.Result) error {
	view, err := bareView(c)
	if err != nil {
		return err
	}
	defer view.Close()
	view.Emit(r)
	return nil
}

func xlaFlagsCommand() *cli.Command {
	return command(cli.Command{
		Name:      "flags",
		Usage:     "list the flags of the catalogue, or show one and where it is used",
		ArgsUsage: "[NAME]",
		Description: `Lists the flags of TPUs and GPUs that MaxText, Google's recipes and JAX's guide
use. NAME is a flag, or a part of some names:

  multihost xla flags xla_tpu_scoped_vmem_limit_kib
  multihost xla flags sparse_core

A ? after a type means that no document describes the flag: the type is a guess
from its uses.`,
		Action: act(func(c *call) error {
			catalogue := xla.Load()
			flags := catalogue.Flags()
			if len(c.Words) > 0 || c.Dashed {
				name := c.OneWord("name", "")
				f, err := catalogue.Lookup(name)
				if err == nil {
					return show(c, event.Result{Name: "xla_flag", Text: f.Text(), Data: f})
				}
				flags = slices.DeleteFunc(flags, func(f xla.Flag) bool { return !strings.Contains(f.Name, strings.ToLower(name)) })
				if len(flags) == 0 {
					c.Refuse(asUsage(err), cmdline.Word)
				}
			}
			return show(c, event.Result{Name: "xla_flags", Text: xla.FlagTable(flags), Data: flags})
		}),
	}, exitOK, exitUsage)
}

func xlaPresetsCommand() *cli.Command {
	return command(cli.Command{
		Name:      "presets",
		Usage:     "list groups of flags and presets, or show one",
		ArgsUsage: "[NAME]",
		Description: `Lists what --xla-preset of run and job takes: groups of flags, and presets, which
have the flags that one launcher sets. --tpu-type shows only those of its
generation; * marks the groups that MaxText's tuning guide recommends for it.

  multihost xla presets --tpu-type=v5p-128
  multihost xla presets v5p/32b

If the source of a preset has a mistake, the preset corrects it and shows the
original.`,
		Flags: []cli.Flag{options.GenerationFlag()},
		Action: act(func(c *call) error {
			catalogue := xla.Load()
			g := options.Generation(&c.Call, catalogue)
			if len(c.Words) == 0 && !c.Dashed {
				list := xla.ListOf(catalogue, g)
				return show(c, event.Result{Name: "xla_presets", Text: list.Text(), Data: list})
			}
			name := c.OneWord("name", "")
			if group, err := catalogue.Group(name); err == nil {
				return show(c, event.Result{Name: "xla_group", Text: xla.GroupText(catalogue, group, g), Data: group})
			}
			preset, err := catalogue.Preset(name, g)
			if err != nil {
				c.Refuse(asUsage(err), cmdline.Word)
			}
			if err := ready(c); err != nil {
				return err
			}
			return show(c, event.Result{Name: "xla_preset", Text: xla.PresetText(catalogue, preset), Data: preset})
		}),
	}, exitOK, exitUsage)
}

func xlaCheckCommand() *cli.Command {
	c := command(cli.Command{
		Name:      "check",
		Usage:     "say what is wrong with a text of flags, and what to type instead",
		ArgsUsage: "'FLAGS'",
		Description: `Checks flags as they stand in LIBTPU_INIT_ARGS or, with --tpu-type=gpu, in
XLA_FLAGS. FLAGS may begin with dashes; several words are one text. Without
--tpu-type, it does not check what depends on the generation.

  multihost xla check '--xla_tpu_scoped_vmem_limit_kib=98304' --tpu-type=v5p-128

A flag that the catalogue does not have is called unknown. It
may be newer than the catalogue, so it is an error only with --strict.`,
		Flags: []cli.Flag{options.GenerationFlag(), &cli.BoolFlag{Name: "strict", Usage: "treat an unknown flag as an error"}},
		Action: act(func(c *call) error {
			words := append(slices.Clone(c.Words), c.Argv...)
			if len(words) == 0 {
				c.Refuse(&usageError{Err: fmt.Errorf("multihost xla check needs the flags"), Advice: "type: multihost xla check 'FLAGS'"}, cmdline.Word)
			}
			catalogue := xla.Load()
			g := options.Generation(&c.Call, catalogue)
			if err := ready(c); err != nil {
				return err
			}
			r := xla.CheckText(catalogue, strings.Join(words, " "), g, c.Bool("strict"))
			if err := show(c, event.Result{Name: "xla_check", Text: r.String(), Data: r}); err != nil {
				return err
			}
			if !r.OK {
				return &statusError{exitFindings}
			}
			return nil
		}),
	}, exitOK, exitUsage)
	c.Description = strings.Replace(c.Description, "   0      success\n", fmt.Sprintf("   0      no error; there may be warnings and unknown flags\n   %-5d  an error was found; with --strict also an unknown flag\n", exitFindings), 1)
	return c
}
