package remote

import _ "embed" // the scripts

var (
	//go:embed prelude.sh
	preludeFile string
	//go:embed json.sh
	jsonFile string
)

// Prelude returns the beginning of every script that answers to us: the functions that
// print the lines of an [Answer], and functions that several packages use. The first
// argument of such a script is the nonce of the Answer.
func Prelude() string { return preludeFile }

// JSON returns functions that read JSON, because a worker may have no program for that. See
// json.sh.
func JSON() string { return jsonFile }
