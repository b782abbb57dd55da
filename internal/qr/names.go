package qr

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The labels that mark every slice made by this program.
const (
	LabelTool = "multihost-tool" // always "multihost"
	LabelRun  = "multihost-run"  // LabelValue of the run's name
	LabelUser = "multihost-user" // LabelValue of the user's login
	LabelJob  = "multihost-job"  // LabelValue of the job that deletes it when it ends
)

const (
	toolName   = "multihost"
	labelSpace = "multihost-" // label keys that users cannot set
	maxName    = 63
)

var (
	nameRE       = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKeyRE   = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValueRE = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	metaKeyRE    = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)
)

// LabelValue returns s as a legal label value: in lower case, with '-' in place of
// every character but a-z, 0-9, '_' and '-', at most 63 bytes. All labels for runs
// and users come from LabelValue, so that the labels written and searched for agree.
func LabelValue(s string) string {
	out := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, s)
	if len(out) > maxName {
		out = out[:maxName]
	}
	return out
}

// OwnerLabels returns the labels for tool, run and user. An empty run or user gets
// no label.
func OwnerLabels(run, user string) map[string]string {
	labels := map[string]string{LabelTool: toolName}
	if run != "" {
		labels[LabelRun] = LabelValue(run)
	}
	if user != "" {
		labels[LabelUser] = LabelValue(user)
	}
	return labels
}

// checkName checks a name that becomes part of VM and DNS names. The TPU API itself
// accepts more (^[A-Za-z0-9_.~+%-]+$), but fails later for names it cannot use.
func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty", what)
	case len(name) > maxName:
		return fmt.Errorf("%s %q has %d characters: at most %d are allowed", what, name, len(name), maxName)
	case !nameRE.MatchString(name):
		return fmt.Errorf("%s %q is not legal: use a-z, 0-9 and '-', begin with a letter, do not end with '-'", what, name)
	}
	return nil
}

// checkPrefix checks the names prefix-0 … prefix-(count-1) of a legal prefix.
func checkPrefix(prefix string, count int) error {
	last := prefix + "-" + strconv.Itoa(count-1)
	if len(last) > maxName {
		return fmt.Errorf("node prefix %q is too long: the last slice would be %q with %d characters, at most %d are allowed",
			prefix, last, len(last), maxName)
	}
	return nil
}

// lastPart returns the part of a resource name or URL after the last slash.
func lastPart(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
