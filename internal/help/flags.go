package help

import (
	"slices"
	"strings"
)

// A Flag is a flag as help and documents show it.
type Flag struct {
	Names    []string // with their dashes; the flag's own name first
	Value    string   // placeholder of the value; "" for a switch
	Optional bool     // the value may be missing
	Text     string
	Default  string
}

// Name returns the flag's own name, without dashes.
func (f Flag) Name() string { return strings.TrimLeft(f.Names[0], "-") }

// setting returns the text after the flag's name on a command line: =VALUE, [=VALUE] or
// nothing.
func (f Flag) setting() string {
	switch {
	case f.Value == "":
		return ""
	case f.Optional:
		return "[=" + f.Value + "]"
	}
	return "=" + f.Value
}

// A Group is a section of flags, by name.
type Group struct {
	Title string
	Shown []string // flags in short help
	Rest  []string
}

// Sections sorts flags into groups. A flag of two groups goes into the first one. Without all,
// for short help, a section has only the Shown flags of its group. rest has the flags that are
// in no section.
func Sections(flags []Flag, groups []Group, all bool) (sections []Section, rest []Flag) {
	rest = slices.Clone(flags)
	for _, g := range groups {
		names := g.Shown
		if all {
			names = slices.Concat(g.Shown, g.Rest)
		}
		var taken []Flag
		for _, name := range names {
			if i := slices.IndexFunc(rest, func(f Flag) bool { return f.Name() == name }); i >= 0 {
				taken = append(taken, rest[i])
				rest = slices.Delete(rest, i, i+1)
			}
		}
		if len(taken) > 0 {
			sections = append(sections, Section{Title: g.Title, Rows: Rows(taken, all)})
		}
	}
	return sections, rest
}

// Rows returns one row for each flag. With all, a row has every name of the flag. Otherwise it
// has the first name and names of one letter.
func Rows(flags []Flag, all bool) []Row {
	rows := make([]Row, 0, len(flags))
	for _, f := range flags {
		var names, letters []string
		for i, name := range f.Names {
			switch {
			case !strings.HasPrefix(name, "--"):
				letters = append(letters, name)
			case i == 0 || all:
				names = append(names, name+f.setting())
			}
		}
		row := Row{Names: append(letters, names...), Text: f.Text}
		if f.Default != "" {
			row.Note = "(default: " + f.Default + ")"
		}
		rows = append(rows, row)
	}
	return rows
}
