package remote

import (
	"os/exec"
	"strings"
	"testing"
)

// json.sh must read the right values of JSON, wherever they are, and nothing from a text
// that is not JSON.
func TestJSONIsRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		json, path, want string // want "-": not an object
	}{
		{`{"access_token":"ya29.a-b_c","expires_in":3599,"token_type":"Bearer"}`, "/access_token", "ya29.a-b_c"},
		{"{\n  \"name\": \"data\",\n  \"payload\": {\n    \"dataCrc32c\": \"1\",\n    \"data\": \"aGk=\"\n  }\n}\n", "/payload/data", "aGk="},
		{`{"data":"other","payload":{"list":[{"data":"x"},[],{},[1,-2.5e3,true,null,false]],"data":"right"}}`, "/payload/data", "right"},
		{`{"a":"\"data\":\"no\"","data":"yes"}`, "/data", "yes"},
		{`{"a":"\\","b":"\\\"","data":"\\\\\""}`, "/data", `\\"`},
		{`{"error":{"code":403,"message":"Permission \"x\" denied\\:\n\t\u0041\/"}}`, "/error/message", "Permission \"x\" denied\\:\n\tA/"},
		{`{"data":""}`, "/data", ""},
		{`{"payload":"data"}`, "/payload/data", ""},
		{`{"payload":{"data":1}}`, "/payload/data", ""},
		{`{"payload":{"data":["x"]}}`, "/payload/data", ""},
		{`{"payload":{}}`, "/payload/data", ""},
		{`{"x":{"payload":{"data":"y"}}}`, "/payload/data", ""},
		{`{"x":1 "data":"y"}`, "/data", "-"},
		{`{"x":1 2,"data":"y"}`, "/data", "-"},
		{`{"x":[1,],"data":"y"}`, "/data", "-"},
		{`{"x":[1},"data":"y"}`, "/data", "-"},
		{`{"x":nope,"data":"y"}`, "/data", "-"},
		{`{"x","data":"y"}`, "/data", "-"},
		{`{"data":"\q"}`, "/data", "-"},
		{`{"data":"y`, "/data", "-"},
		{`{"data":"y"`, "/data", "-"},
		{`{"data":"y\"}`, "/data", "-"},
		{`{"data":"y"}}`, "/data", "-"},
		{`<html>"data":"y"</html>`, "/data", "-"},
		{`"data"`, "/data", "-"},
		{`17`, "/data", "-"},
		{``, "/data", "-"},
		{`{"data":"` + strings.Repeat("QUJD", 22000) + `"}`, "/data", strings.Repeat("QUJD", 22000)},
		{`{"x":"` + strings.Repeat(`\n\"`, 5000) + `","data":"y"}`, "/data", "y"},
	} {
		if got := readJSON(t, tt.json, tt.path, "%s"); got != tt.want {
			t.Errorf("%.80q, %s: %.80q, want %.80q", tt.json, tt.path, got, tt.want)
		}
	}
}

// readJSON lets bash print the values at the path. It returns "-" if the text is not JSON.
func readJSON(t *testing.T, text, path, form string) string {
	t.Helper()
	cmd := exec.Command("bash", "--norc", "-c", JSON()+"\nset -u\nIFS= read -r -d '' json\nif json_strings \"$json\" \"$1\"; then printf \"$2\" \"${strings[@]}\"; else printf -- -; fi", "bash", path, form)
	cmd.Stdin = strings.NewReader(text)
	cmd.Env = []string{"LC_ALL=C"}
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%.80q: %v", text, err)
	}
	return string(out)
}

// A path with * leads to all elements of a list, or to an empty text if there are none.
func TestJSONOfListsIsRead(t *testing.T) {
	t.Parallel()
	const list = `{"a": [{"b": {"c": "1"}, "x": [0]}, {"x": "c", "b": {"c": "2"}}], "n": 3, "e": [], "s": "t\u003dr"}`
	for _, tt := range []struct{ json, path, want string }{
		{list, "/a/*/b/c", "1|2|"},
		{list, "/a/*/b", "||"},
		{list, "/a/b/c", "|"},
		{list, "/s", "t=r|"},
		{list, "/s/*", "|"},
		{list, "/n", "|"},
		{list, "/e/*", "|"},
		{list, "/e/*/b", "|"},
		{list, "/none/*/b", "|"},
		{`{"a": [{"b": "1"}, {}, {"b": 2}, {"b": "\"3"}]}`, "/a/*/b", `1|||"3|`},
		{`{"a": [["1", "2"], [], ["3"]]}`, "/a/*/*", "1|2||3|"},
		{`{"a": [["*"]], "*": "x"}`, "/*", "|"},
		{`{"a": "1"`, "/a", "-"},
		{`{"a": "1"} {`, "/a", "-"},
		{`{"a": "1",}`, "/a", "-"},
		{`{"a": "1", "b": {]}}`, "/a", "-"},
		{`["1"]`, "/*", "-"},
		{"<html>", "/a", "-"},
		{"", "/a", "-"},
	} {
		if got := readJSON(t, tt.json, tt.path, "%s|"); got != tt.want {
			t.Errorf("%s in %s: %q, want %q", tt.path, tt.json, got, tt.want)
		}
	}
}
