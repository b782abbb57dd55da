package cmdline

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
)

// Layers have the values that the user did not type: from the environment, the project's
// file, and the user's file. Parse adds the values to the command line before cli sees it,
// so that commands just read their flags.
type Layers struct {
	Lookup config.Lookup
	Rules  Rules
	Files  *config.Defaults // nil: none
}

// layerOrder lists the layers. Each one overrides the next.
var layerOrder = []config.Layer{config.CommandLine, config.Environment, config.ProjectLayer, config.UserLayer}

// of returns the layers' values for a flag of a command. The first one is used.
func (l Layers) of(command string, f cli.Flag) []config.Setting {
	all := l.Files.Find(command, l.Rules.FileFlag(f))
	variable := config.FlagVariable(Name(f))
	if value, ok := l.Lookup(variable); ok && value != "" {
		s := config.Setting{Values: []string{value}, Source: config.Source{Layer: config.Environment, Variable: variable}}
		all = slices.Insert(all, 0, s)
	}
	return all
}

// FileFlag describes a flag to package config, which reads the files.
func (r Rules) FileFlag(f cli.Flag) config.Flag {
	d := config.Flag{Names: Names(f), Kind: KindOf(f), Private: r.Private[Name(f)], Never: r.Never[Name(f)]}
	switch {
	case slices.Contains(r.Paths, Name(f)):
		d.Paths = func(value string, place func(string) (string, error)) (string, error) { return place(value) }
	case slices.Contains(r.PathPairs, Name(f)):
		d.Paths = placeEach
	}
	return d
}

// placeEach applies place to each path of KEY=PATH,….
func placeEach(value string, place func(string) (string, error)) (string, error) {
	pairs := strings.Split(value, ",")
	for i, pair := range pairs {
		key, path, ok := strings.Cut(pair, "=")
		if !ok {
			continue // the command reports the error
		}
		path, err := place(path)
		if err != nil {
			return "", err
		}
		pairs[i] = key + "=" + path
	}
	return strings.Join(pairs, ","), nil
}

// FileCommands describes all commands of app to package config, which reads the files.
func (r Rules) FileCommands(app *cli.App) (all []config.Command) {
	Walk(app.Commands, func(path string, c *cli.Command) {
		described := config.Command{Path: path}
		for _, f := range slices.Concat(c.Flags, app.Flags) {
			described.Flags = append(described.Flags, r.FileFlag(f))
		}
		all = append(all, described)
	})
	return all
}

// loadFiles reads the files of defaults for the line.
func (p Program) loadFiles(l *Line) (*config.Defaults, error) {
	if len(l.Path) > 0 && slices.Contains(p.Rules.NoFiles, l.Path[0]) {
		return nil, nil
	}
	o := config.DefaultsOptions{Lookup: p.Lookup, Home: p.Home, Dir: p.Dir, Commands: func() []config.Command { return p.Rules.FileCommands(p.App) }}
	var profileFrom string
	for _, f := range p.App.Flags {
		switch Name(f) {
		case "config":
			o.Named, _ = l.early("config", p.Lookup)
		case "profile":
			o.Profile, profileFrom = l.early("profile", p.Lookup)
		}
	}
	d, err := config.LoadDefaults(o)
	var unknown *config.ProfileError
	if errors.As(err, &unknown) && unknown.Source.Line == 0 {
		return d, &UsageError{Err: fmt.Errorf("%s: %w", profileFrom, err), Advice: unknown.Hint()}
	}
	return d, err
}

// early reads a flag before the files are loaded, from the command line or the environment,
// and returns where it found the value.
func (l *Line) early(flag string, lookup config.Lookup) (value, from string) {
	if value, ok := l.Values[flag]; ok {
		return value, "--" + flag
	}
	from = config.FlagVariable(flag)
	value, _ = lookup(from)
	return value, from
}

// fill gives a flag that the user did not type its value from the layers.
func (l *Line) fill(rules Rules, levels []*level, from Layers) {
	l.Layers, l.From = from, map[string]config.Setting{}
	command := strings.Join(l.Path, " ")
	for _, level := range levels {
		for _, f := range level.flags {
			if _, typed := l.Values[Name(f)]; typed {
				continue
			}
			if all := from.of(command, f); len(all) > 0 {
				l.From[Name(f)] = all[0]
			}
		}
	}
	for _, flag := range beaten(rules, l.ranks()) {
		delete(l.From, flag)
	}
	var filled []string
	for _, level := range levels {
		for _, f := range level.flags {
			if s, given := l.From[Name(f)]; given {
				filled = append(filled, Name(f))
				l.give(level, f, s)
			}
		}
	}
	slices.SortStableFunc(filled, func(a, b string) int { return cmp.Compare(rankOf(l.From[a]), rankOf(l.From[b])) })
	l.Order = append(l.Order, filled...)
}

// give adds the values of a layer to the flags that a level has.
func (l *Line) give(to *level, f cli.Flag, s config.Setting) {
	for _, value := range s.Values {
		if s.Source.Layer == config.Environment { // the values of files were checked before
			if err := KindOf(f).Check(value); err != nil {
				l.Refuse(&UsageError{Err: fmt.Errorf("%s: %w", s.Source, err)}, Name(f))
				continue
			}
		}
		if isBool(f) {
			value = strings.ToLower(value)
		}
		to.given = append(to.given, given{Name(f), value})
	}
}

// rankOf returns the place in layerOrder of a setting's layer.
func rankOf(s config.Setting) int { return slices.Index(layerOrder, s.Source.Layer) }

// ranks returns the place in layerOrder of the layer that sets a flag, for each flag that
// chooses an alternative. A value of false chooses nothing.
func (l *Line) ranks() map[string]int {
	rank := map[string]int{}
	if len(l.Argv) > 0 {
		rank[Dashes] = 0
	}
	for flag, value := range l.Values {
		if value != "false" {
			rank[flag] = 0
		}
	}
	for flag, s := range l.From {
		if !slices.Equal(s.Values, []string{"false"}) {
			rank[flag] = rankOf(s)
		}
	}
	return rank
}

// beaten returns the flags whose values are dropped, because a higher layer sets an
// alternative to the flag, or to the flag that it belongs to. The parameter rank has the
// result of Line.ranks.
func beaten(rules Rules, rank map[string]int) (flags []string) {
	for _, group := range rules.Alternatives {
		best := len(layerOrder)
		for _, flag := range group {
			if r, ok := rank[flag]; ok {
				best = min(best, r)
			}
		}
		for _, flag := range group {
			if r, ok := rank[flag]; !ok || r == best {
				continue
			}
			flags = append(flags, flag)
			for dependent, of := range rules.BelongsTo {
				if of == flag && rank[dependent] > best {
					flags = append(flags, dependent)
				}
			}
		}
	}
	slices.Sort(flags)
	return slices.Compact(flags)
}

// Blame adds the place of a value to an error about a value that the user did not type. The
// place is a file or a variable. An error is about a flag if it contains --name, or the
// name and the quoted value.
func (l *Line) Blame(err error) error {
	text := err.Error()
	var at []string
	for flag, s := range l.From {
		if isAbout(text, flag, s.Values) && !strings.Contains(text, s.Source.String()) {
			at = append(at, s.Source.String())
		}
	}
	if len(at) == 0 {
		return err
	}
	slices.Sort(at)
	return &PlacedError{Place: strings.Join(at, ", "), Err: err}
}

// isAbout reports whether a text is about a flag with these values.
func isAbout(text, flag string, values []string) bool {
	if regexp.MustCompile(`--` + flag + `(?:[^a-z0-9-]|$)`).MatchString(text) {
		return true
	}
	return regexp.MustCompile(`\b`+flag+`\b`).MatchString(text) &&
		slices.ContainsFunc(values, func(v string) bool { return v != "" && strings.Contains(text, fmt.Sprintf("%q", v)) })
}

// ProjectFlags returns the project's file and the flags that it sets, sorted. That file
// applies only because of the current directory, which users easily overlook.
func (l *Line) ProjectFlags() (file string, flags []string) {
	for _, flag := range slices.Sorted(maps.Keys(l.From)) {
		if s := l.From[flag]; s.Source.Layer == config.ProjectLayer {
			file, flags = s.Source.File, append(flags, "--"+flag)
		}
	}
	return file, flags
}
