package network

import (
	"strings"

	"multihost/internal/sshfan"
)

// shellLine is a command line for a person to paste into a shell. A word
// --flag=value has only its value quoted, where that is needed.
func shellLine(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		flag, value, ok := strings.Cut(w, "=")
		if ok && strings.HasPrefix(flag, "--") {
			quoted[i] = flag + "=" + sshfan.Quote(value)
			continue
		}
		quoted[i] = sshfan.Quote(w)
	}
	return strings.Join(quoted, " ")
}
