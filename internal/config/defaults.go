package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"multihost/internal/fault"
	"multihost/internal/tpu"
)

// ProjectFile is the name of a project's file of defaults. It is in the working directory or
// above it. userFile is the name of the user's own file; see UserFile.
const (
	ProjectFile = "multihost.yaml"
	userFile    = "config.yaml"
)

// UserFile returns the path of the user's file of defaults:
// $XDG_CONFIG_HOME/multihost/config.yaml, else ~/.config/multihost/config.yaml.
func UserFile(lookup Lookup, home string) string {
	dir := get(lookup, "XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "multihost", userFile)
}

// A Kind is the kind of a flag's values. Its text fits after "takes" in a message.
type Kind string

// Kinds of flags. An Optional flag is a switch that may have a text as its value.
const (
	Text     Kind = "a text"
	Bool     Kind = "true or false"
	Int      Kind = "a whole number"
	Float    Kind = "a number"
	Duration Kind = "a time such as 90s, 10m or 2h"
	List     Kind = "a list of texts"
	Optional Kind = "true, false or a text"
)

// Check returns an error if text is no value of the kind. Text, List and Optional accept
// any value.
func (k Kind) Check(text string) error {
	var err error
	switch k {
	case Bool:
		if t := strings.ToLower(text); t != "true" && t != "false" {
			err = strconv.ErrSyntax
		}
	case Int:
		_, err = strconv.ParseInt(text, 0, 64)
	case Float:
		_, err = strconv.ParseFloat(text, 64)
	case Duration:
		_, err = time.ParseDuration(text)
	}
	if err != nil {
		return fmt.Errorf("it takes %s, not %q", k, text)
	}
	return nil
}

// A Flag has what files of defaults need to know of a flag.
type Flag struct {
	Names []string // name, then other spellings
	Kind  Kind
	// Paths replaces each local path in a value by the result of place. nil means that values
	// have no paths.
	Paths func(value string, place func(path string) (string, error)) (string, error)
	// Private says why only the user's own file may set the flag; "": any file may.
	Private string
	// Never says why no file may set the flag; "": files may.
	Never string
}

// Named reports whether key is one of the flag's names. In key, a name in lower case may have
// underscores in place of dashes.
func (f Flag) Named(key string) bool {
	return slices.Contains(f.Names, key) || key == strings.ToLower(key) && slices.Contains(f.Names, strings.ReplaceAll(key, "_", "-"))
}

// A Command is a command of the program with all its flags, including the flags that every
// command has.
type Command struct {
	Path  string // "run", "qr create"
	Flags []Flag
}

// Layer is the kind of a value's source.
type Layer string

// Layers of values. The first layer with a value is used.
const (
	CommandLine  Layer = "command line"
	Environment  Layer = "environment"
	ProjectLayer Layer = "project file"
	UserLayer    Layer = "user file"
	GcloudLayer  Layer = "gcloud"
	BuiltIn      Layer = "built-in default"
)

// FlagVariable returns the name of the environment variable for a flag.
func FlagVariable(flag string) string {
	return "MULTIHOST_FLAG_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// A Source says where a value comes from.
type Source struct {
	Layer    Layer  `json:"layer"`
	Variable string `json:"variable,omitempty"` // environment variable
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Profile  string `json:"profile,omitempty"` // profile with the value; "": none
	Section  string `json:"section,omitempty"` // command of the section; "": every command
	Text     string `json:"text,omitempty"`    // for gcloud: the source in words
}

// String returns the source as the beginning of an error.
func (s Source) String() string {
	switch {
	case s.Variable != "":
		return s.Variable
	case s.Line > 0:
		return fmt.Sprintf("%s:%d:%d", s.File, s.Line, s.Column)
	case s.Text != "":
		return s.Text
	}
	return string(s.Layer)
}

// A Setting is a value for a flag and its source. A List has any number of values, every
// other kind has one.
type Setting struct {
	Values []string
	Source Source
}

// DefaultsOptions say which files to read and which flags they may set.
type DefaultsOptions struct {
	Lookup Lookup
	Home   string
	Dir    string // start of the search for the project file; "": no search
	// Named is a file that is read instead of the project file. It is trusted like the user's own
	// file. "none" means that no file is read.
	Named    string
	Profile  string           // "": the profile that a file names
	Commands func() []Command // called once for each file that exists
}

// Defaults has the settings of the files. A nil *Defaults has no settings.
type Defaults struct {
	Project, User string // paths of the files; "": no such file
	Profile       string // active profile; "": none
	ProfileSource Source // zero if the options named the profile
	files         []*defaultsFile
}

// defaultsFile is one file.
type defaultsFile struct {
	path     string
	layer    Layer
	trusted  bool // the user wrote it or named it
	home     string
	commands []Command
	settings []setting
	profiles map[string]bool
	profile  Setting // profile that the file names
	faults   []error
}

// setting is a line of a file. Flags of several commands may have the same name and
// different kinds. The setting is only for flags of its kind.
type setting struct {
	key  string
	kind Kind
	Setting
}

// LoadDefaults finds and reads the files. A missing file is no error, unless o.Named names it. If
// a file has faults, the error joins a *FileError for each. If the profile is unknown, the error
// is a *ProfileError.
func LoadDefaults(o DefaultsOptions) (*Defaults, error) {
	d := &Defaults{}
	if o.Named == "none" {
		if o.Profile != "" {
			return nil, &ProfileError{Name: o.Profile}
		}
		return d, nil
	}
	project, named := o.Named, o.Named != ""
	if !named && o.Dir != "" {
		var err error
		if project, err = findUp(o.Dir); err != nil {
			return nil, err
		}
	}
	for _, want := range []struct {
		path   string
		layer  Layer
		needed bool
	}{{project, ProjectLayer, named}, {UserFile(o.Lookup, o.Home), UserLayer, false}} {
		if want.path == "" || d.Project == want.path {
			continue
		}
		f := &defaultsFile{path: want.path, layer: want.layer, trusted: named || want.layer == UserLayer, home: o.Home, profiles: map[string]bool{}}
		data, err := readDefaults(want.path, !want.needed)
		if errors.Is(err, fs.ErrNotExist) && !want.needed {
			continue
		}
		if err != nil {
			return nil, err
		}
		f.commands = o.Commands()
		if err := f.parse(data); err != nil {
			return nil, err
		}
		d.files = append(d.files, f)
		if want.layer == ProjectLayer {
			d.Project = want.path
		} else {
			d.User = want.path
		}
	}
	return d, d.chooseProfile(o.Profile)
}

func (d *Defaults) chooseProfile(asked string) error {
	d.Profile = asked
	for _, f := range d.files {
		if d.Profile == "" && len(f.profile.Values) > 0 {
			d.Profile, d.ProfileSource = f.profile.Values[0], f.profile.Source
		}
	}
	if d.Profile == "" {
		return nil
	}
	var known []string
	for _, f := range d.files {
		for name := range f.profiles {
			known = append(known, name)
		}
	}
	if slices.Contains(known, d.Profile) {
		return nil
	}
	slices.Sort(known)
	return &ProfileError{Name: d.Profile, Known: slices.Compact(known), Source: d.ProfileSource}
}

// Profiles returns the names of all profiles, sorted.
func (d *Defaults) Profiles() []string {
	var names []string
	if d != nil {
		for _, f := range d.files {
			for name := range f.profiles {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Find returns the settings of a flag of a command. The caller uses the first one. The project's
// file comes before the user's. In a file, the active profile comes before the rest. In each of
// these, a command's section comes before settings for all commands.
func (d *Defaults) Find(command string, f Flag) []Setting {
	if d == nil {
		return nil
	}
	var all []Setting
	for _, file := range d.files {
		var here []Setting
		for _, s := range file.settings {
			if f.Named(s.key) && f.Kind == s.kind && within(command, s.Source.Section) && (s.Source.Profile == "" || s.Source.Profile == d.Profile) {
				here = append(here, s.Setting)
			}
		}
		slices.SortStableFunc(here, func(a, b Setting) int { return weight(b.Source) - weight(a.Source) })
		all = append(all, here...)
	}
	return all
}

func weight(s Source) int {
	w := len(strings.Fields(s.Section))
	if s.Profile != "" {
		w += 100
	}
	return w
}

// within reports whether a section applies to a command. The section "" applies to every command.
// Any other section names the command or its group.
func within(command, section string) bool {
	return section == "" || command == section || strings.HasPrefix(command, section+" ")
}

// A ProfileError says that no file has a profile of this name.
type ProfileError struct {
	Name   string
	Known  []string
	Source Source // place that names the profile; zero: the options
}

func (e *ProfileError) Error() string {
	text := fmt.Sprintf("profile %q: no file has it", e.Name)
	if e.Source.Line > 0 {
		return e.Source.String() + ": " + text
	}
	return text
}

// Fault returns fault.Usage.
func (e *ProfileError) Fault() fault.Kind { return fault.Usage }

// Hint names the existing profiles.
func (e *ProfileError) Hint() string {
	if len(e.Known) == 0 {
		return "profiles are made below profiles: in multihost.yaml or in the user's file; see multihost config show"
	}
	if s := tpu.Suggest(e.Name, e.Known); s != "" {
		return fmt.Sprintf("did you mean %s?", s)
	}
	return "use one of: " + strings.Join(e.Known, ", ")
}

// findUp returns the project file of dir or of the nearest directory above it, or "".
func findUp(dir string) (string, error) {
	for {
		path := filepath.Join(dir, ProjectFile)
		if _, err := os.Lstat(path); err == nil {
			return path, nil
		}
		if other := strings.TrimSuffix(path, ".yaml") + ".yml"; isFile(other) {
			return "", &FileError{Path: other, Err: errors.New("it is not read under this name"), Advice: "rename it: mv " + other + " " + path}
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", nil
		}
		dir = up
	}
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// defaultsLimit is far above the size of any handwritten file.
const defaultsLimit = 1 << 20

// readDefaults reads a file. With check, it refuses a file that other users may have
// written, because the file decides what this user's commands do.
func readDefaults(path string, check bool) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // a pipe would block
		return nil, &FileError{Path: path, Err: errors.New("it is no file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fileError(path, err)
	}
	if check {
		if err := writtenByOthers(info); err != nil {
			return nil, &FileError{Path: path, Err: err,
				Advice: "when you trust it, type --config=" + path + " or set " + FlagVariable("config") + "; to read no file: --config=none"}
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, defaultsLimit+1))
	if err != nil {
		return nil, fileError(path, err)
	}
	if len(data) > defaultsLimit {
		return nil, &FileError{Path: path, Err: fmt.Errorf("larger than %d bytes", defaultsLimit)}
	}
	return data, nil
}

// yamlLine matches the YAML library's text for invalid YAML, with the number of the line.
// The library has no error type for it.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

func (f *defaultsFile) parse(data []byte) error {
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc, more yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		if err = dec.Decode(&more); err == nil {
			return f.at(&more, "a second document: put all into one")
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		e := &FileError{Path: f.path, Err: err}
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			e.Line, _ = strconv.Atoi(m[1])
			e.Err = errors.New(m[2])
		}
		return e
	}
	f.mapping(doc.Content[0], "", "")
	return errors.Join(f.faults...)
}

func (f *defaultsFile) at(n *yaml.Node, format string, args ...any) error {
	return &FileError{Path: f.path, Line: n.Line, Column: n.Column, Err: fmt.Errorf(format, args...)}
}

func (f *defaultsFile) fault(n *yaml.Node, format string, args ...any) {
	f.faults = append(f.faults, f.at(n, format, args...))
}

// mapping reads the settings of a mapping: a section, a profile or the whole file.
func (f *defaultsFile) mapping(n *yaml.Node, profile, section string) {
	n = resolve(n)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // everything is commented out
	}
	if n.Kind != yaml.MappingNode {
		f.fault(n, "want lines of the form name: value")
		return
	}
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			f.fault(key, "want the name of a flag or of a command; values are shared by profiles")
			continue
		}
		name := key.Value
		if first := seen[name]; first != nil {
			f.fault(key, "%q is set twice, first in line %d", name, first.Line)
			continue
		}
		seen[name] = key
		switch {
		case section == "" && profile == "" && name == "profiles":
			f.readProfiles(value)
		case section == "" && profile == "" && name == "profile":
			f.readProfile(key, value)
		case value.Kind == yaml.MappingNode:
			f.section(key, value, profile, section)
		case value.Tag == "!!null" && section == "" && len(f.flagsOf(name)) > 0: // the whole section is commented out
		default:
			f.flag(key, value, profile, section)
		}
	}
	f.twice(seen, section)
}

// resolve returns the node of an alias, or n if it is no alias.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// profileName is strict because shells complete these names. A name with a special meaning
// to the shell could run something when the user presses Tab.
var profileName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

func (f *defaultsFile) readProfiles(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		f.fault(n, "profiles: want a name for each profile, and its settings below")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Value == "" || key.Kind != yaml.ScalarNode {
			f.fault(key, "profiles: want a name")
			continue
		}
		if !profileName.MatchString(key.Value) {
			f.fault(key, "profile %q: want a name of letters, digits, '.', '_' and '-'", key.Value)
			continue
		}
		if f.profiles[key.Value] {
			f.fault(key, "profile %q is there twice", key.Value)
			continue
		}
		f.profiles[key.Value] = true
		f.mapping(n.Content[i+1], key.Value, "")
	}
}

func (f *defaultsFile) readProfile(key, value *yaml.Node) {
	if value.Kind != yaml.ScalarNode || value.Tag != "!!str" || value.Value == "" {
		f.fault(value, "profile: want the name of a profile")
		return
	}
	f.profile = Setting{Values: []string{value.Value}, Source: f.source(value, "", "")}
}

func (f *defaultsFile) source(n *yaml.Node, profile, section string) Source {
	return Source{Layer: f.layer, File: f.path, Line: n.Line, Column: n.Column, Profile: profile, Section: section}
}

// section reads the settings of one command or of a group of commands.
func (f *defaultsFile) section(key, value *yaml.Node, profile, outer string) {
	path := strings.Join(strings.Fields(key.Value), " ")
	whole := strings.TrimSpace(outer + " " + path)
	switch {
	case len(f.flagsOf(whole)) > 0 && outer != "":
		f.fault(key, "sections are not nested: write %q: at the outer level", whole)
	case len(f.flagsOf(path)) > 0 && outer == "":
		f.mapping(value, profile, path)
	case len(f.find(key.Value, outer)) > 0:
		f.fault(value, "%q takes %s, not a mapping", key.Value, f.find(key.Value, outer)[0].Kind)
	default:
		var names []string
		for _, c := range f.commands {
			names = append(names, c.Path)
		}
		f.unknown(key, outer, append(names, "profiles"))
	}
}

// flagsOf returns the flags of all commands of a section.
func (f *defaultsFile) flagsOf(section string) []Flag {
	var all []Flag
	for _, c := range f.commands {
		if within(c.Path, section) {
			all = append(all, c.Flags...)
		}
	}
	return all
}

// find returns the flags of a key in a section: one for each command that has it.
func (f *defaultsFile) find(key, section string) []Flag {
	if len(key) < 2 { // one-letter names like -f are for the command line only
		return nil
	}
	return slices.DeleteFunc(f.flagsOf(section), func(flag Flag) bool { return !flag.Named(key) })
}

func (f *defaultsFile) flag(key, value *yaml.Node, profile, section string) {
	flags := f.find(key.Value, section)
	if len(flags) == 0 {
		f.unknown(key, section, f.spellings(key.Value, section))
		return
	}
	switch flag := flags[0]; {
	case flag.Never != "":
		f.fault(key, "%q cannot be set in a file: %s", key.Value, flag.Never)
		return
	case flag.Private != "" && !f.trusted:
		f.faults = append(f.faults, &FileError{Path: f.path, Line: key.Line, Column: key.Column,
			Err:    fmt.Errorf("%q is not taken from the file of a project: %s", key.Value, flag.Private),
			Advice: "put it into your own file (multihost init --own makes one), or type it: --" + flag.Names[0]})
		return
	}
	kinds := map[Kind]bool{}
	if !slices.ContainsFunc(flags, func(flag Flag) bool { return accepts(flag.Kind, value) }) {
		f.values(key, value, flags[0])
		return
	}
	for _, flag := range flags {
		if kinds[flag.Kind] || !accepts(flag.Kind, value) {
			continue
		}
		if values, ok := f.values(key, value, flag); ok {
			kinds[flag.Kind] = true
			f.settings = append(f.settings, setting{key.Value, flag.Kind, Setting{values, f.source(value, profile, section)}})
		}
	}
}

// accepts reports whether a flag of the kind can have the value of n.
func accepts(kind Kind, n *yaml.Node) bool {
	if n.Kind == yaml.SequenceNode {
		return kind == List
	}
	return n.Kind == yaml.ScalarNode && wrongType(n, kind) == ""
}

// values reads the values of a flag. If they do not fit, it records a fault, and ok is
// false.
func (f *defaultsFile) values(key, n *yaml.Node, flag Flag) (values []string, ok bool) {
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		if flag.Kind != List {
			f.fault(n, "%q takes %s, not a list", key.Value, flag.Kind)
			return nil, false
		}
		items = n.Content
	}
	for _, item := range items {
		item = resolve(item)
		if item.Kind != yaml.ScalarNode {
			f.fault(item, "%q: want a single value here", key.Value)
			return nil, false
		}
		if why := wrongType(item, flag.Kind); why != "" {
			f.fault(item, "%q takes %s, not %s", key.Value, flag.Kind, why)
			return nil, false
		}
		text := item.Value
		if flag.Paths != nil {
			var err error
			if text, err = flag.Paths(text, f.place); err != nil {
				f.fault(item, "%q: %w", key.Value, err)
				return nil, false
			}
		}
		values = append(values, text)
	}
	return values, true
}

// wrongType describes a scalar that a flag of the kind cannot have as its value. Otherwise
// it returns "".
func wrongType(n *yaml.Node, kind Kind) string {
	plain := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	quoted := fmt.Sprintf("%q", n.Value)
	switch {
	case plain && n.Tag == "!!null":
		return "nothing"
	case strings.ContainsRune(n.Value, 0):
		return "a NUL byte"
	}
	fine := true
	switch kind {
	case Text, List:
		if n.Tag == "!!bool" {
			return n.Value + " (a text that looks like that stands in quotes)"
		}
	case Bool:
		fine = n.Tag == "!!bool"
	case Int:
		fine = n.Tag == "!!int"
	case Float:
		fine = n.Tag == "!!int" || n.Tag == "!!float"
	case Duration:
		if n.Tag == "!!int" && n.Value != "0" {
			return quoted + " without a unit"
		}
	}
	if !fine && !plain {
		return "a text in quotes"
	}
	if !fine || kind.Check(n.Value) != nil {
		return quoted
	}
	return ""
}

// place returns the full path for a path in a value. A relative path is relative to the directory
// of the file of defaults, and ~/ is the home. A project's file may only name paths in its own
// directory. A directory from somebody else can then not make a command read or write other
// files.
func (f *defaultsFile) place(path string) (string, error) {
	if path == "" || path == "-" {
		return path, nil
	}
	whole := path
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		whole = filepath.Join(f.home, rest)
	} else if !filepath.IsAbs(path) {
		whole = filepath.Join(filepath.Dir(f.path), path)
	}
	if !f.trusted && !below(filepath.Dir(f.path), whole) {
		return "", fmt.Errorf("the file of a project may only name what is in its directory, and %q is not", path)
	}
	return whole, nil
}

// below reports whether path is dir or in it, both before and after symbolic links are resolved.
// It resolves the part of path that exists.
func below(dir, path string) bool {
	inside := func(dir, path string) bool {
		rel, err := filepath.Rel(dir, path)
		return err == nil && filepath.IsLocal(rel)
	}
	if !inside(dir, path) {
		return false
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	for p := path; inside(dir, p); p = filepath.Dir(p) {
		if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		target, err := filepath.EvalSymlinks(p)
		return err == nil && inside(real, target)
	}
	return true
}

// twice records a fault if two keys of one mapping set the same flag of one command.
func (f *defaultsFile) twice(seen map[string]*yaml.Node, section string) {
	for _, c := range f.commands {
		if !within(c.Path, section) {
			continue
		}
		for _, flag := range c.Flags {
			var keys []*yaml.Node
			for name, n := range seen {
				if len(name) > 1 && flag.Named(name) {
					keys = append(keys, n)
				}
			}
			if len(keys) < 2 {
				continue
			}
			slices.SortFunc(keys, func(a, b *yaml.Node) int { return a.Line - b.Line })
			f.fault(keys[1], "%q and %q in line %d are one flag of %s: keep one", keys[1].Value, keys[0].Value, keys[0].Line, c.Path)
			return
		}
	}
}

// spellings returns the names of flags that the user may have meant by key.
func (f *defaultsFile) spellings(key, section string) []string {
	var names []string
	for _, flag := range f.flagsOf(section) {
		for _, n := range flag.Names {
			if len(n) > 1 && (n == strings.ToLower(n)) == (key == strings.ToLower(key)) {
				names = append(names, n)
			}
		}
	}
	return names
}

// unknown records a fault for a key that has no meaning in a section. names are the possible
// keys. unknown suggests the one that the user probably meant.
func (f *defaultsFile) unknown(key *yaml.Node, section string, names []string) {
	what := "is neither a flag nor a command"
	if section != "" {
		what = "is no flag of " + section
	}
	name := strings.TrimLeft(key.Value, "-")
	text := fmt.Sprintf("%q %s", key.Value, what)
	switch s := tpu.Suggest(name, names); {
	case len(f.find(name, section)) > 0: // the user wrote the leading dashes
		text += fmt.Sprintf(": write it without dashes, %s", name)
	case s != "":
		text += fmt.Sprintf(": did you mean %s?", s)
	case section != "" && len(f.find(name, "")) > 0:
		var others []string
		for _, c := range f.commands {
			if slices.ContainsFunc(c.Flags, func(flag Flag) bool { return flag.Named(name) }) {
				others = append(others, c.Path)
			}
		}
		text += ", but of " + strings.Join(others[:min(3, len(others))], ", ")
	}
	f.fault(key, "%s", text)
}
