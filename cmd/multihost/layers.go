package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
)

// Flags that were not typed take their values from layers: the environment, the project's
// file, the user's file. Only this file knows about layers: it adds the values to the
// command line before cli sees it, so that commands just read their flags.

// layers holds the sources of values that were not typed.
type layers struct {
	lookup config.Lookup
	files  *config.Defaults
}

// of returns what the layers say about a flag of a command; the first entry counts.
func (l layers) of(command string, f cli.Flag) []config.Setting {
	all := l.files.Find(command, fileFlag(f))
	name := config.FlagVariable(f.Names()[0])
	if value, ok := l.lookup(name); ok && value != "" {
		s := config.Setting{Values: []string{value}, Source: config.Source{Layer: config.Environment, Variable: name}}
		all = slices.Insert(all, 0, s)
	}
	return all
}

// privateFlags are not read from a project's file, because it may come with a directory
// that somebody else made. What these flags do is not about that directory: they open a
// network, end other users' runs, delete, name an identity, or send the user's data
// elsewhere.
var privateFlags = map[string]string{
	"access-token-file": "it says who you are",
	"iap-endpoint":      "your access token is sent there",
	"configuration":     "it says who you are",
	"service-account":   "it says who the workers are",
	"cqr-extra-args":    "it can say who the workers are",
	"range":             "it says which addresses of your network the workers get",
	"identity-file":     "it names your key",
	"known-hosts":       "it says which machines are trusted",
	"ssh-config":        "it can name your key, and which machines are trusted",
	"state-dir":         "your records of runs and host keys are kept there",
	"notify":            "it runs a program on this machine",
	"notify-url":        "what happens in your runs is sent there",
	"listen":            "it can open the simulator, and a shell on this machine, to others",
	"force":             "it deletes without a question",
	"delete":            "it deletes",
	"yes":               "it answers questions for you",
	"confirm":           "it says whether you are asked",
	"fix":               "it changes your project",
	"forward-agent":     "it lends your keys",
	"ssh-source-ranges": "it opens a network to others",
	"source-ranges":     "it opens a network to others",
	"all-ports-from":    "it opens a network to others",
	"allow":             "it opens a network",
	"replace":           "it ends what others run",
	"kill-stale":        "it ends what others run",
	"adopt":             "it replaces your files on the workers",
	"all-users":         "it reaches what others run",
	"sudo":              "it makes you root on the workers",
}

// neverInFiles lists the flags that make no sense in a file, and why.
var neverInFiles = map[string]string{
	"config":  "it names the file",
	"profile": "the default profile stands at the top of a file, outside of sections and profiles",
	"version": "it is a command",
}

// pathFlags name local files and directories. In a file they are relative to that file.
var pathFlags = []string{
	"access-token-file", "env-file", "hosts-file", "identity-file", "known-hosts", "log-dir", "out", "script-dir", "sim-dir", "ssh-config", "state-dir",
}

// fileFlag describes a flag for package config, which reads the files.
func fileFlag(f cli.Flag) config.Flag {
	names := f.Names()
	d := config.Flag{Names: names, Kind: kindOf(f), Private: privateFlags[names[0]], Never: neverInFiles[names[0]]}
	switch {
	case slices.Contains(pathFlags, names[0]):
		d.Paths = func(value string, place func(string) (string, error)) (string, error) { return place(value) }
	case names[0] == "metadata-from-file":
		d.Paths = placeEach
	}
	return d
}

// placeEach places each file of KEY=FILE,….
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

func kindOf(f cli.Flag) config.Kind {
	switch f := f.(type) {
	case *cli.BoolFlag:
		return config.Bool
	case *cli.IntFlag:
		return config.Int
	case *cli.Float64Flag:
		return config.Float
	case *cli.DurationFlag:
		return config.Duration
	case *cli.StringSliceFlag:
		return config.List
	case *cli.GenericFlag:
		if _, ok := f.Value.(*optionalValue); ok {
			return config.Optional
		}
	}
	return config.Text
}

// fileCommands describes all commands for package config, which reads the files.
func fileCommands(app *cli.App) []config.Command {
	var global []config.Flag
	for _, f := range app.Flags {
		global = append(global, fileFlag(f))
	}
	var all []config.Command
	walkCommands(app.Commands, "", func(path string, c *cli.Command) {
		described := config.Command{Path: path}
		for _, f := range c.Flags {
			described.Flags = append(described.Flags, fileFlag(f))
		}
		described.Flags = append(described.Flags, global...)
		all = append(all, described)
	})
	return all
}

// walkCommands visits every command, also groups, with its path.
func walkCommands(commands []*cli.Command, outer string, visit func(path string, c *cli.Command)) {
	for _, c := range commands {
		path := strings.TrimSpace(outer + " " + c.Name)
		visit(path, c)
		walkCommands(c.Subcommands, path, visit)
	}
}

// fileless commands work even if a file is wrong.
var fileless = []string{"init", "completion", "manual", "version"}

// loadFiles reads the files that the command line asks for.
func (p *program) loadFiles(app *cli.App, inv *invocation) (*config.Defaults, error) {
	if len(inv.path) > 0 && slices.Contains(fileless, inv.path[0]) {
		return nil, nil
	}
	o := config.DefaultsOptions{Lookup: p.lookup, Home: p.home, Dir: p.dir, Commands: fileCommands(app)}
	var profileFrom string
	for _, f := range app.Flags {
		value, from := inv.global(f.Names()[0], p.lookup)
		switch f.Names()[0] {
		case "config":
			o.Named = value
		case "profile":
			o.Profile, profileFrom = value, from
		}
	}
	d, err := config.LoadDefaults(o)
	var unknown *config.ProfileError
	if errors.As(err, &unknown) && unknown.Source.Line == 0 {
		return d, &usageError{err: fmt.Errorf("%s: %w", profileFrom, err), hint: unknown.Hint()}
	}
	return d, err
}

// global reads a flag before the files are loaded, from the command line or the
// environment, and returns where it found it.
func (inv *invocation) global(name string, lookup config.Lookup) (value, from string) {
	if value, ok := inv.values[name]; ok {
		return value, "--" + name
	}
	from = config.FlagVariable(name)
	value, _ = lookup(from)
	return value, from
}

// alternatives are groups of flags that replace each other: if a layer sets one of them,
// the values that lower layers have for the others are dropped. "--" stands for the words
// after it.
var alternatives = [][]string{
	{"command", "--"},
	{"tpu-prefix", "hosts", "hosts-file"},
	{"on-demand", "spot", "best-effort", "reserved", "reservation", "flex-start", "guaranteed", "provisioning-model",
		"reservation-host-project", "reservation-host-folder", "reservation-host-organization"},
	{"valid-after-duration", "valid-after-time"},
	{"valid-until-duration", "valid-until-time"},
	{"tpu-type", "type"},
	{"network-config", "network"}, {"network-config", "subnetwork"}, {"network-config", "internal-ips"},
	{"ip", "internal-ip"},
	{"node-prefix", "node-id"},
	{"notify", "notify-url"},
}

// belongsTo maps a flag to the flag without which it has no meaning.
var belongsTo = map[string]string{"max-run-duration": "flex-start", "topology": "type"}

// layerOrder lists the layers, the one that overrides all others first.
var layerOrder = []config.Layer{config.CommandLine, config.Environment, config.ProjectLayer, config.UserLayer}

// fill gives flags that were not typed the values that the layers have for them.
func (inv *invocation) fill(levels []*level, from layers) {
	inv.layers, inv.from = from, map[string]config.Setting{}
	command := strings.Join(inv.path, " ")
	rank := map[string]int{} // the index in layerOrder of the layer that sets the flag
	if inv.dashed && len(inv.argv) > 0 {
		rank["--"] = 0
	}
	for _, l := range levels {
		for _, f := range l.flags {
			name := f.Names()[0]
			if value, typed := inv.values[name]; typed {
				if value != "false" { // false leaves the choice of an alternative open
					rank[name] = 0
				}
				continue
			}
			if all := from.of(command, f); len(all) > 0 {
				inv.from[name] = all[0]
				if !slices.Equal(all[0].Values, []string{"false"}) {
					rank[name] = slices.Index(layerOrder, all[0].Source.Layer)
				}
			}
		}
	}
	inv.choose(rank)
	typed := len(inv.order)
	for _, l := range levels {
		for _, f := range l.flags {
			s, given := inv.from[f.Names()[0]]
			if given {
				inv.order = append(inv.order, f.Names()[0])
			}
			for _, value := range s.Values {
				if s.Source.Layer == config.Environment {
					if err := kindOf(f).Check(value); err != nil {
						inv.refuse(&usageError{err: fmt.Errorf("%s: %w", s.Source, err)}, f.Names()[0])
						continue
					}
				}
				if isBool(f) {
					value = strings.ToLower(value)
				}
				l.given = append(l.given, "--"+f.Names()[0]+"="+value)
			}
		}
	}
	layer := func(name string) int { return slices.Index(layerOrder, inv.from[name].Source.Layer) }
	slices.SortStableFunc(inv.order[typed:], func(a, b string) int { return cmp.Compare(layer(a), layer(b)) })
}

// choose drops values if a higher layer sets an alternative flag.
func (inv *invocation) choose(rank map[string]int) {
	for _, group := range alternatives {
		best := len(layerOrder)
		for _, name := range group {
			if r, ok := rank[name]; ok {
				best = min(best, r)
			}
		}
		for _, name := range group {
			if r, ok := rank[name]; ok && r > best {
				delete(inv.from, name)
				for dependent, of := range belongsTo {
					if of == name && rank[dependent] > best {
						delete(inv.from, dependent)
					}
				}
			}
		}
	}
}

// value returns the value of a flag, typed or from a layer; for a list from a layer, its
// values separated by commas.
func (inv *invocation) value(name string) string {
	if v, typed := inv.values[name]; typed {
		return v
	}
	return strings.Join(inv.from[name].Values, ",")
}

// blame adds to an error about a value that was not typed the place where the value comes
// from. An error is about a flag if it contains --name, or the name and the quoted value.
func (inv *invocation) blame(err error) error {
	if code := exitCode(err); inv == nil || code != exitUsage && code != exitConfig {
		return err
	}
	text := err.Error()
	var at []string
	for name, s := range inv.from {
		known := regexp.MustCompile(`--` + name + `(?:[^a-z0-9-]|$)`).MatchString(text)
		if !known && regexp.MustCompile(`\b`+name+`\b`).MatchString(text) {
			known = slices.ContainsFunc(s.Values, func(v string) bool { return v != "" && strings.Contains(text, fmt.Sprintf("%q", v)) })
		}
		if known && !strings.Contains(text, s.Source.String()) {
			at = append(at, s.Source.String())
		}
	}
	if len(at) == 0 {
		return err
	}
	slices.Sort(at)
	return &placedError{place: strings.Join(at, ", "), err: err}
}

// placedError is an error about a value that was not typed, with the value's place.
type placedError struct {
	place string
	err   error
}

func (e *placedError) Error() string { return e.place + ": " + e.err.Error() }
func (e *placedError) Unwrap() error { return e.err }

// tellFile reports which flags the project's file sets. The file counts only because of
// the current directory, which is easily overlooked.
func (inv *invocation) tellFile(sink event.Sink) {
	var names []string
	file := ""
	for name, s := range inv.from {
		if s.Source.Layer == config.ProjectLayer {
			names, file = append(names, "--"+name), s.Source.File
		}
	}
	if file == "" {
		return
	}
	slices.Sort(names)
	event.Notef(sink, event.Info, "", "%s sets %s", file, strings.Join(names, ", "))
}
