package xla

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A block is a group, set or preset whose lines are being read.
type block struct {
	head    string   // group, set or preset
	name    string   // name of a group or set, for others to use
	group   Group    // the first line of a group
	presets []Preset // the first lines of the presets that share the body
	begun   bool     // the body has begun

	Body
	original    []string // words of the source
	groups      []string // groups that it uses
	about, note string
	on, best    []string
	historical  bool
}

type tableReader struct {
	c    *Catalogue
	sets map[string]*block // groups and sets, by name
	open *block
}

// parse parses the format that the beginning of catalogue.txt describes.
func parse(text string) (*Catalogue, error) {
	r := &tableReader{
		c:    &Catalogue{aliases: map[string]string{}, vmem: map[string][]limit{}, byName: map[string]int{}},
		sets: map[string]*block{},
	}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		var err error
		switch {
		case strings.TrimSpace(line) == "" || line[0] == '#':
		case line[0] == ' ':
			err = r.body(strings.TrimSpace(line))
		default:
			err = r.head(strings.Fields(line))
		}
		if err != nil {
			return nil, fmt.Errorf("read the catalogue, line %d: %w", number, err)
		}
	}
	r.close()
	r.c.index()
	return r.c, nil
}

func (r *tableReader) head(f []string) error {
	need := map[string]int{"source": 3, "alias": 3, "vmem": 4, "flag": 5, "retired": 4, "group": 4, "set": 2, "preset": 5}[f[0]]
	switch {
	case need == 0:
		return fmt.Errorf("unknown word %q", f[0])
	case len(f) < need:
		return fmt.Errorf("%s needs %d words", f[0], need)
	}
	if f[0] != "preset" || r.open == nil || r.open.head != "preset" || r.open.begun {
		r.close()
	}
	switch f[0] {
	case "source":
		r.c.sources = append(r.c.sources, f[1]+": "+strings.Join(f[2:], " "))
	case "alias":
		r.c.aliases[f[1]] = f[2]
	case "vmem":
		mib, err := strconv.Atoi(f[2])
		if err != nil {
			return err
		}
		r.c.vmem[f[1]] = append(r.c.vmem[f[1]], limit{mib, strings.Join(f[3:], " ")})
	case "flag":
		return r.flag(f)
	case "retired":
		i, ok := r.c.byName[f[1]]
		if !ok {
			return fmt.Errorf("%s is no flag", f[1])
		}
		r.c.flags[i].Retired = &Retired{Instead: strings.TrimPrefix(f[2], "-"), Why: strings.Join(f[3:], " ")}
	case "group":
		r.open = &block{head: f[0], name: f[1], group: Group{Name: f[1], Platform: Platform(f[2]), Source: f[3]}}
	case "set":
		r.open = &block{head: f[0], name: f[1]}
	case "preset":
		if r.open == nil {
			r.open = &block{head: f[0]}
		}
		_, rest, _ := strings.Cut(f[1], "/")
		source := strings.ReplaceAll(strings.ReplaceAll(f[4], "%", f[1]), "*", rest)
		r.open.presets = append(r.open.presets, Preset{Name: f[1], Generation: f[2], Model: f[3], Source: source})
	}
	return nil
}

func (r *tableReader) flag(f []string) error {
	if _, twice := r.c.byName[f[1]]; twice {
		return fmt.Errorf("flag %s is there twice", f[1])
	}
	kind, guessed := strings.CutSuffix(f[2], "?")
	if !slices.Contains([]string{"bool", "tristate", "int", "number", "text", "path", "list"}, kind) {
		return fmt.Errorf("unknown type %q", f[2])
	}
	if !slices.Contains([]Platform{PlatformTPU, PlatformGPU, PlatformAny}, Platform(f[3])) {
		return fmt.Errorf("unknown platform %q", f[3])
	}
	r.c.byName[f[1]] = len(r.c.flags)
	r.c.flags = append(r.c.flags, Flag{Name: f[1], Type: kind, Documented: !guessed, Platform: Platform(f[3]), Meaning: strings.Join(f[4:], " ")})
	return nil
}

func (r *tableReader) body(line string) error {
	b := r.open
	if b == nil {
		return fmt.Errorf("%q belongs to nothing", line)
	}
	b.begun = true
	key, rest, _ := strings.Cut(line, " ")
	switch key {
	case "about":
		b.about = rest
	case "note":
		b.note = rest
	case "on":
		b.on = strings.Fields(rest)
	case "best":
		b.best = strings.Fields(rest)
	case "historical":
		b.historical = true
	case "fault":
		b.Faults = append(b.Faults, rest)
	case "env":
		name, value, ok := strings.Cut(rest, "=")
		if !ok {
			return fmt.Errorf("env %q has no value", rest)
		}
		b.Env = append(b.Env, Var{name, value})
	case "use":
		for _, name := range strings.Fields(rest) {
			if err := r.use(name); err != nil {
				return err
			}
		}
	case "drop":
		i := slices.Index(b.Flags, rest)
		if i < 0 {
			return fmt.Errorf("drop %q: it is not there", rest)
		}
		b.Flags = slices.Delete(b.Flags, i, i+1)
	case "add":
		b.Flags = append(b.Flags, rest)
	default:
		if rest != "" {
			return fmt.Errorf("unknown line %q", line)
		}
		b.Flags = append(b.Flags, key)
		b.original = append(b.original, key)
	}
	return nil
}

func (r *tableReader) use(name string) error {
	base, value, parametric := strings.Cut(name, "=")
	from, ok := r.sets[base]
	if !ok {
		return fmt.Errorf("use %q: nothing above has that name", name)
	}
	flags, original := from.Flags, from.original
	if parametric {
		flags, original = substitute(flags, value), substitute(original, value)
	}
	b := r.open
	b.Flags = append(b.Flags, flags...)
	b.original = append(b.original, original...)
	b.Env = append(b.Env, from.Env...)
	b.Faults = append(b.Faults, from.Faults...)
	if from.head == "group" {
		b.groups = append(b.groups, name)
		return nil
	}
	// A set becomes a part of the preset, so its note is about the preset, too.
	b.groups = append(b.groups, from.groups...)
	if b.note == "" {
		b.note = from.note
	}
	return nil
}

// close finishes the group, set or preset whose lines were read.
func (r *tableReader) close() {
	b := r.open
	if b == nil {
		return
	}
	r.open = nil
	if b.Corrected() {
		b.Original = b.original
	}
	if g := b.group; b.head == "group" {
		g.About, g.Note, g.On, g.Best, g.Historical, g.Body = b.about, b.note, b.on, b.best, b.historical, b.Body
		g.Parameter = slices.ContainsFunc(b.Flags, func(f string) bool { return strings.HasSuffix(f, "="+parameter) })
		r.c.groups = append(r.c.groups, g)
	}
	for _, p := range b.presets {
		p.Note, p.Groups, p.Body = b.note, b.groups, b.Body
		r.c.presets = append(r.c.presets, p)
	}
	if b.name != "" {
		r.sets[b.name] = b
	}
}

// index records which groups and presets use each flag.
func (c *Catalogue) index() {
	for _, g := range c.groups {
		for _, name := range namesOf(g.Flags) {
			if i, ok := c.byName[name]; ok {
				c.flags[i].Groups = append(c.flags[i].Groups, g.Name)
			}
		}
	}
	for _, p := range c.presets {
		for _, name := range namesOf(p.Flags) {
			if i, ok := c.byName[name]; ok {
				c.flags[i].Presets = append(c.flags[i].Presets, p.Name)
			}
		}
	}
}

func namesOf(flags []string) []string {
	var names []string
	for _, f := range flags {
		if name := parseWord(f).name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
