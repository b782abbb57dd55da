// Package xla knows the compiler flags that decide how fast a training step is. Its
// catalogue has flags, and the groups and presets that MaxText and Google's recipes set.
// The package finds what is wrong with a text of flags, and makes the environment of a
// command from presets and flags. It has no state. It does no I/O, except that it reads
// files that it is given.
package xla

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"multihost/internal/fault"
	"multihost/internal/tpu"
)

// Environment variables that contain flags.
const (
	LibtpuInitArgs = "LIBTPU_INIT_ARGS" // libtpu reads this variable once, when it is loaded
	XLAFlags       = "XLA_FLAGS"        // XLA itself reads this variable, for flags on GPU hosts
)

// GPU stands for a generation if the workers are GPU hosts that the user named one by one.
const GPU = "gpu"

// A Platform is the kind of hardware of a flag.
type Platform string

// The platforms.
const (
	PlatformTPU Platform = "tpu"
	PlatformGPU Platform = "gpu"
	PlatformAny Platform = "any"
)

// Variable returns the environment variable for the flags of the platform.
func (p Platform) Variable() string {
	if p == PlatformGPU {
		return XLAFlags
	}
	return LibtpuInitArgs
}

// A Flag is one entry of the catalogue.
type Flag struct {
	Name       string   `json:"name"`       // without dashes
	Type       string   `json:"type"`       // bool, tristate, int, number, text, path, list
	Documented bool     `json:"documented"` // false: its type and meaning are guesses from its name and its uses
	Platform   Platform `json:"platform"`
	Meaning    string   `json:"meaning"`
	Retired    *Retired `json:"retired,omitempty"`
	Groups     []string `json:"groups,omitempty"`  // groups that set it
	Presets    []string `json:"presets,omitempty"` // presets that set it
}

// Retired says why a flag should no longer be used, and what replaces it.
type Retired struct {
	Instead string `json:"instead,omitempty"` // NAME or NAME=VALUE; "": nothing
	Why     string `json:"why"`
}

// A Var is one variable of an environment.
type Var struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// A Group is a named set of flags or variables.
type Group struct {
	Name       string   `json:"name"`
	Platform   Platform `json:"platform"`
	About      string   `json:"about"`
	Note       string   `json:"note,omitempty"`
	Source     string   `json:"source"`
	On         []string `json:"on,omitempty"`          // generations that use it; nil: all
	Best       []string `json:"recommended,omitempty"` // generations for which MaxText's tuning guide recommends it
	Historical bool     `json:"historical,omitempty"`
	Parameter  bool     `json:"parameter,omitempty"` // users request it as NAME=VALUE
	Body
}

// A Preset is the set of flags and variables of one launcher.
type Preset struct {
	Name       string   `json:"name"` // generation first: "v5e/128b"
	Generation string   `json:"generation"`
	Model      string   `json:"model"`
	Source     string   `json:"source"`
	Note       string   `json:"note,omitempty"`
	Groups     []string `json:"groups,omitempty"` // groups that it contains
	Body
}

// A Body has the flags and variables that a group or a preset sets.
type Body struct {
	Flags    []string `json:"flags"`
	Env      []Var    `json:"env,omitempty"`
	Original []string `json:"original,omitempty"` // words of the source, if they were corrected
	Faults   []string `json:"faults,omitempty"`   // what was wrong with them
}

// Corrected reports whether the source had faults. Flags then has the corrected words.
func (b Body) Corrected() bool { return len(b.Faults) > 0 }

// Recommended reports whether the tuning guide recommends the group for the
// generation.
func (g Group) Recommended(generation string) bool { return slices.Contains(g.Best, generation) }

// Fits reports whether the group is for the generation. A group without generations is for
// all.
func (g Group) Fits(generation string) bool {
	if generation == GPU || g.Platform == PlatformGPU {
		return generation == GPU && g.Platform == PlatformGPU
	}
	return len(g.On) == 0 || slices.Contains(g.On, generation)
}

// A Catalogue is the table of flags, groups and presets. Its methods do not change it
// and are safe for concurrent use.
type Catalogue struct {
	sources []string
	aliases map[string]string  // older spelling of a generation → name
	vmem    map[string][]limit // by generation
	flags   []Flag
	byName  map[string]int // index in flags
	groups  []Group
	presets []Preset
}

type limit struct {
	mib    int
	source string
}

//go:embed catalogue.txt
var catalogueText string

// Load returns the catalogue in the program. Nobody changes it, so it is safe for
// concurrent use.
func Load() *Catalogue { return load() }

var load = sync.OnceValue(func() *Catalogue {
	c, err := parse(catalogueText)
	if err != nil {
		panic("xla: " + err.Error()) // cannot happen: a test parses the embedded text
	}
	return c
})

// Sources returns the sources of the catalogue's facts.
func (c *Catalogue) Sources() []string { return slices.Clone(c.sources) }

// Flags returns all flags, grouped by subject.
func (c *Catalogue) Flags() []Flag { return slices.Clone(c.flags) }

// Groups returns all groups, current ones before those of earlier versions.
func (c *Catalogue) Groups() []Group { return slices.Clone(c.groups) }

// Presets returns all presets.
func (c *Catalogue) Presets() []Preset { return slices.Clone(c.presets) }

// Lookup finds a flag by its name, which may have dashes and a value. The error is a
// *NameError.
func (c *Catalogue) Lookup(name string) (Flag, error) {
	w := parseWord(name)
	if f, ok := c.flag(w.name); ok {
		return f, nil
	}
	return Flag{}, &NameError{Kind: "flag", Name: name, Suggest: c.nearFlag(w.name)}
}

func (c *Catalogue) flag(name string) (Flag, bool) {
	i, ok := c.byName[name]
	if !ok {
		return Flag{}, false
	}
	return c.flags[i], true
}

// nearFlag returns the flag that a misspelt name most likely means, or "". Flag names are
// long and similar, so the name may differ in only one place.
func (c *Catalogue) nearFlag(name string) string {
	if len(name) < 4 || len(name) > 120 {
		return ""
	}
	name = strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	if _, ok := c.byName[name]; ok {
		return name
	}
	names := make([]string, len(c.flags))
	for i, f := range c.flags {
		names[i] = f.Name
	}
	s := tpu.Suggest(name, names)
	if s == "" {
		return ""
	}
	a, b := strip(name, s)
	if len(a) > 5 || len(b) > 5 {
		return ""
	}
	return s
}

// strip removes the common beginning and the common end of two texts.
func strip(a, b string) (string, string) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

// Generation returns the generation that text means: "v5e", an accelerator type such as
// "v5litepod-256", an older spelling such as "trillium", or "gpu". The error is a
// *tpu.TypeError.
func (c *Catalogue) Generation(text string) (string, error) {
	name := strings.ToLower(strings.TrimSpace(text))
	if g := c.generation(name); g != "" {
		return g, nil
	}
	t, err := tpu.ParseType(name)
	if err != nil {
		return "", err
	}
	return t.Generation.Name, nil
}

func (c *Catalogue) generation(name string) string {
	if a, ok := c.aliases[name]; ok {
		return a
	}
	if name == GPU || slices.ContainsFunc(tpu.Generations(), func(g tpu.Generation) bool { return g.Name == name }) {
		return name
	}
	return ""
}

// A NameError says that the catalogue has no flag, group or preset of a name, or that a
// short name could mean several.
type NameError struct {
	Kind    string // "flag" or "preset"
	Name    string
	Suggest string   // what the user probably meant, or ""
	Several []string // names that the short form could mean
}

func (e *NameError) Error() string {
	if len(e.Several) > 0 {
		return fmt.Sprintf("find XLA %s %q: it could be any of %d", e.Kind, e.Name, len(e.Several))
	}
	return fmt.Sprintf("find XLA %s %q: the catalogue has no such %s", e.Kind, e.Name, e.Kind)
}

// Fault returns fault.Usage.
func (e *NameError) Fault() fault.Kind { return fault.Usage }

// Hint returns what to type instead.
func (e *NameError) Hint() string {
	const most = 8
	list := "multihost xla " + e.Kind + "s"
	switch {
	case len(e.Several) > most:
		return fmt.Sprintf("type one of: %s, or one of %d more: %s", strings.Join(e.Several[:most], ", "), len(e.Several)-most, list)
	case len(e.Several) > 0:
		return "type one of: " + strings.Join(e.Several, ", ")
	case e.Suggest != "":
		return "did you mean " + e.Suggest + "? all of them: " + list
	}
	if e.Kind == "preset" {
		return "presets are named as v5e/128b, groups of flags as DATA_PARALLEL_OVERLAP; all of them: " + list
	}
	return "all of them: " + list
}

// Args holds the flags and variables of presets.
type Args struct {
	Platform Platform `json:"platform"`
	Names    []string `json:"presets"`
	Flags    []string `json:"flags"`
	Env      []Var    `json:"env,omitempty"`
}

// A MismatchError says that a preset is for another platform.
type MismatchError struct {
	Name     string
	Platform Platform // platform of the preset
	Target   Platform // platform of the workers or of the other presets
}

func (e *MismatchError) Error() string {
	where := map[Platform]string{PlatformTPU: "TPUs", PlatformGPU: "GPU hosts"}
	return fmt.Sprintf("use %q: it is for %s, not for %s", e.Name, where[e.Platform], where[e.Target])
}

// Fault returns fault.Usage.
func (e *MismatchError) Fault() fault.Kind { return fault.Usage }

// Hint says for which workers the preset is, or what to leave out.
func (e *MismatchError) Hint() string {
	if e.Platform == PlatformGPU {
		return "flags of GPUs are for machines named with --hosts, and not mixed with those of TPUs"
	}
	return "leave it out, or leave the GPU presets and flags out"
}

// Expand returns the flags of presets and groups, in the given order. A name is that of a
// preset ("v5e/128b") or of a group ("CF_FOR_ALL_GATHER", "CUSTOM_VMEM_LIMIT_FLAG=65536"),
// or the end of a preset's name ("128b") if only one preset of the generation has it. Names
// may be joined by commas. The generation may be "". The error is a *NameError or
// *MismatchError.
func (c *Catalogue) Expand(presets []string, generation string) (Args, error) {
	var args Args
	for _, name := range splitNames(presets) {
		full, platform, body, err := c.find(name, generation)
		if err != nil {
			return Args{}, err
		}
		target := args.Platform
		if target == "" && generation != "" {
			target = platformOf(generation)
		}
		if target != "" && target != platform {
			return Args{}, &MismatchError{Name: full, Platform: platform, Target: target}
		}
		args.Platform = platform
		args.Names = append(args.Names, full)
		args.Flags = append(args.Flags, body.Flags...)
		args.Env = append(args.Env, body.Env...)
	}
	return args, nil
}

func splitNames(lists []string) []string {
	var names []string
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.TrimSpace(name); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

func platformOf(generation string) Platform {
	if generation == GPU {
		return PlatformGPU
	}
	return PlatformTPU
}

// Group finds a group by its name, in upper or lower case. NAME=VALUE finds a group with a
// parameter and sets the parameter to VALUE. The error is a *NameError.
func (c *Catalogue) Group(name string) (Group, error) {
	base, value, given := strings.Cut(name, "=")
	for _, g := range c.groups {
		if !strings.EqualFold(g.Name, base) || given && !g.Parameter {
			continue
		}
		if given {
			g.Name += "=" + value
			g.Flags = substitute(g.Flags, value)
		}
		return g, nil
	}
	return Group{}, &NameError{Kind: "preset", Name: name, Suggest: c.nearPreset(name)}
}

// parameter stands for the value in the flags of a group with a parameter.
const parameter = "VALUE"

func substitute(flags []string, value string) []string {
	out := slices.Clone(flags)
	for i, f := range out {
		if rest, ok := strings.CutSuffix(f, "="+parameter); ok {
			out[i] = rest + "=" + value
		}
	}
	return out
}

// Preset finds a preset by its name, or by the end of its name if only one preset of the
// generation has it. The error is a *NameError.
func (c *Catalogue) Preset(name, generation string) (Preset, error) {
	wanted := c.canonical(name)
	if generation != "" && !strings.HasPrefix(wanted, generation+"/") {
		if p, ok := c.preset(generation + "/" + wanted); ok {
			return p, nil
		}
	}
	if p, ok := c.preset(wanted); ok {
		return p, nil
	}
	var found []Preset
	for _, p := range c.presets {
		if strings.HasSuffix(strings.ToLower(p.Name), "/"+wanted) && (generation == "" || p.Generation == generation) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		for _, p := range c.presets {
			if strings.HasPrefix(strings.ToLower(p.Name), wanted+"/") {
				found = append(found, p)
			}
		}
	}
	switch len(found) {
	case 0:
		return Preset{}, &NameError{Kind: "preset", Name: name, Suggest: c.nearPreset(name)}
	case 1:
		return found[0], nil
	}
	e := &NameError{Kind: "preset", Name: name}
	for _, p := range found {
		e.Several = append(e.Several, p.Name)
	}
	return Preset{}, e
}

// canonical returns a preset's name in the spelling of the catalogue: in lower case, with
// the present name of the generation. Of the path of a launch script, it drops the
// directories up to the generation, and the suffix .sh.
func (c *Catalogue) canonical(name string) string {
	name = strings.TrimSuffix(strings.ToLower(name), ".sh")
	if _, rest, ok := strings.Cut(name, "maxtext/configs/"); ok {
		name = rest
	}
	name = strings.TrimPrefix(strings.TrimPrefix(name, "tpu/"), "gpu/")
	first, rest, ok := strings.Cut(name, "/")
	if a := c.aliases[first]; ok && a != "" {
		return a + "/" + rest
	}
	return name
}

func (c *Catalogue) preset(name string) (Preset, bool) {
	for _, p := range c.presets {
		if strings.EqualFold(p.Name, name) {
			return p, true
		}
	}
	return Preset{}, false
}

func (c *Catalogue) find(name, generation string) (string, Platform, Body, error) {
	if g, err := c.Group(name); err == nil {
		base, value, _ := strings.Cut(g.Name, "=")
		if _, err := strconv.ParseUint(value, 10, 32); g.Parameter && err != nil {
			return "", "", Body{}, &NameError{Kind: "preset", Name: name, Suggest: base + "=65536"}
		}
		return g.Name, g.Platform, g.Body, nil
	}
	p, err := c.Preset(name, generation)
	if err != nil {
		return "", "", Body{}, err
	}
	return p.Name, platformOf(p.Generation), p.Body, nil
}

func (c *Catalogue) nearPreset(name string) string {
	if len(name) > 120 {
		return ""
	}
	var names []string
	for _, g := range c.groups {
		names = append(names, strings.ToLower(g.Name))
	}
	for _, p := range c.presets {
		names = append(names, strings.ToLower(p.Name))
	}
	s := tpu.Suggest(c.canonical(name), names)
	for _, g := range c.groups {
		if strings.EqualFold(g.Name, s) {
			return g.Name
		}
	}
	return s
}
