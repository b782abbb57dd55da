package access

import (
	"multihost/internal/config"
	"multihost/internal/fault"
)

// A Need says which settings a command needs.
type Need struct {
	Project bool
	Zone    bool
}

type Problem struct {
	Err  error
	Flag string // name of the flag whose value is wrong; "" if the setting is missing
}

// A MissingError reports that a setting has no value and the command needs one.
type MissingError struct {
	Text   string
	Advice string
}

func (e *MissingError) Error() string { return e.Text }

func (e *MissingError) Hint() string { return e.Advice }

// Fault returns fault.Configuration.
func (e *MissingError) Fault() fault.Kind { return fault.Configuration }

// ErrNoProject is the error of a command that needs a project.
var ErrNoProject error = &MissingError{Text: "no project is set", Advice: "add --project=PROJECT, or type: gcloud config set project PROJECT; to try it without an account, add --sim"}

// Check returns the problems of the project and the zone. An empty setting is a problem only if
// the command needs it. Without a project, Check does not look at the zone.
func Check(g config.Gcloud, need Need) (problems []Problem) {
	if g.Project == "" {
		if need.Project {
			problems = append(problems, Problem{Err: ErrNoProject})
		}
		return problems
	}
	if g.Zone == "" && need.Zone {
		advice := "add --zone=ZONE, or type: gcloud config set compute/zone ZONE"
		if g.Region != "" {
			advice += " (region " + g.Region + " is set; a zone is a region and a letter, such as " + g.Region + "-b)"
		}
		problems = append(problems, Problem{Err: &MissingError{Text: "no zone is set", Advice: advice}})
	}
	if err := config.CheckProject(g.Project); err != nil {
		problems = append(problems, Problem{err, "project"})
	}
	if g.Zone != "" {
		if err := config.CheckZone(g.Zone); err != nil {
			problems = append(problems, Problem{err, "zone"})
		}
	}
	return problems
}
