package xla

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"multihost/internal/fault"
)

// A Request says which flags a command should get.
type Request struct {
	User       func(name string) (value string, ok bool) // the command's environment without multihost's variables
	Presets    []string                                  // values of --xla-preset
	Flags      []string                                  // values of --xla-flag, with or without dashes
	Generation string                                    // generation of the workers; "": unknown
	Hosts      bool                                      // the user named the machines one by one, so they may be GPU hosts
}

// An Environment is the result of a Request.
type Environment struct {
	Vars     []Var     `json:"vars"` // variables to set, with the user's flags
	Report   Report    `json:"report"`
	Findings []Finding `json:"findings,omitempty"`
}

// Lines returns what will be set, as lines for people before the start.
func (e Environment) Lines() []string {
	var lines []string
	for _, v := range e.Vars {
		lines = append(lines, v.Name+"="+v.Value)
	}
	for _, c := range e.Report.Changed {
		lines = append(lines, c.String())
	}
	return lines
}

// A FlagError says that a value of --xla-flag is not a valid flag.
type FlagError struct {
	Text    string
	Finding Finding
}

func (e *FlagError) Error() string {
	return fmt.Sprintf("read --xla-flag=%s: %s", e.Text, e.Finding.Text)
}

// Fault returns fault.Usage.
func (e *FlagError) Fault() fault.Kind { return fault.Usage }

// Hint returns what to type instead.
func (e *FlagError) Hint() string {
	if e.Finding.Instead == "" {
		return "a flag is written NAME=VALUE; all that are known: multihost xla flags"
	}
	return "type: --xla-flag=" + strings.TrimPrefix(e.Finding.Instead, "--")
}

// CheckNames checks the presets and flags of a request while the workers are unknown. It
// returns an error for a name that is invalid on every kind of worker. It accepts a short
// name of several presets, because the workers' generation may decide. The error is a
// *NameError, *MismatchError or *FlagError.
func (c *Catalogue) CheckNames(r Request) error {
	for _, name := range splitNames(r.Presets) {
		_, err := c.Expand([]string{name}, r.Generation)
		var wrong *NameError
		if err != nil && (r.Generation != "" || !errors.As(err, &wrong) || len(wrong.Several) == 0) {
			return err
		}
	}
	_, err := c.extra(r.Flags, r.Generation)
	return err
}

// Environment returns the variables for presets and flags: LIBTPU_INIT_ARGS for TPUs,
// XLA_FLAGS for GPU hosts, and the other variables that groups set. It keeps the user's
// flags in the variable, which presets and flags override. It does not change other
// variables that the user has set; a different value there is a finding. Without presets
// and flags, it returns no variables, and findings only about the user's own flags. The
// error is a *NameError, *MismatchError or *FlagError.
func (c *Catalogue) Environment(r Request) (Environment, error) {
	user := r.User
	if user == nil {
		user = func(string) (string, bool) { return "", false }
	}
	args, err := c.Expand(r.Presets, r.Generation)
	if err != nil {
		return Environment{}, err
	}
	if err := c.platform(&args, r); err != nil {
		return Environment{}, err
	}
	generation := r.Generation
	if args.Platform == PlatformGPU {
		generation = GPU
	}
	extra, err := c.extra(r.Flags, generation)
	if err != nil {
		return Environment{}, err
	}

	var e Environment
	name := args.Platform.Variable()
	had, _ := user(name)
	text, report := Merge(had, args, extra)
	e.Report = report
	e.Findings = append(e.Findings, c.Check(text, generation)...)
	e.Findings = append(e.Findings, c.otherVariable(user, name)...)
	e.Findings = append(e.Findings, c.otherGeneration(args, generation)...)
	if len(args.Flags)+len(extra) > 0 {
		e.Vars = append(e.Vars, Var{name, text})
	}
	for _, v := range args.Env {
		if i := slices.IndexFunc(e.Vars, func(have Var) bool { return have.Name == v.Name }); i >= 0 {
			e.Vars[i] = v
			continue
		}
		if value, ok := user(v.Name); ok {
			if value != v.Value {
				e.Findings = append(e.Findings, Finding{Severity: Warning, Rule: RuleKept, Text: fmt.Sprintf("%s is %q in the command's environment and stays so; %s would make it %q", v.Name, value, strings.Join(args.Names, ","), v.Value)})
			}
			continue
		}
		e.Vars = append(e.Vars, v)
	}
	return e, nil
}

// platform sets the platform of the flags if the presets do not decide it. For GPU presets
// and workers that cannot be GPU hosts, it returns a *MismatchError.
func (c *Catalogue) platform(args *Args, r Request) error {
	gpu := r.Generation == GPU
	if args.Platform == "" {
		for _, text := range r.Flags {
			for _, w := range split(text) {
				p := namedPlatform(w.name)
				if f, ok := c.flag(w.name); ok {
					p = f.Platform
				}
				gpu = gpu || p == PlatformGPU && r.Hosts && r.Generation == ""
			}
		}
		args.Platform = PlatformTPU
		if gpu {
			args.Platform = PlatformGPU
		}
	}
	if args.Platform == PlatformGPU && !r.Hosts {
		return &MismatchError{Name: strings.Join(args.Names, ","), Platform: PlatformGPU, Target: PlatformTPU}
	}
	return nil
}

// extra parses the values of --xla-flag. If Check finds an error in one of them, it returns
// a *FlagError with the value as the user typed it.
func (c *Catalogue) extra(values []string, generation string) ([]string, error) {
	var extra []string
	for _, text := range values {
		words := split(text)
		if len(words) == 0 {
			return nil, &FlagError{Text: text, Finding: Finding{Text: "it is empty"}}
		}
		for _, w := range words {
			if w.dashes == "" && isVariable(w.name) {
				return nil, &FlagError{Text: text, Finding: Finding{Text: "it is a variable, no flag; set it with --env"}}
			}
			flag := dashed(w).text
			for _, f := range c.Check(flag, generation) {
				if f.Severity == Error {
					return nil, &FlagError{Text: text, Finding: f}
				}
			}
			extra = append(extra, flag)
		}
	}
	return extra, nil
}

// otherVariable finds flags that belong into the variable name but that the user has put
// into the other platform's variable.
func (c *Catalogue) otherVariable(user func(string) (string, bool), name string) []Finding {
	other, p := XLAFlags, PlatformTPU
	if name == XLAFlags {
		other, p = LibtpuInitArgs, PlatformGPU
	}
	text, _ := user(other)
	var findings []Finding
	for _, w := range split(text) {
		if namedPlatform(w.name) == p {
			findings = append(findings, Finding{Severity: Warning, Rule: RulePlatform, Flag: w.text, Text: "it stands in " + other + ", which does not take it", Instead: "--env=" + name + "=" + w.text})
		}
	}
	return findings
}

func (c *Catalogue) otherGeneration(args Args, generation string) []Finding {
	if generation == "" {
		return nil
	}
	var findings []Finding
	for _, name := range args.Names {
		if p, ok := c.preset(name); ok && p.Generation != generation {
			findings = append(findings, Finding{Severity: Warning, Rule: RuleGeneration, Text: fmt.Sprintf("preset %s was made for %s, and the workers are %s", name, p.Generation, generation)})
		}
	}
	return findings
}
