package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"multihost/internal/testkit"
)

func TestAFileOfHostsIsReadWholeOrRefused(t *testing.T) {
	long := strings.Repeat("x", 70_000) // too long for a bufio.Scanner
	many := ""
	for i := range 5000 {
		many += fmt.Sprintf("10.0.%d.%d\n", i/250, i%250)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "hosts")
	for text, want := range map[string]string{
		"h1 # " + long + "\nh2\n":         "h1,h2",
		"# " + long + "\n" + many:         strings.ReplaceAll(strings.TrimSuffix(many, "\n"), "\n", ","),
		"\ufeffh1\r\n\r\n h2 \r\nh3":      "h1,h2,h3",
		"h1,h2\nh3":                       "h1,h2,h3",
		"h1\n" + long + "@\n":             path + ":2: host \"",
		"h1\n\nh2\x00\n":                  path + `:3: host "h2\x00": it has a character that cannot be printed`,
		"h1\rh2\r":                        path + `:1: host "h1\rh2": it has a character that cannot be printed`,
		"h1\nh2\n#\nh1":                   path + `:4: host "h1" is named twice`,
		"\xff\xfeh\x001\x00":              `read "` + path + `": it is UTF-16, want UTF-8`,
		"\n# nobody\n":                    `read "` + path + `": there is no host in it`,
		"":                                `read "` + path + `": there is no host in it`,
		"# " + strings.Repeat("x", 4<<20): `read "` + path + `": larger than 4194304 bytes`,
	} {
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
		got, err := ReadHosts(t.Context(), path)
		if err != nil && !strings.HasPrefix(err.Error(), want) || err == nil && got.String() != want {
			t.Errorf("%.40q: %.60q, %.90v; want %.60q", text, got, err, want)
		}
	}
	for _, path := range []string{dir, "/proc/self/mem"} { // the second one fails only when it is read
		if got, err := ReadHosts(t.Context(), path); err == nil {
			t.Errorf("%s: %v, want an error", path, got)
		}
	}
}

func TestHostsAreReadAsTyped(t *testing.T) {
	for text, want := range map[string]string{
		"h1,h2":                     "h1,h2",
		"ann@h1:2222, bob@10.0.0.2": "ann@h1:2222,bob@10.0.0.2",
		"h1:0":                      "",
		"@h1":                       "",
		"root@h1":                   "",
		"a b":                       "",
		"":                          "",
		"h1,h1":                     "",
		"ann@h1,bob@h1":             "",
		"h1,":                       "",
		"h\x00":                     "",
		"h\xff":                     "",
		"a\u00a0b":                  "",
		"h\r":                       "h",
		"h\ri":                      "",
	} {
		list, err := ParseHosts(text)
		if want == "" {
			if err == nil {
				t.Errorf("ParseHosts(%q) = %v, want an error", text, list)
			}
			continue
		}
		if err != nil || list.String() != want {
			t.Errorf("ParseHosts(%q) = %q, %v, want %q", text, list, err, want)
		}
	}
}
