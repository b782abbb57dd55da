package pod

import (
	"encoding/json"
	"strings"
	"time"
)

// MostMessage is how many bytes of a termination message a kubelet keeps.
const MostMessage = 4096

// An End is how the command of a container ended, as the agent writes it into the
// termination message of the container. The cluster keeps it as long as the pod object.
type End struct {
	Code    int       `json:"code"`              // exit status; 128+n if signal n ended the command; 143 for 0 if Told is set
	Signal  string    `json:"signal,omitempty"`  // the signal that ended the command: SIGKILL
	Told    string    `json:"told,omitempty"`    // the first signal that the agent passed on before the end: SIGTERM
	Failure string    `json:"failure,omitempty"` // why the command could not run or its output could not be kept
	Time    time.Time `json:"time"`              // by the clock of the node
	Length  int64     `json:"length"`            // bytes of output
	SHA256  string    `json:"sha256"`            // of the output, hexadecimal
}

// messageKey begins the message, so that nobody takes another program's message for ours.
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
