package gcloud

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// filterCases says for each filter whether it matches filtered. If gcloud is installed,
// another test compares its answers with these.
var filterCases = map[string]bool{
	"":           true,
	"ada":        true, // some field contains it
	"ADA":        true,
	"nobody":     false,
	"name:train": true,
	"name:TRAIN": true,
	"name=train": false,
	"name=projects/p/locations/z/queuedResources/train-1": true,
	"name:projects*":                  true,
	"name:*train-1":                   true,
	"name:*train":                     false,
	"state.state=ACTIVE":              true,
	"state.state=active":              true,
	"state.state!=ACTIVE":             false,
	"state.state=(FAILED, SUSPENDED)": false,
	"state.state=(FAILED ACTIVE)":     true,
	"state.state:ACT":                 true,
	"state.state~^ACT":                true,
	"state.state~^act":                false,
	"state.state!~FAIL":               true,
	"state.nothing:*":                 false,
	"state.state:*":                   true,
	"-state.state=FAILED":             true,
	"NOT state.state=FAILED":          true,
	"NOT (state.state=FAILED OR state.state=ACTIVE)":            false,
	"state.state=ACTIVE AND name:train":                         true,
	"state.state=ACTIVE name:nobody":                            false,
	"state.state=FAILED OR name:train":                          true,
	"(state.state=FAILED OR state.state=ACTIVE) AND name:train": true,
	"tpu.nodeSpec.node.acceleratorType=v5litepod-16":            true,
	"tpu.node_spec.node.accelerator_type:v5litepod":             true,
	"tpu.nodeSpec[0].nodeId=t-0":                                true,
	"tpu.nodeSpec[1].nodeId=t-0":                                false,
	"tpu.nodeSpec[].nodeId=t-1":                                 true,
	"tpu.nodeSpec[-1].nodeId=t-1":                               true,
	"tpu.nodeSpec.node.labels.team=vision":                      true,
	"tpu.nodeSpec.node.labels:team":                             true,
	"tpu.nodeSpec.node.labels.nobody:*":                         false,
	"guaranteed.reserved=true":                                  true,
	"spot:*":                                                    false,
	"guaranteed:*":                                              true,
	"createTime>2026-01-01":                                     true,
	"createTime<2026-01-01":                                     false,
	"createTime>=2026-01-02T03:04:05Z":                          true,
	"tpu.nodeSpec.node.description=\"two words\"":               true,
	"tpu.nodeSpec.node.description='two words'":                 true,
	"tpu.nodeSpec.node.description:'o w'":                       true,
	"tpu.nodeSpec.node.tags=b":                                  true,
	"tpu.nodeSpec.node.tags:(x b)":                              true,
	"tpu.nodeSpec.node.metadata.count=7":                        true,
	"tpu.nodeSpec.node.metadata.count>10":                       false,
	"tpu.nodeSpec.node.metadata.count<10":                       true,
}

// filtered is a resource, decoded from the API's JSON.
func filtered() any {
	node := func(id string) map[string]any {
		return map[string]any{"nodeId": id, "node": map[string]any{
			"acceleratorType": "v5litepod-16", "description": "two words", "labels": map[string]any{"team": "vision", "who": "ada"},
			"tags": []any{"a", "b"}, "metadata": map[string]any{"count": "7"},
		}}
	}
	return map[string]any{
		"name": "projects/p/locations/z/queuedResources/train-1", "createTime": "2026-01-02T03:04:05Z",
		"state": map[string]any{"state": "ACTIVE"}, "guaranteed": map[string]any{"reserved": true},
		"tpu": map[string]any{"nodeSpec": []any{node("t-0"), node("t-1")}},
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	for text, want := range filterCases {
		f, err := ParseFilter(text, time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC))
		if err != nil {
			t.Error(err)
		} else if got := f.Match(filtered()); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}

func TestFilterOfTimesFromNow(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"createTime<-P1D": true, "createTime>-P1D": false, "createTime>-P3D": true} {
		f, err := ParseFilter(text, time.Date(2026, 1, 4, 12, 0, 0, 0, time.UTC))
		if err != nil || f.Match(filtered()) != want {
			t.Errorf("%q: %v, want %t", text, err, want)
		}
	}
}

func TestFilterThatIsRefusedSaysWhere(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"state.state=":            `a value is expected, at ""`,
		"=x":                      `the name of a field is expected, at "=x"`,
		"a=b AND":                 "a term is expected",
		"AND a=b":                 "a term is expected",
		"a=b AND c=d OR e=f":      `AND and OR side by side need parentheses, at "OR e=f"`,
		"(a=b":                    `the parenthesis is not closed, at "(a=b"`,
		"a=b)":                    "a term is expected",
		"a==b":                    "there is no such operator",
		"a=!b":                    "there is no such operator",
		"a~(b c)":                 "a list of values is for : and = only",
		"a=()":                    "the list of values is empty",
		"a=(b":                    "the parenthesis is not closed",
		"a='b":                    `the quote is not closed, at "'b"`,
		"a~*":                     "missing argument to repetition",
		"a:*b*":                   "at most one *",
		"name.basename()=x":       `functions are not supported, at "name.basename()=x"`,
		"*.name=x":                "* in a path is not supported",
		"a[x]=1":                  "a number or nothing is expected in the brackets",
		"a[1":                     "a number or nothing is expected in the brackets",
		"a.=1":                    "the name of a field is expected",
		"a=AND":                   "a value is expected",
		"a, b":                    "an operator is expected",
		strings.Repeat("(", 1000): "more than 100 parentheses",
	} {
		_, err := ParseFilter(text, time.Time{})
		var refused *FilterError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func TestSortByPaths(t *testing.T) {
	t.Parallel()
	made := func(id, state string) any {
		return map[string]any{"name": id, "state": map[string]any{"state": state}}
	}
	for keys, want := range map[string]string{"": "b c a", "name": "a b c", "~name": "c b a", "state.state,~name": "c a b"} {
		list := []any{made("b", "FAILED"), made("c", "ACTIVE"), made("a", "ACTIVE")}
		parsed, err := ParseSortKeys(keys)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortStableFunc(list, func(a, b any) int { return Compare(a, b, parsed) })
		var names []string
		for _, r := range list {
			names = append(names, r.(map[string]any)["name"].(string))
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("--sort-by=%s: %s, want %s", keys, got, want)
		}
	}
	if _, err := ParseSortKeys("name="); err == nil || !strings.Contains(err.Error(), "is not the path of a field") {
		t.Errorf("got %v", err)
	}
}

// ParseFilter returns a filter or a *FilterError for every text.
func FuzzFilter(f *testing.F) {
	for text := range filterCases {
		f.Add(text)
	}
	f.Add(`a=(b\)( c`)
	f.Add("a[\xff]=\xa0")
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := ParseFilter(text, time.Time{})
		var refused *FilterError
		switch {
		case err == nil:
			filter.Match(filtered())
		case !errors.As(err, &refused) || refused.At > len(text):
			t.Errorf("%v", err)
		}
	})
}
