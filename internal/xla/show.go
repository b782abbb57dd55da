package xla

import (
	"fmt"
	"multihost/internal/event"
	"slices"
	"strings"
)

func (f Flag) typeText() string {
	if f.Documented {
		return f.Type
	}
	return f.Type + "?"
}

func (f Flag) meaning() string {
	if f.Retired == nil {
		return f.Meaning
	}
	if f.Retired.Instead == "" {
		return f.Meaning + " (retired)"
	}
	return f.Meaning + " (retired: " + f.Retired.Instead + ")"
}

// FlagTable lists flags with their types and meanings.
func FlagTable(flags []Flag) string {
	var b strings.Builder
	for _, f := range flags {
		fmt.Fprintf(&b, "%-62s %-9s %s\n", f.Name, f.typeText(), f.meaning())
	}
	return b.String()
}

// Text says what the flag means, where it goes and who sets it.
func (f Flag) Text() string {
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

// A List has groups and presets, for one generation or for all.
type List struct {
	Generation  string   `json:"generation,omitempty"`
	Recommended []string `json:"recommended,omitempty"`
	Groups      []Group  `json:"groups"`
	Presets     []Preset `json:"presets"`
	Sources     []string `json:"sources"`
}

// ListOf returns the groups and presets of a generation, or of all if it is "". Groups of
// earlier versions are only in the list for all.
func ListOf(c *Catalogue, generation string) List {
	list := List{Generation: generation, Groups: c.Groups(), Presets: c.Presets(), Sources: c.Sources()}
	if generation == "" {
		return list
	}
	list.Groups = slices.DeleteFunc(list.Groups, func(g Group) bool { return g.Historical || !g.Fits(generation) })
	list.Presets = slices.DeleteFunc(list.Presets, func(p Preset) bool { return p.Generation != generation })
	for _, g := range list.Groups {
		if g.Recommended(generation) {
			list.Recommended = append(list.Recommended, g.Name)
		}
	}
	return list
}

// Text shows the list.
func (l List) Text() string {
	var b strings.Builder
	group := func(g Group) {
		mark := " "
		if slices.Contains(l.Recommended, g.Name) {
			mark = "*"
		}
		about := g.About
		if l.Generation == "" && len(g.Best) > 0 {
			about += " (recommended for " + strings.Join(g.Best, ", ") + ")"
		}
		fmt.Fprintf(&b, "%s %-50s %s\n", mark, g.Name, about)
	}
	b.WriteString("groups of flags")
	if len(l.Recommended) > 0 {
		fmt.Fprintf(&b, " (* recommended for %s by MaxText's tuning guide)", l.Generation)
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
	if slices.ContainsFunc(l.Groups, func(g Group) bool { return g.Historical }) {
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

// GroupText shows a group, and what is wrong with it on a generation, which may be "".
func GroupText(c *Catalogue, g Group, generation string) string {
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
		findingsText(&b, c.Check(strings.Join(g.Flags, " "), generation))
	}
	name := g.Name
	if g.Parameter && !strings.Contains(name, "=") {
		name += "=VALUE"
	}
	fmt.Fprintf(&b, "use: --xla-preset=%s\n", name)
	return b.String()
}

// PresetText shows a preset.
func PresetText(c *Catalogue, p Preset) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s on %s\n", p.Name, p.Model, p.Generation)
	fmt.Fprintf(&b, "  %-12s %s\n", "source", p.Source)
	if len(p.Groups) > 0 {
		fmt.Fprintf(&b, "  %-12s %s\n", "groups", strings.Join(p.Groups, " + "))
	}
	if p.Note != "" {
		fmt.Fprintf(&b, "  %-12s %s\n", "note", p.Note)
	}
	variable := LibtpuInitArgs
	if p.Generation == GPU {
		variable = XLAFlags
	}
	bodyText(&b, p.Body, variable)
	findingsText(&b, c.Check(strings.Join(p.Flags, " "), p.Generation))
	fmt.Fprintf(&b, "use: --xla-preset=%s\n", p.Name)
	return b.String()
}

// bodyText shows flags and variables, and also the original if they were corrected. It
// marks words that were left out with -, and added words with +.
func bodyText(b *strings.Builder, body Body, variable string) {
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
func findingsText(b *strings.Builder, findings []Finding) {
	for _, f := range findings {
		if f.Severity != Info {
			fmt.Fprintf(b, "%s: %s\n", f.Severity, f)
		}
	}
}

// A Checked is a text of flags with its findings.
type Checked struct {
	OK         bool      `json:"ok"` // no error
	Flags      string    `json:"flags"`
	Generation string    `json:"generation,omitempty"`
	Variable   string    `json:"variable"`
	Findings   []Finding `json:"findings"`
	Corrected  string    `json:"corrected,omitempty"` // the corrected text, if something was wrong
}

// CheckText checks a text of flags for a generation, which may be "". With strict, a flag
// that the catalogue lacks is an error.
func CheckText(c *Catalogue, flags, generation string, strict bool) Checked {
	r := Checked{Flags: flags, Generation: generation, Variable: LibtpuInitArgs}
	if generation == GPU {
		r.Variable = XLAFlags
	}
	if r.Findings = c.Check(flags, generation); strict {
		r.Findings = Strict(r.Findings)
	}
	if fixed := c.Correct(flags, generation); fixed != strings.Join(Words(flags), " ") {
		r.Corrected = fixed
	}
	r.OK = Worst(r.Findings) != Error
	return r
}

// String shows the findings and the corrected text.
func (r Checked) String() string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s\n", f.Severity, f)
	}
	if r.Corrected != "" {
		fmt.Fprintf(&b, "corrected:\n%s=%s\n", r.Variable, "'"+strings.ReplaceAll(r.Corrected, "'", `'\''`)+"'")
	}
	unknown := 0
	for _, f := range r.Findings {
		if f.Rule == RuleUnknown {
			unknown++
		}
	}
	switch worst := Worst(r.Findings); {
	case worst != "" && worst != Info:
	case unknown > 0:
		fmt.Fprintf(&b, "nothing wrong is known; unknown: %s\n", event.Count(unknown, "flag"))
	default:
		b.WriteString("nothing wrong\n")
	}
	return b.String()
}
