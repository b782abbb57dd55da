package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/event"
	"multihost/internal/xla"
)

// exitFindings is the exit status if a check found an error.
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

func generationFlag() cli.Flag {
	return &cli.StringFlag{Name: "tpu-type", Aliases: []string{"TPU_TYPE"}, Usage: "accelerator `TYPE` such as v5litepod-16, its generation, or gpu"}
}

// generation reads --tpu-type, which may be empty.
func generation(c *call, catalogue *xla.Catalogue) string {
	text := c.String("tpu-type")
	if text == "" {
		return ""
	}
	g, err := catalogue.Generation(text)
	if err != nil {
		c.Refuse(&usageError{Err: fmt.Errorf("--tpu-type: %w", err), Advice: hintOf(err)}, "tpu-type")
	}
	return g
}

// show prints one result; it needs no session.
func show(c *call, r event.Result) error {
	view, err := bareView(c)
	if err != nil {
		return err
	}
	defer view.Close()
	view.Emit(r)
	return nil
}

func asNameError(err error) error { return asUsage(err) }

func xlaFlagsCommand() *cli.Command {
	return command(cli.Command{
		Name:      "flags",
		Usage:     "list the flags of the catalogue, or show one and where it is used",
		ArgsUsage: "[NAME]",
		Description: `Lists the flags of TPUs and GPUs that MaxText, Google's recipes and JAX's guide
use. NAME is a flag, or a part of some names:

  multihost xla flags xla_tpu_scoped_vmem_limit_kib
  multihost xla flags sparse_core

A type with a ? is read off the uses of a flag that no document describes.`,
		Action: act(func(c *call) error {
			catalogue := xla.Load()
			flags := catalogue.Flags()
			if len(c.Words) > 0 || c.Dashed {
				name := c.OneWord("name", "")
				f, err := catalogue.Lookup(name)
				if err == nil {
					return show(c, event.Result{Name: "xla_flag", Text: flagText(f), Data: f})
				}
				flags = slices.DeleteFunc(flags, func(f xla.Flag) bool { return !strings.Contains(f.Name, strings.ToLower(name)) })
				if len(flags) == 0 {
					c.Refuse(asNameError(err), cmdline.Word)
				}
			}
			var b strings.Builder
			for _, f := range flags {
				fmt.Fprintf(&b, "%-62s %-9s %s\n", f.Name, typeText(f), meaning(f))
			}
			return show(c, event.Result{Name: "xla_flags", Text: b.String(), Data: flags})
		}),
	}, exitOK, exitUsage)
}

func typeText(f xla.Flag) string {
	if f.Documented {
		return f.Type
	}
	return f.Type + "?"
}

func meaning(f xla.Flag) string {
	if f.Retired == nil {
		return f.Meaning
	}
	if f.Retired.Instead == "" {
		return f.Meaning + " (retired)"
	}
	return f.Meaning + " (retired: " + f.Retired.Instead + ")"
}

func flagText(f xla.Flag) string {
	var b strings.Builder
	fmt.Fprintf(&b, "--%s\n", f.Name)
	field := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "  %-9s %s\n", name, text)
		}
	}
	field("meaning", f.Meaning)
	kind := f.Type
	if !f.Documented {
		kind += ", as far as its uses show: no document describes it"
	}
	field("type", kind)
	field("goes to", f.Platform.Variable())
	if r := f.Retired; r != nil {
		instead := "nothing"
		if r.Instead != "" {
			instead = "--" + r.Instead
		}
		field("retired", "type instead: "+instead+" ("+r.Why+")")
	}
	field("groups", strings.Join(f.Groups, ", "))
	const most = 12
	presets := f.Presets
	more := ""
	if len(presets) > most {
		presets, more = presets[:most], fmt.Sprintf(" and %d more", len(presets)-most)
	}
	field("presets", strings.Join(presets, ", ")+more)
	return b.String()
}

func xlaPresetsCommand() *cli.Command {
	return command(cli.Command{
		Name:      "presets",
		Usage:     "list groups of flags and presets, or show one",
		ArgsUsage: "[NAME]",
		Description: `Lists what --xla-preset of run and job takes: groups of flags, and presets that
are what one launcher sets. With --tpu-type only those of its generation; * marks
the groups that MaxText's tuning guide recommends for it.

  multihost xla presets --tpu-type=v5p-128
  multihost xla presets v5p/32b

Presets whose source has a fault are corrected; the original is shown with them.`,
		Flags: []cli.Flag{generationFlag()},
		Action: act(func(c *call) error {
			catalogue := xla.Load()
			g := generation(c, catalogue)
			if len(c.Words) == 0 && !c.Dashed {
				list := presetsOf(catalogue, g)
				return show(c, event.Result{Name: "xla_presets", Text: list.text(g), Data: list})
			}
			name := c.OneWord("name", "")
			if group, err := catalogue.Group(name); err == nil {
				return show(c, event.Result{Name: "xla_group", Text: groupText(catalogue, group, g), Data: group})
			}
			preset, err := catalogue.Preset(name, g)
			if err != nil {
				c.Refuse(asNameError(err), cmdline.Word)
			}
			if err := ready(c); err != nil {
				return err
			}
			return show(c, event.Result{Name: "xla_preset", Text: presetText(catalogue, preset), Data: preset})
		}),
	}, exitOK, exitUsage)
}

// presetList is the result of xla presets.
type presetList struct {
	Generation  string       `json:"generation,omitempty"`
	Recommended []string     `json:"recommended,omitempty"`
	Groups      []xla.Group  `json:"groups"`
	Presets     []xla.Preset `json:"presets"`
	Sources     []string     `json:"sources"`
}

func presetsOf(catalogue *xla.Catalogue, generation string) presetList {
	list := presetList{Generation: generation, Groups: catalogue.Groups(), Presets: catalogue.Presets(), Sources: catalogue.Sources()}
	if generation == "" {
		return list
	}
	list.Groups = slices.DeleteFunc(list.Groups, func(g xla.Group) bool { return g.Historical || !g.Fits(generation) })
	list.Presets = slices.DeleteFunc(list.Presets, func(p xla.Preset) bool { return p.Generation != generation })
	for _, g := range list.Groups {
		if g.Recommended(generation) {
			list.Recommended = append(list.Recommended, g.Name)
		}
	}
	return list
}

func (l presetList) text(generation string) string {
	var b strings.Builder
	group := func(g xla.Group) {
		mark := " "
		if slices.Contains(l.Recommended, g.Name) {
			mark = "*"
		}
		about := g.About
		if generation == "" && len(g.Best) > 0 {
			about += " (recommended for " + strings.Join(g.Best, ", ") + ")"
		}
		fmt.Fprintf(&b, "%s %-50s %s\n", mark, g.Name, about)
	}
	b.WriteString("groups of flags")
	if len(l.Recommended) > 0 {
		fmt.Fprintf(&b, " (* recommended for %s by MaxText's tuning guide)", generation)
	}
	b.WriteString(":\n")
	for _, g := range l.Groups {
		if !g.Historical {
			group(g)
		}
	}
	b.WriteString("\npresets:\n")
	for _, p := range l.Presets {
		count := "1 flag"
		if len(p.Flags) != 1 {
			count = fmt.Sprintf("%d flags", len(p.Flags))
		}
		if p.Corrected() {
			count += ", corrected"
		}
		fmt.Fprintf(&b, "  %-62s %-16s %s\n", p.Name, p.Model, count)
	}
	if slices.ContainsFunc(l.Groups, func(g xla.Group) bool { return g.Historical }) {
		b.WriteString("\ngroups of earlier versions, not for new work:\n")
		for _, g := range l.Groups {
			if g.Historical {
				group(g)
			}
		}
	}
	b.WriteString("\nsources:\n")
	for _, s := range l.Sources {
		b.WriteString("  " + s + "\n")
	}
	return b.String()
}

func groupText(catalogue *xla.Catalogue, g xla.Group, generation string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", g.Name, g.About)
	field := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "  %-12s %s\n", name, text)
		}
	}
	field("source", g.Source)
	field("used on", strings.Join(g.On, ", "))
	field("recommended", strings.Join(g.Best, ", "))
	field("note", g.Note)
	if g.Historical {
		field("history", "a group of an earlier version, not for new work")
	}
	bodyText(&b, g.Body, g.Platform.Variable())
	if generation != "" && !g.Fits(generation) {
		field("warning", "nothing uses it on "+generation)
	}
	if !g.Parameter && generation != "" {
		findingsText(&b, catalogue.Check(strings.Join(g.Flags, " "), generation))
	}
	name := g.Name
	if g.Parameter && !strings.Contains(name, "=") {
		name += "=VALUE"
	}
	fmt.Fprintf(&b, "use: --xla-preset=%s\n", name)
	return b.String()
}

func presetText(catalogue *xla.Catalogue, p xla.Preset) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s on %s\n", p.Name, p.Model, p.Generation)
	fmt.Fprintf(&b, "  %-12s %s\n", "source", p.Source)
	if len(p.Groups) > 0 {
		fmt.Fprintf(&b, "  %-12s %s\n", "groups", strings.Join(p.Groups, " + "))
	}
	if p.Note != "" {
		fmt.Fprintf(&b, "  %-12s %s\n", "note", p.Note)
	}
	variable := xla.LibtpuInitArgs
	if p.Generation == xla.GPU {
		variable = xla.XLAFlags
	}
	bodyText(&b, p.Body, variable)
	findingsText(&b, catalogue.Check(strings.Join(p.Flags, " "), p.Generation))
	fmt.Fprintf(&b, "use: --xla-preset=%s\n", p.Name)
	return b.String()
}

// bodyText shows flags and variables. If they are corrected, it also shows the original
// and marks the words: - for those left out, + for those put in.
func bodyText(b *strings.Builder, body xla.Body, variable string) {
	for _, f := range body.Faults {
		fmt.Fprintf(b, "  %-12s %s\n", "corrected", f)
	}
	if len(body.Flags) > 0 {
		fmt.Fprintf(b, "%s:\n", variable)
	}
	missing := slices.Clone(body.Original)
	for _, f := range body.Flags {
		mark := " "
		if i := slices.Index(missing, f); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		} else if body.Corrected() {
			mark = "+"
		}
		fmt.Fprintf(b, "%s %s\n", mark, f)
	}
	for _, v := range body.Env {
		fmt.Fprintf(b, "%s=%s\n", v.Name, v.Value)
	}
	if !body.Corrected() {
		return
	}
	b.WriteString("original:\n")
	for _, w := range body.Original {
		mark := " "
		if i := slices.Index(missing, w); i >= 0 {
			mark = "-"
			missing = slices.Delete(missing, i, i+1)
		}
		fmt.Fprintf(b, "%s %s\n", mark, w)
	}
}

// findingsText shows the findings, except those of severity Info.
func findingsText(b *strings.Builder, findings []xla.Finding) {
	for _, f := range findings {
		if f.Severity != xla.Info {
			fmt.Fprintf(b, "%s: %s\n", f.Severity, f)
		}
	}
}

// checkResult is the result of xla check.
type checkResult struct {
	OK         bool          `json:"ok"` // no error
	Flags      string        `json:"flags"`
	Generation string        `json:"generation,omitempty"`
	Variable   string        `json:"variable"`
	Findings   []xla.Finding `json:"findings"`
	Corrected  string        `json:"corrected,omitempty"` // the corrected text, if something was wrong
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
		Flags: []cli.Flag{generationFlag(), &cli.BoolFlag{Name: "strict", Usage: "treat an unknown flag as an error"}},
		Action: act(func(c *call) error {
			words := append(slices.Clone(c.Words), c.Argv...)
			if len(words) == 0 {
				c.Refuse(&usageError{Err: fmt.Errorf("multihost xla check needs the flags"), Advice: "type: multihost xla check 'FLAGS'"}, cmdline.Word)
			}
			catalogue := xla.Load()
			g := generation(c, catalogue)
			if err := ready(c); err != nil {
				return err
			}
			r := checkResult{Flags: strings.Join(words, " "), Generation: g, Variable: xla.LibtpuInitArgs}
			if g == xla.GPU {
				r.Variable = xla.XLAFlags
			}
			if r.Findings = catalogue.Check(r.Flags, g); c.Bool("strict") {
				r.Findings = xla.Strict(r.Findings)
			}
			if fixed := catalogue.Correct(r.Flags, g); fixed != strings.Join(xla.Words(r.Flags), " ") {
				r.Corrected = fixed
			}
			worst := xla.Worst(r.Findings)
			r.OK = worst != xla.Error
			if err := show(c, event.Result{Name: "xla_check", Text: r.text(), Data: r}); err != nil {
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

func (r checkResult) text() string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s\n", f.Severity, f)
	}
	if r.Corrected != "" {
		fmt.Fprintf(&b, "corrected:\n%s=%s\n", r.Variable, shellQuoted(r.Corrected))
	}
	unknown := 0
	for _, f := range r.Findings {
		if f.Rule == xla.RuleUnknown {
			unknown++
		}
	}
	switch worst := xla.Worst(r.Findings); {
	case worst != "" && worst != xla.Info:
	case unknown > 0:
		fmt.Fprintf(&b, "nothing wrong is known; unknown: %s\n", event.Count(unknown, "flag"))
	default:
		b.WriteString("nothing wrong\n")
	}
	return b.String()
}

// shellQuoted writes a text as one word for a shell.
func shellQuoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
