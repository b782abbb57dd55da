package launch

import (
	"os/exec"
	"strings"
	"testing"
)

// What json.sh reads of JSON is what is there, wherever it stands, and of what is no JSON
// it reads nothing.
func TestJSONIsRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		json, keys, want string // want "-": nothing
	}{
		{`{"access_token":"ya29.a-b_c","expires_in":3599,"token_type":"Bearer"}`, "access_token", "ya29.a-b_c"},
		{"{\n  \"name\": \"data\",\n  \"payload\": {\n    \"dataCrc32c\": \"1\",\n    \"data\": \"aGk=\"\n  }\n}\n", "payload data", "aGk="},
		{`{"data":"other","payload":{"list":[{"data":"x"},[],{},[1,-2.5e3,true,null,false]],"data":"right"}}`, "payload data", "right"},
		{`{"a":"\"data\":\"no\"","data":"yes"}`, "data", "yes"},
		{`{"error":{"code":403,"message":"Permission \"x\" denied\\:\n\t\u0041\/"}}`, "error message", "Permission \"x\" denied\\:\n\tA/"},
		{`{"data":""}`, "data", ""},
		{`{"payload":"data"}`, "payload data", "-"},
		{`{"payload":{"data":1}}`, "payload data", "-"},
		{`{"payload":{}}`, "payload data", "-"},
		{`{"x":1 "data":"y"}`, "data", "-"},
		{`{"x":[1,],"data":"y"}`, "data", "-"},
		{`{"x":nope,"data":"y"}`, "data", "-"},
		{`{"x":"\q","data":"y"}`, "data", "-"},
		{`{"data":"y`, "data", "-"},
		{`<html>"data":"y"</html>`, "data", "-"},
		{``, "data", "-"},
		{`{"data":"` + strings.Repeat("QUJD", 22000) + `"}`, "data", strings.Repeat("QUJD", 22000)},
	} {
		script := jsonText + "\nIFS= read -r -d '' json\nif json_string \"$@\"; then printf %s \"$REPLY\"; else printf -- -; fi"
		cmd := exec.Command("bash", append([]string{"--norc", "-c", script, "bash"}, strings.Fields(tt.keys)...)...)
		cmd.Stdin = strings.NewReader(tt.json)
		cmd.Env = []string{"LC_ALL=C"}
		out, err := cmd.Output()
		if err != nil || string(out) != tt.want {
			t.Errorf("%.80q, %s: %.80q, %v, want %.80q", tt.json, tt.keys, out, err, tt.want)
		}
	}
}
