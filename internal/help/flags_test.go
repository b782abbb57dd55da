package help

import (
	"reflect"
	"testing"
)

// Short help shows a part of each group and the first name of each flag. A flag of two
// groups stands in the first one.
func TestSections(t *testing.T) {
	t.Parallel()
	flags := []Flag{
		{Names: []string{"--command", "--COMMAND"}, Value: "SCRIPT", Text: "run it"},
		{Names: []string{"--grace"}, Value: "TIME", Text: "wait", Default: "10s"},
		{Names: []string{"--follow", "-f"}, Text: "go on"},
		{Names: []string{"--keep"}, Value: "TIME", Optional: true, Text: "keep"},
		{Names: []string{"--other"}, Text: "has no group"},
	}
	groups := []Group{
		{"common", []string{"command", "keep"}, nil},
		{"what runs", []string{"command"}, []string{"grace"}},
		{"output", []string{"follow", "missing"}, nil},
	}
	command, keep := Row{Names: []string{"--command=SCRIPT"}, Text: "run it"}, Row{Names: []string{"--keep[=TIME]"}, Text: "keep"}
	follow := Row{Names: []string{"-f", "--follow"}, Text: "go on"}
	sections, rest := Sections(flags, groups, false)
	if want := []Section{{"common", []Row{command, keep}}, {"output", []Row{follow}}}; !reflect.DeepEqual(sections, want) {
		t.Errorf("short: %v, want %v", sections, want)
	}
	if want := []Flag{flags[1], flags[4]}; !reflect.DeepEqual(rest, want) {
		t.Errorf("short: the rest is %v, want %v", rest, want)
	}
	sections, rest = Sections(flags, groups, true)
	command.Names = append(command.Names, "--COMMAND=SCRIPT")
	grace := Row{Names: []string{"--grace=TIME"}, Text: "wait", Note: "(default: 10s)"}
	if want := []Section{{"common", []Row{command, keep}}, {"what runs", []Row{grace}}, {"output", []Row{follow}}}; !reflect.DeepEqual(sections, want) {
		t.Errorf("all: %v, want %v", sections, want)
	}
	if want := []Flag{flags[4]}; !reflect.DeepEqual(rest, want) {
		t.Errorf("all: the rest is %v, want %v", rest, want)
	}
}
