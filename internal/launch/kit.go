package launch

import (
	"fmt"

	"multihost/internal/remote"
)

// bootstrap returns bash code that reads a script from stdin and runs it if the script is
// whole. The script is not on the command line. Every process list shows the command line,
// and the login shell, which may not be bash, parses it.
func bootstrap() string {
	return remote.OwnEnvironment() + `s=$(head -c "$1"); [ "${#s}" -eq "$1" ] || exit 74; shift; eval "$s"`
}

// A Kit has what a worker needs to start a command without a runner: the files of an
// attempt, in the order of KitFiles, and the scripts of the operations on it. Bootstrap
// runs a script from stdin:
//
//	{ cat status; } | bash --norc --noprofile -p -c BOOTSTRAP multihost-status SIZE NONCE RUN ATTEMPT
//
// For "arm", the sizes of the files follow the arguments, and the files and the line "go"
// follow the script on stdin; see arm.sh. The result is a run like any other, for Follow,
// Status, List and Stop.
type Kit struct {
	Bootstrap string
	Scripts   map[string]string // arm, status, stop, free, venv
	Files     map[string][]byte
}

// KitFiles returns the names of a Kit's files, in arm's order.
func KitFiles() []string {
	return []string{"meta", "argv", "env", "script", "limit"}
}

// Kit returns the Kit for s. The program that starts the Kit chooses the attempt. A secret
// value is an error, because other people can read a kit. A stored secret is an error too,
// because the kit's user has to read it.
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
