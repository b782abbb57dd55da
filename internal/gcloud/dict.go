package gcloud

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ParseDict parses gcloud's KEY=VALUE[,KEY=VALUE…]. A prefix "^X^" makes X the
// separator instead of the comma.
func ParseDict(value string) (map[string]string, error) {
	out := map[string]string{}
	for _, pair := range SplitList(value) {
		key, v, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is not KEY=VALUE", pair)
		}
		if old, twice := out[key]; twice && old != v {
			return nil, fmt.Errorf("%q is given twice, as %q and %q", key, old, v)
		}
		out[key] = v
	}
	return out, nil
}

// SplitList splits gcloud's LIST at commas. A prefix "^X^" makes X the separator.
func SplitList(value string) []string {
	separator := ","
	if rest, ok := strings.CutPrefix(value, "^"); ok {
		if sep, list, ok := strings.Cut(rest, "^"); ok && sep != "" {
			separator, value = sep, list
		}
	}
	if value == "" {
		return nil
	}
	return strings.Split(value, separator)
}

// FormatDict returns a map in gcloud's form. If a key or value contains a comma, it
// uses another separator and names it in a prefix (see `gcloud topic escaping`).
func FormatDict(m map[string]string) string {
	pairs := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, k+"="+m[k])
	}
	separators := []string{",", ";", "|", ":", "~", "@@", "##", "::::"}
	free := slices.IndexFunc(separators, func(sep string) bool {
		return !slices.ContainsFunc(pairs, func(p string) bool { return strings.Contains(p, sep) })
	})
	switch {
	case free == 0:
		text := strings.Join(pairs, ",")
		if strings.HasPrefix(text, "^") {
			return "^,^" + text
		}
		return text
	case free < 0:
		free = len(separators) - 1
	}
	sep := separators[free]
	return "^" + sep + "^" + strings.Join(pairs, sep)
}
