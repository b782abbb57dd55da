package pod

import (
	"encoding/json"
	"strings"
	"time"
)

// MostMessage is how many bytes of a termination message a kubelet keeps.
const MostMessage = 4096

// An End is how the command of a container ended. The agent writes it into the container's
// termination message. The cluster keeps it as long as the pod object.
type End struct {
	Code    int       `json:"code"`              // exit status; 128+n after a death by signal n; if Told is set, 143 in place of 0
	Signal  string    `json:"signal,omitempty"`  // the signal that ended the command, for example SIGKILL
	Told    string    `json:"told,omitempty"`    // the first signal that the agent passed on before the end, for example SIGTERM
	Failure string    `json:"failure,omitempty"` // why the command could not run, or why its output is not whole
	Time    time.Time `json:"time"`              // node's clock
	Length  int64     `json:"length"`            // of the output, in bytes
	SHA256  string    `json:"sha256"`            // of the output, hexadecimal
}

// messageKey begins the message. It distinguishes our messages from those of other
// programs.
const messageKey = "multihost "

// Message returns the termination message of an End: one line of at most MostMessage bytes.
func (e End) Message() string {
	data, err := json.Marshal(e)
	for err == nil && len(messageKey)+len(data) > MostMessage {
		e.Failure = strings.ToValidUTF8(e.Failure[:len(e.Failure)/2], "")
		data, err = json.Marshal(e)
	}
	return messageKey + string(data)
}

// ParseEnd reads a termination message. It returns false for a text that Message did not
// make.
func ParseEnd(message string) (e End, ok bool) {
	data, ok := strings.CutPrefix(message, messageKey)
	if !ok || json.Unmarshal([]byte(data), &e) != nil {
		return End{}, false
	}
	return e, true
}
