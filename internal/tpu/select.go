package tpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/fault"
)

// A Selection is the set of slices for a run.
type Selection struct {
	Slices   []Slice  // with Index 0..n-1, in the order of the numbers in their names
	Problems []string // how this set differs from the one that the prefix means; nil: it does not
	Unready  []Slice  // slices of the prefix that were left out because they are not ready
}

// Workers returns all workers of the selection in order, process 0 first.
func (s Selection) Workers() []WorkerID {
	var all []WorkerID
	for _, slice := range s.Slices {
		for w := range slice.Workers {
			all = append(all, WorkerID{slice.Index, w})
		}
	}
	return all
}

// A NoSlicesError says that no slice fits a prefix.
type NoSlicesError struct {
	Prefix  string
	Present []string // names of the existing slices
}

func (e *NoSlicesError) Error() string {
	return fmt.Sprintf("find slices %q: no slice has that name, and none is named %s", e.Prefix, e.Prefix+"-<number>")
}

// Fault returns fault.Unavailable.
func (e *NoSlicesError) Fault() fault.Kind { return fault.Unavailable }

// Hint names the existing slices, or the command that makes some.
func (e *NoSlicesError) Hint() string {
	if len(e.Present) == 0 {
		return "there are no slices in this project and zone; make some with: multihost slices create ID --node-count=2 --node-prefix=" + e.Prefix + " --tpu-type=TYPE"
	}
	list := e.Present
	more := ""
	if len(list) > 8 {
		list, more = list[:8], fmt.Sprintf(" and %d more", len(e.Present)-8)
	}
	hint := "slices here: " + strings.Join(list, ", ") + more
	if s := Suggest(e.Prefix, families(e.Present)); s != "" {
		hint += "; did you mean --tpu-prefix=" + s + "?"
	}
	return hint
}

func families(names []string) []string {
	all := slices.Clone(names)
	for _, n := range names {
		if base, _, ok := splitNumber(n); ok {
			all = append(all, base)
		}
	}
	return all
}

// SelectNumbered chooses the slices of a run by a prefix. nodes are all slices of a zone. It
// chooses the slice whose name is prefix, or else the family prefix-0, prefix-1, …. It compares
// names literally. All slices of a family have the accelerator type of the one with the lowest
// number. If a queued resource for several nodes made one of them, it must have made all of them.
// Other slices with the prefix are foreign.
//
// Problems lists missing numbers, foreign slices, different numbers of workers, and slices
// that are not ready. Foreign slices are never in Slices. Without partial, Slices has the
// whole family, for people to see. With partial, SelectNumbered leaves out slices that are
// not ready, and numbers the others from 0. If there are no slices, the error is a
// *NoSlicesError.
//
// If only is not nil, SelectNumbered chooses only slices of the family whose names have
// numbers in only, and numbers them from 0. If there are none, the error is a *NumberError.
func SelectNumbered(nodes []Slice, prefix string, only Numbers, partial bool) (Selection, error) {
	var err error
	if only != nil {
		if nodes, err = numbered(nodes, prefix, only); err != nil {
			return Selection{}, err
		}
	}
	family, problems := findFamily(nodes, prefix, only == nil)
	if len(family) == 0 {
		names := make([]string, len(nodes))
		for i, n := range nodes {
			names[i] = n.Name
		}
		slices.Sort(names)
		return Selection{}, &NoSlicesError{Prefix: prefix, Present: names}
	}
	var chosen, unready []Slice
	for _, s := range family {
		if ok, why := s.Ready(); !ok {
			problems = append(problems, fmt.Sprintf("slice %q is not ready: %s", s.Name, why))
			if partial {
				unready = append(unready, s)
				continue
			}
		}
		chosen = append(chosen, s)
	}
	for _, s := range chosen {
		if len(s.Workers) > 0 && len(chosen[0].Workers) > 0 && len(s.Workers) != len(chosen[0].Workers) {
			problems = append(problems, fmt.Sprintf("slice %q has %d workers, %q has %d", s.Name, len(s.Workers), chosen[0].Name, len(chosen[0].Workers)))
		}
	}
	for i := range chosen {
		chosen[i].Index = i
	}
	return Selection{Slices: chosen, Problems: problems, Unready: unready}, nil
}

// A NumberError says that no slice of a family has the number that the user asked for.
type NumberError struct {
	Prefix  string
	Number  int      // -1: the prefix is the whole name of a slice
	Present []string // names of the family
}

func (e *NumberError) Error() string {
	if e.Number < 0 {
		return fmt.Sprintf("choose slices of %q: that is the whole name of one slice, which has no numbers", e.Prefix)
	}
	return fmt.Sprintf("choose slices of %q: there is no slice %q", e.Prefix, e.Prefix+"-"+strconv.Itoa(e.Number))
}

// Fault returns fault.Unavailable.
func (e *NumberError) Fault() fault.Kind { return fault.Unavailable }

// Hint names the existing slices.
func (e *NumberError) Hint() string {
	return "the numbers are those in the slices' names: " + strings.Join(e.Present, ", ")
}

// numbered returns the nodes called prefix-N with N in only.
func numbered(nodes []Slice, prefix string, only Numbers) (chosen []Slice, err error) {
	var names []string
	have := map[int]bool{}
	for _, s := range nodes {
		base, n, ok := splitNumber(s.Name)
		switch {
		case s.Name == prefix:
			return nil, &NumberError{Prefix: prefix, Number: -1, Present: []string{s.Name}}
		case !ok || base != prefix:
			continue
		}
		names, have[n] = append(names, s.Name), true
		if only.has(n) {
			chosen = append(chosen, s)
		}
	}
	if len(names) == 0 {
		return nodes, nil // no slice has the prefix; the caller reports that
	}
	slices.SortFunc(names, func(a, b string) int { return CompareNames(Slice{Name: a}, Slice{Name: b}) })
	for _, r := range only {
		for n := r[0]; n <= r[1]; n++ {
			if !have[n] {
				return nil, &NumberError{Prefix: prefix, Number: n, Present: names}
			}
		}
	}
	return chosen, nil
}

// findFamily returns the slices that belong to a prefix. With whole, a missing number is a
// problem.
func findFamily(nodes []Slice, prefix string, whole bool) (family []Slice, problems []string) {
	type numbered struct {
		Slice
		n int
	}
	var found []numbered
	for _, s := range nodes {
		if s.Name == prefix {
			return []Slice{s}, nil
		}
		if base, n, ok := splitNumber(s.Name); ok && base == prefix {
			found = append(found, numbered{s, n})
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	slices.SortFunc(found, func(a, b numbered) int { return a.n - b.n })
	first := found[0]
	next := 0
	for _, s := range found {
		switch {
		case s.Type != first.Type:
			problems = append(problems, fmt.Sprintf("slice %q shares the prefix but is a %s, %q is a %s", s.Name, s.Type, first.Name, first.Type))
			continue
		case s.QueuedResource != first.QueuedResource && (s.MultiSlice || first.MultiSlice):
			problems = append(problems, fmt.Sprintf("slice %q shares the prefix but belongs to %s, %q to %s", s.Name, describeQR(s.Slice), first.Name, describeQR(first.Slice)))
			continue
		}
		for ; whole && next < s.n; next++ {
			if s.n-next > 3 {
				problems = append(problems, fmt.Sprintf("slices %q to %q are missing before %q", prefix+"-"+strconv.Itoa(next), prefix+"-"+strconv.Itoa(s.n-1), s.Name))
				break
			}
			problems = append(problems, fmt.Sprintf("slice %q is missing", prefix+"-"+strconv.Itoa(next)))
		}
		next = s.n + 1
		family = append(family, s.Slice)
	}
	return family, problems
}

func describeQR(s Slice) string {
	if s.QueuedResource == "" {
		return "no request"
	}
	return fmt.Sprintf("request %q", s.QueuedResource)
}

// Family returns the name of a slice without its number. All slices of a family share it.
func Family(name string) string {
	if base, _, ok := splitNumber(name); ok {
		return base
	}
	return name
}

// splitNumber splits t-12 into t and 12. A slice's number has no leading zero, because t-1 and
// t-01 are different slices.
func splitNumber(name string) (base string, n int, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return "", 0, false
	}
	n, err := strconv.Atoi(name[i+1:])
	if err != nil || n < 0 || strconv.Itoa(n) != name[i+1:] {
		return "", 0, false
	}
	return name[:i], n, true
}

// CompareNames orders slices by name, and by number if the names end in numbers.
func CompareNames(a, b Slice) int {
	baseA, numA, okA := splitNumber(a.Name)
	baseB, numB, okB := splitNumber(b.Name)
	if okA && okB && baseA == baseB {
		return numA - numB
	}
	return strings.Compare(a.Name, b.Name)
}
