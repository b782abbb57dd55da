package tpu

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MostAlike limits how many groups of workers, slices or hosts one message names.
const MostAlike = 4

// An Alike is a group of things with the same text.
type Alike struct {
	Text   string
	At     []int // their indexes, ascending
	Others int   // number of other texts in this group that are not shown
}

// GroupAlike groups the indexes of equal texts. It skips empty texts. The groups are in the order
// in which their texts first occur. If there are more than MostAlike texts, GroupAlike keeps the
// groups of the first text and of the most frequent others. A last group joins the rest.
func GroupAlike(texts []string) []Alike {
	index := map[string]int{}
	var groups []Alike
	for i, text := range texts {
		if text == "" {
			continue
		}
		at, known := index[text]
		if !known {
			at = len(groups)
			index[text] = at
			groups = append(groups, Alike{Text: text})
		}
		groups[at].At = append(groups[at].At, i)
	}
	if len(groups) <= MostAlike {
		return groups
	}
	largest := slices.Clone(groups[1:])
	slices.SortStableFunc(largest, func(a, b Alike) int { return cmp.Compare(len(b.At), len(a.At)) })
	named := append(groups[:1:1], largest[:MostAlike-1]...)
	slices.SortFunc(named, func(a, b Alike) int { return cmp.Compare(a.At[0], b.At[0]) })
	rest := Alike{Text: largest[MostAlike-1].Text, Others: len(groups) - len(named) - 1}
	for _, g := range largest[MostAlike-1:] {
		rest.At = append(rest.At, g.At...)
	}
	slices.Sort(rest.At)
	if rest.Others > 0 {
		rest.Text = fmt.Sprintf("%d other causes, such as: %s", rest.Others+1, rest.Text)
	}
	return append(named, rest)
}

// longestFold is the longest form of a set of workers that FoldShort leaves whole.
const longestFold = 80

// FoldShort returns the text of Fold for a message. It shortens a long text, and adds the number
// of workers.
func FoldShort(workers []WorkerID) string {
	text := Fold(workers)
	if len(text) <= longestFold {
		return text
	}
	cut := strings.LastIndexByte(text[:longestFold*3/4], ',')
	if cut < 0 {
		return text
	}
	text = text[:cut] + ",…"
	if strings.Count(text, "[") > strings.Count(text, "]") {
		text += "]"
	}
	return fmt.Sprintf("%s (%d workers)", text, len(workers))
}

// FewNames lists names. If there are more than MostAlike, it lists the first ones and the number
// of the others.
func FewNames(names []string) string {
	if len(names) <= MostAlike {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:MostAlike-1], ", "), len(names)-MostAlike+1)
}

// FoldProblems joins the problems of a Selection that several slices share. Example: slice "t-0",
// like "t-1", "t-2" and 61 more, is not ready.
func FoldProblems(problems []string) []string {
	names, texts := make([]string, len(problems)), make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p
		if rest, ok := strings.CutPrefix(p, `slice "`); ok {
			if name, does, ok := strings.Cut(rest, `" `); ok {
				names[i], texts[i] = strconv.Quote(name), does
			}
		}
	}
	var folded []string
	for _, g := range GroupAlike(texts) {
		first := names[g.At[0]]
		if first == "" || len(g.At) == 1 && g.Others == 0 {
			folded = append(folded, problems[g.At[0]])
			continue
		}
		var like []string
		for _, at := range g.At[1:] {
			like = append(like, names[at])
		}
		if g.Others > 0 {
			folded = append(folded, fmt.Sprintf("slice %s and %d more: %s", first, len(like), g.Text))
			continue
		}
		folded = append(folded, fmt.Sprintf("slice %s, like %s, %s", first, FewNames(like), g.Text))
	}
	return folded
}

// FoldTexts joins texts about named things: "a, b: text; c: text". texts[i] is about names[i].
// Names with the same text share a clause, which has only a few of them. Empty texts are left
// out.
func FoldTexts(names, texts []string) string {
	var parts []string
	for _, g := range GroupAlike(texts) {
		who := make([]string, len(g.At))
		for i, at := range g.At {
			who[i] = names[at]
		}
		parts = append(parts, FewNames(who)+": "+g.Text)
	}
	return strings.Join(parts, "; ")
}
