package xla

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/tpu"
)

// A Severity says how bad a finding is.
type Severity string

// The severities. An Error ends the process when it starts, or does the opposite of what
// the user meant. A Warning may cost speed. An Info has no effect.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Info    Severity = "info"
)

// The rules that cause findings.
const (
	RuleDashes     = "dashes"      // not exactly two dashes
	RuleNotAFlag   = "not-a-flag"  // a word that is not a flag
	RuleNoValue    = "no-value"    // a flag without a value
	RuleValue      = "value"       // a value that does not fit the flag's type
	RuleCommas     = "commas"      // flags separated by commas
	RuleDuplicate  = "duplicate"   // a flag that occurs twice
	RuleExclusive  = "exclusive"   // continuation fusion and SparseCore are on for the same collective
	RulePlatform   = "platform"    // a flag for the other platform
	RuleVMEM       = "vmem"        // more vector memory than the core has
	RuleRetired    = "retired"     // a name that should no longer be used
	RuleSparseCore = "sparse-core" // SparseCore flags on a generation without a SparseCore
	RuleUnknown    = "unknown"     // a flag that is not in the catalogue
	RuleAdded      = "added"       // flags that JAX and MaxText themselves add
	RuleOverwrites = "overwrites"  // a script that discards the variable's value
	RuleGeneration = "generation"  // a preset for another generation
	RuleKept       = "kept"        // a variable that the user has set already
)

// A Finding is one remark about a text of flags or a script.
type Finding struct {
	Severity Severity `json:"severity"`
	Rule     string   `json:"rule"`
	Flag     string   `json:"flag,omitempty"` // the word as the user wrote it
	Text     string   `json:"text"`
	Instead  string   `json:"instead,omitempty"` // what to type instead of the word
	Where    string   `json:"where,omitempty"`   // for a script: "train.sh:12"
}

func (f Finding) String() string {
	var b strings.Builder
	if f.Where != "" {
		b.WriteString(f.Where + ": ")
	}
	if f.Flag != "" {
		b.WriteString(f.Flag + ": ")
	}
	b.WriteString(f.Text)
	switch {
	case f.Instead == "":
	case f.Rule == RuleUnknown:
		b.WriteString("; if it is misspelt, type: " + f.Instead)
	default:
		b.WriteString("; type instead: " + f.Instead)
	}
	return b.String()
}

// Worst returns the highest severity among findings, or "".
func Worst(findings []Finding) Severity {
	for _, s := range []Severity{Error, Warning, Info} {
		if slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == s }) {
			return s
		}
	}
	return ""
}

// Check finds what is wrong with a text of flags for LIBTPU_INIT_ARGS of a generation or,
// if it is GPU, for XLA_FLAGS. If the generation is "", Check skips the rules that depend
// on it. Findings about single words come first, in the order of the text, then those about
// several words.
func (c *Catalogue) Check(text, generation string) []Finding {
	l := lint{c: c, generation: generation, platform: platformOf(generation)}
	l.run(text)
	return l.findings
}

// Strict returns the findings with each unknown flag as an error.
func Strict(findings []Finding) []Finding {
	strict := slices.Clone(findings)
	for i := range strict {
		if strict[i].Rule == RuleUnknown {
			strict[i].Severity = Error
		}
	}
	return strict
}

// Correct returns the text with every error, missing value, repeated flag and renamed flag
// corrected. It keeps words that are only questionable.
func (c *Catalogue) Correct(text, generation string) string {
	// A repaired word can have another fault. Each round repairs at least one of the few
	// kinds of faults that a word can have.
	for range 6 {
		l := lint{c: c, generation: generation, platform: platformOf(generation)}
		l.run(text)
		next := strings.Join(l.repaired(), " ")
		if next == text {
			break
		}
		text = next
	}
	return text
}

// lint is one check of a text.
type lint struct {
	c          *Catalogue
	generation string
	platform   Platform

	words    []word
	repair   []string // the correction of each word; "": remove it
	findings []Finding
}

func (l *lint) run(text string) {
	l.words = split(text)
	l.repair = make([]string, len(l.words))
	for i, w := range l.words {
		l.repair[i] = w.text
	}
	for i, w := range l.words {
		l.word(i, w)
	}
	l.duplicates()
	l.exclusive()
	l.sparseCore()
	l.added()
}

func (l *lint) repaired() []string {
	return slices.DeleteFunc(slices.Clone(l.repair), func(s string) bool { return s == "" })
}

func (l *lint) find(s Severity, rule, flag, instead, format string, args ...any) {
	l.findings = append(l.findings, Finding{Severity: s, Rule: rule, Flag: flag, Instead: instead, Text: fmt.Sprintf(format, args...)})
}

// word checks one word alone.
func (l *lint) word(i int, w word) {
	switch {
	case w.dashes == "":
		l.notAFlag(i, w)
		return
	case w.name == "":
		l.find(Error, RuleNotAFlag, w.text, "", "it is no flag: no name comes after the dashes")
		l.repair[i] = ""
		return
	case w.dashes != "--":
		l.repair[i] = "--" + strings.TrimLeft(w.text, dashes)
		l.find(Error, RuleDashes, w.text, l.repair[i], "a flag begins with exactly two dashes")
		return
	}
	if j := strings.Index(w.value, ",--"); j >= 0 {
		l.repair[i] = strings.ReplaceAll(w.text, ",--", " --")
		l.find(Error, RuleCommas, w.text, l.repair[i], "flags are separated by blanks, not by commas")
		return
	}
	f, known := l.c.flag(w.name)
	if !known {
		l.unknown(i, w)
		return
	}
	if f.Platform != PlatformAny && f.Platform != l.platform {
		l.otherPlatform(i, w, f.Platform)
		return
	}
	if f.Retired != nil {
		l.retired(i, w, f)
		return
	}
	l.value(i, w, f)
	l.vmem(w)
}

func (l *lint) notAFlag(i int, w word) {
	_, known := l.c.flag(w.name)
	switch near := l.c.nearFlag(w.name); {
	case known || strings.HasPrefix(w.name, "xla_") || strings.HasPrefix(w.name, "megascale_"):
		l.repair[i] = "--" + w.text
		l.find(Error, RuleNotAFlag, w.text, l.repair[i], "a flag begins with two dashes")
	case near != "":
		l.repair[i] = "--" + near + strings.TrimPrefix(w.text, w.name)
		l.find(Error, RuleNotAFlag, w.text, l.repair[i], "it is no flag, but close to one")
	case w.hasValue && isVariable(w.name):
		l.repair[i] = ""
		l.find(Error, RuleNotAFlag, w.text, "--env="+w.text, "it is no flag: inside this value it sets no variable of the environment")
	case i > 0 && l.words[i-1].right() && !l.words[i-1].hasValue && !w.hasValue:
		l.repair[i-1], l.repair[i] = l.words[i-1].text+"="+w.text, ""
		l.find(Error, RuleNotAFlag, w.text, l.repair[i-1], "it is no flag: a value is joined to its flag with =")
	default:
		l.repair[i] = ""
		l.find(Error, RuleNotAFlag, w.text, "", "it is no flag: leave it out")
	}
}

func isVariable(name string) bool {
	for i, r := range name {
		if r != '_' && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}

func (l *lint) unknown(i int, w word) {
	if p := namedPlatform(w.name); p != PlatformAny && p != l.platform {
		l.otherPlatform(i, w, p)
		return
	}
	if near := l.c.nearFlag(w.name); near != "" {
		rest := strings.TrimPrefix(w.text, "--"+w.name)
		l.find(Warning, RuleUnknown, w.text, "--"+near+rest, "unknown: the catalogue has a similar flag, but not this one, which may be newer")
		return
	}
	l.find(Info, RuleUnknown, w.text, "", "unknown: the catalogue does not have this flag, which may be newer")
}

// namedPlatform returns the platform that the name of a flag implies.
func namedPlatform(name string) Platform {
	switch {
	case strings.HasPrefix(name, "xla_gpu_"):
		return PlatformGPU
	case strings.HasPrefix(name, "xla_tpu_"), strings.HasPrefix(name, "xla_sc_"), strings.HasPrefix(name, "xla_jf_"), strings.HasPrefix(name, "megascale_"):
		return PlatformTPU
	}
	return PlatformAny
}

func (l *lint) otherPlatform(i int, w word, p Platform) {
	l.repair[i] = ""
	if p == PlatformGPU {
		l.find(Error, RulePlatform, w.text, "", "a flag of GPUs: libtpu ends the process at its start; leave it out, it belongs in %s of GPU hosts", XLAFlags)
		return
	}
	l.find(Error, RulePlatform, w.text, "", "a flag of TPUs: leave it out, it belongs in %s", LibtpuInitArgs)
}

func (l *lint) retired(i int, w word, f Flag) {
	instead := f.Retired.Instead
	if instead == "" {
		l.repair[i] = ""
		l.find(Warning, RuleRetired, w.text, "", "retired, leave it out: %s", f.Retired.Why)
		return
	}
	name, value, pair := strings.Cut(instead, "=")
	switch {
	case pair && truth(w) == "false":
		value = "off"
	case pair:
	case truth(w) == "false":
		value = "" // an empty list means off
	default:
		l.find(Warning, RuleRetired, w.text, "--"+name+"=…", "retired: %s", f.Retired.Why)
		return
	}
	l.repair[i] = "--" + name + "=" + value
	l.find(Warning, RuleRetired, w.text, l.repair[i], "retired: %s", f.Retired.Why)
}

// value checks a value against the type of its flag.
func (l *lint) value(i int, w word, f Flag) {
	boolean := f.Type == "bool" || f.Type == "tristate"
	switch {
	case !w.hasValue && boolean:
		l.repair[i] = w.text + "=true"
		l.find(Warning, RuleNoValue, w.text, l.repair[i], "no value")
		return
	case !w.hasValue:
		l.repair[i] = ""
		l.find(Error, RuleNoValue, w.text, w.text+"=VALUE", "no value, and its type is %s", f.Type)
		return
	}
	var ok bool
	var want string
	switch f.Type {
	case "bool":
		ok, want = truth(w) != "", "true or false"
	case "tristate":
		ok, want = truth(w) != "" || strings.EqualFold(w.value, "kAuto") || strings.EqualFold(w.value, "auto"), "true, false or kAuto"
	case "int":
		_, err := strconv.ParseInt(w.value, 10, 64)
		ok, want = err == nil, "an integer"
	case "number":
		_, err := strconv.ParseFloat(w.value, 64)
		ok, want = err == nil, "a number"
	case "list":
		ok, want = !strings.ContainsAny(w.value, " \t\n"), "names with commas and no blanks between"
	default:
		ok = true
	}
	if ok {
		return
	}
	severity := Warning // the catalogue only guesses the type
	if f.Documented {
		severity = Error
		l.repair[i] = ""
	}
	l.find(severity, RuleValue, w.text, "--"+w.name+"=VALUE", "the value has to be %s", want)
}

const vmemFlag = "xla_tpu_scoped_vmem_limit_kib"

func (l *lint) vmem(w word) {
	limits := l.c.vmem[l.generation]
	kib, err := strconv.Atoi(w.value)
	if w.name != vmemFlag || err != nil || len(limits) == 0 {
		return
	}
	low, high := limits[0], limits[0]
	for _, x := range limits {
		if x.mib < low.mib {
			low = x
		}
		if x.mib > high.mib {
			high = x
		}
	}
	if kib <= low.mib*1024 {
		return
	}
	text := fmt.Sprintf("more than the %d MiB of vector memory of a %s core (%s)", low.mib, l.generation, low.source)
	if kib <= high.mib*1024 {
		text += fmt.Sprintf("; %s says %d MiB", high.source, high.mib)
	}
	l.find(Warning, RuleVMEM, w.text, fmt.Sprintf("--%s=%d", vmemFlag, low.mib*1024), "%s", text)
}

// duplicates finds repeated flags, of which the last one counts.
func (l *lint) duplicates() {
	last := map[string]int{}
	for i, w := range l.words {
		if !w.right() {
			continue
		}
		if j, twice := last[w.name]; twice {
			l.repair[j] = ""
			if sameValue(l.words[j], w) {
				l.find(Info, RuleDuplicate, w.text, "", "it is there twice with the same value")
			} else {
				l.find(Warning, RuleDuplicate, l.words[j].text, w.text, "it is there again with another value, and the last one counts")
			}
		}
		last[w.name] = i
	}
}

// collectives returns the collectives that either continuation fusion or the SparseCore
// can carry out.
func collectives() []string { return []string{"all_gather", "all_reduce", "reduce_scatter"} }

const (
	fusePrefix    = "xla_tpu_enable_async_collective_fusion_fuse_"
	offloadPrefix = "xla_tpu_enable_sparse_core_collective_offload_"
)

// exclusive finds collectives for which both mechanisms are on, although only one may be.
// It keeps the one recommended for the generation.
func (l *lint) exclusive() {
	set := map[string]int{}
	for i, w := range l.words {
		if w.right() {
			set[w.name] = i
		}
	}
	for _, kind := range collectives() {
		f, fused := set[fusePrefix+kind]
		o, named := set[offloadPrefix+kind]
		if !fused || truth(l.words[f]) != "true" {
			continue
		}
		fuse := l.words[f].text
		switch name := strings.ReplaceAll(kind, "_", "-"); {
		case named && truth(l.words[o]) == "true" && l.prefersSparseCore():
			l.repair[f] = "--" + fusePrefix + kind + "=false"
			l.find(Error, RuleExclusive, fuse, l.repair[f], "%s is offloaded to the SparseCore too (%s): only one of the two may be on", name, l.words[o].text)
		case named && truth(l.words[o]) == "true":
			l.repair[o] = "--" + offloadPrefix + kind + "=false"
			l.find(Error, RuleExclusive, l.words[o].text, l.repair[o], "%s is in continuation fusion too (%s): only one of the two may be on", name, fuse)
		case !named && l.prefersSparseCore():
			l.find(Warning, RuleExclusive, fuse, "--"+fusePrefix+kind+"=false", "%s is offloaded to the SparseCore of %s by default, and only one of the two may be on", name, l.generation)
		}
	}
}

// prefersSparseCore reports whether the tuning guide recommends the SparseCore for the
// generation.
func (l *lint) prefersSparseCore() bool {
	return slices.ContainsFunc(l.c.groups, func(g Group) bool {
		return g.Recommended(l.generation) && strings.Contains(g.Name, "SPARSECORE")
	})
}

// sparseCore finds SparseCore flags on generations without a SparseCore.
func (l *lint) sparseCore() {
	if g, known := tpu.GenerationOf(l.generation); !known || g.SparseCore {
		return
	}
	var found []string
	for _, w := range l.words {
		if w.right() && (strings.HasPrefix(w.name, "xla_sc_") || strings.Contains(w.name, "sparse_core") || strings.Contains(w.name, "sparsecore") || strings.HasSuffix(w.name, "_on_sc")) {
			found = append(found, w.text)
		}
	}
	if len(found) == 0 {
		return
	}
	more := ""
	if len(found) > 1 {
		more = fmt.Sprintf(" (and %d more such flags)", len(found)-1)
	}
	l.find(Warning, RuleSparseCore, found[0], "", "a flag of the SparseCore%s, which %s has no use for", more, l.generation)
}

// added reports the flags that JAX and MaxText add if the text lacks them.
func (l *lint) added() {
	if l.platform != PlatformTPU || len(l.words) == 0 {
		return
	}
	for _, a := range []struct{ flag, by string }{
		{"--xla_tpu_use_enhanced_launch_barrier=true", "JAX"},
		{"--xla_tpu_spmd_rng_bit_generator_unsafe=true", "MaxText's train.py"},
	} {
		if !slices.ContainsFunc(l.words, func(w word) bool { return w.name == parseWord(a.flag).name }) {
			l.find(Info, RuleAdded, a.flag, "", "%s adds it when it is not named", a.by)
		}
	}
}
