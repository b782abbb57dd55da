package launch

import (
	"fmt"

	"multihost/internal/sshfan"
)

// bootstrap reads the script from stdin and runs it, if it is whole. The
// script is not on the command line: that would show in every process list and
// has to pass the login shell, which need not be bash.
func bootstrap() string {
	return sshfan.OwnEnvironment() + `s=$(head -c "$1"); [ "${#s}" -eq "$1" ] || exit 74; shift; eval "$s"`
}

// A Kit is what starts a command on a worker to which nobody is connected: the
// files of an attempt, in the order of KitFiles, and the scripts of the
// operations on it. Bootstrap runs a script that it reads from stdin:
//
//	{ cat status; } | bash --norc --noprofile -p -c BOOTSTRAP multihost-status SIZE NONCE RUN ATTEMPT
//
// For "arm" the arguments go on with the sizes of the files, and stdin with the
// files and the line "go"; see arm.sh. What was started so is a run like any
// other: Follow, Status, List and Stop work on it.
type Kit struct {
	Bootstrap string
	Scripts   map[string]string // arm, status, stop, free, venv
	Files     map[string][]byte
}

// KitFiles are the names of a Kit's files, in the order in which arm takes them.
func KitFiles() []string {
	return []string{"meta", "argv", "env", "script", "limit"}
}

// Kit returns what starts s anywhere. The attempt is chosen where it is started.
// A secret value is an error: a kit is kept where others read it.
func (s Spec) Kit() (Kit, error) {
	if err := s.Validate(); err != nil {
		return Kit{}, err
	}
	for _, v := range s.Env {
		if v.Secret {
			return Kit{}, fmt.Errorf("environment variable %q: a secret cannot be part of a kit", v.Name)
		}
	}
	k := Kit{Bootstrap: bootstrap(), Files: map[string][]byte{}, Scripts: map[string]string{
		"arm": armScript.Text(), "status": statusScript.Text(), "stop": stopScript.Text(), "free": freeScript.Text(), "venv": venvScript.Text(),
	}}
	if len(s.Stored) > 0 {
		return Kit{}, fmt.Errorf("environment variable %q: whoever uses the kit reads stored secrets", s.Stored[0].Name)
	}
	files := s.files()
	for i, name := range KitFiles() {
		k.Files[name] = files[i]
	}
	return k, nil
}
