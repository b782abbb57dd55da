package xla

import (
	"fmt"
	"strings"
)

// A Report says what Merge did.
type Report struct {
	Kept    []string `json:"kept,omitempty"`    // the user's unchanged words
	Added   []string `json:"added,omitempty"`   // words from presets and extra flags
	Changed []Change `json:"changed,omitempty"` // flags that occurred twice with different values
}

// A Change is a flag whose earlier word gave way to a later one.
type Change struct {
	Flag string `json:"flag"`
	From string `json:"from"` // the earlier word
	To   string `json:"to"`   // the later word, which counts
	By   string `json:"by"`   // source of To: names of presets, or --xla-flag
}

func (c Change) String() string { return fmt.Sprintf("%s replaced by %s of %s", c.From, c.To, c.By) }

// Merge appends presets and extra flags to the user's text. The result has every flag once,
// with the value of the last word, which libtpu would use, too. Words that are no flags do
// not change. Without presets and extra flags, Merge returns the user's text. Extra flags
// may lack the dashes.
func Merge(user string, preset Args, extra []string) (string, Report) {
	var report Report
	if len(preset.Flags) == 0 && len(extra) == 0 {
		report.Kept = Words(user)
		return user, report
	}
	type entry struct {
		word
		by string
	}
	var entries []entry
	put := func(w word, by string) {
		if w.right() {
			for i, e := range entries {
				if e.right() && e.name == w.name {
					if !sameValue(e.word, w) {
						report.Changed = append(report.Changed, Change{Flag: w.name, From: e.text, To: w.text, By: by})
					}
					entries = append(entries[:i], entries[i+1:]...)
					break
				}
			}
		}
		entries = append(entries, entry{w, by})
	}
	const theUser = "the environment"
	for _, w := range split(user) {
		put(w, theUser)
	}
	by := strings.Join(preset.Names, ",")
	for _, f := range preset.Flags {
		put(parseWord(f), by)
	}
	for _, f := range extra {
		for _, w := range split(f) {
			put(dashed(w), "--xla-flag")
		}
	}
	words := make([]word, len(entries))
	for i, e := range entries {
		words[i] = e.word
		if e.by == theUser {
			report.Kept = append(report.Kept, e.text)
		} else {
			report.Added = append(report.Added, e.text)
		}
	}
	return join(words), report
}

// dashed returns the word with the two dashes of a flag.
func dashed(w word) word {
	if w.dashes == "--" || w.name == "" {
		return w
	}
	return parseWord("--" + strings.TrimLeft(w.text, dashes))
}

// sameValue compares values as libtpu does: all spellings of a boolean value are equal.
func sameValue(a, b word) bool {
	return a.value == b.value && a.hasValue == b.hasValue || truth(a) != "" && truth(a) == truth(b)
}

// truth returns "true" or "false" for a word with a boolean value, otherwise "". A word
// without a value is true.
func truth(w word) string {
	if !w.hasValue {
		return "true"
	}
	switch strings.ToLower(w.value) {
	case "true", "t", "yes", "y", "1":
		return "true"
	case "false", "f", "no", "n", "0":
		return "false"
	}
	return ""
}
