package provision

import (
	"maps"
	"strings"
)

// The labels of every slice made by this program.
const (
	LabelTool = "multihost-tool" // always ToolName
	LabelRun  = "multihost-run"  // LabelValue of the run's name
	LabelUser = "multihost-user" // LabelValue of the user's login
	LabelJob  = "multihost-job"  // LabelValue of the job. The job deletes the resource when the job ends
)

// ToolName is the value of LabelTool.
const ToolName = "multihost"

const maxLabel = 63

// LabelValue returns s as a legal label value. The value is in lower case, has '-' in place
// of every character but a-z, 0-9, '_' and '-', and is at most 63 bytes long. All labels for
// runs and users come from LabelValue, so that a search finds the labels that were written.
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
	if len(out) > maxLabel {
		out = out[:maxLabel]
	}
	return out
}

// OwnerLabels returns the labels for tool, run and user. An empty run or user gets
// no label.
func OwnerLabels(run, user string) map[string]string {
	labels := map[string]string{LabelTool: ToolName}
	if run != "" {
		labels[LabelRun] = LabelValue(run)
	}
	if user != "" {
		labels[LabelUser] = LabelValue(user)
	}
	return labels
}

// JobLabels returns labels plus LabelJob. That label says that the job of this run makes and
// deletes the resource.
func JobLabels(labels map[string]string, run string) map[string]string {
	return with(labels, map[string]string{LabelJob: LabelValue(run)})
}

// with returns a copy of labels with more added.
func with(labels, more map[string]string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, more)
	return labels
}

// Owner describes the owner that the labels of a resource name.
func Owner(labels map[string]string) string {
	run, user := labels[LabelRun], labels[LabelUser]
	switch {
	case labels[LabelTool] != ToolName:
		return "somebody who did not use multihost"
	case run != "" && user != "":
		return "run " + run + " of " + user
	case run != "":
		return "run " + run
	case user != "":
		return user
	}
	return "an unknown user of multihost"
}
