package remote

import _ "embed" // the prelude

//go:embed prelude.sh
var preludeFile string

// Prelude returns the beginning of every script that answers to us: the functions that
// print the lines of an [Answer], and what else several packages use. The first argument
// of such a script is the nonce of the Answer.
func Prelude() string { return preludeFile }
