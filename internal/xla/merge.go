package xla

import (
	"fmt"
	"strings"
)

// A Report says what Merge did.
type Report struct {
	Kept    []string `json:"kept,omitempty"`    // words of the user's that are there as they were
	Added   []string `json:"added,omitempty"`   // words that came from presets and extra flags
	Changed []Change `json:"changed,omitempty"` // flags that were set twice with different values
}

// A Change is a flag of which a later word won over an earlier one.
type Change struct {
	Flag string `json:"flag"`
	From string `json:"from"` // the word that lost
	To   string `json:"to"`   // the word that won
	By   string `json:"by"`   // where it came from: a preset's name or --xla-flag
}

func (c Change) String() string { return fmt.Sprintf("%s replaced by %s of %s", c.From, c.To, c.By) }

// Merge puts presets and extra flags behind what the user has. Every flag is
// there once, with the value of its last word, which is also the one that
// libtpu would take; words that are no flags stay as they are. Without presets
// and extra flags the text is the user's own. Extra flags may be written with
// or without dashes.
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

// dashed gives a word the two dashes of a flag.
func dashed(w word) word {
	if w.dashes == "--" || w.name == "" {
		return w
	}
	return parseWord("--" + strings.TrimLeft(w.text, dashes))
}

// sameValue compares values as libtpu reads them: booleans in any spelling.
func sameValue(a, b word) bool {
	return a.value == b.value && a.hasValue == b.hasValue || truth(a) != "" && truth(a) == truth(b)
}

// truth is "true" or "false" for a word with the value of a boolean, where no
// value means true, and "" for any other.
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
