package qr

import (
	"fmt"
	"regexp"
	"strconv"

	"multihost/internal/provision"
)

// The labels of every slice made by this program.
const (
	LabelTool = provision.LabelTool
	LabelRun  = provision.LabelRun
	LabelUser = provision.LabelUser
	LabelJob  = provision.LabelJob
)

// LabelSpace begins the label keys that users cannot set.
const LabelSpace = "multihost-"

const maxName = 63

var (
	nameRE       = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKeyRE   = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValueRE = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	metaKeyRE    = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)
)

// checkName checks a name that becomes part of names of VMs and in DNS. The TPU API accepts
// more (^[A-Za-z0-9_.~+%-]+$), but fails later if it cannot use the name.
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
