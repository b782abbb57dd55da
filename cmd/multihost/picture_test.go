package main

import (
	"context"
	"encoding/xml"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// sessionPicture is the picture in the README. make picture draws it.
const sessionPicture = "../../docs/images/session.svg"

// TestSessionPictureIsOfThisProgram runs the session of the README in a terminal. It
// compares the lines of the summary with those in the picture, without times. With -update
// it draws the picture again.
func TestSessionPictureIsOfThisProgram(t *testing.T) {
	testkit.OnlyInAll(t, "the story terminals")
	t.Parallel()
	if testkit.RaceDetector {
		t.Skip("skipped under the race detector: the picture is of the program without it")
	}
	screen := recordSession(t, "multihost run --tpu-prefix=t --run-name=train -- python3 train.py --steps=8 --fail-at-step=2 --fail-process=5")
	if *update {
		testkit.Must(t, os.MkdirAll(filepath.Dir(sessionPicture), 0o755))
		testkit.Must(t, os.WriteFile(sessionPicture, []byte(drawTerminal(screen)), 0o644))
		return
	}
	picture, err := os.ReadFile(sessionPicture)
	testkit.Must(t, err)
	shown := map[string]bool{}
	for _, line := range timeless(drawTerminal(screen)) {
		shown[line] = true
	}
	compared := 0
	for _, line := range timeless(string(picture)) {
		if !regexp.MustCompile(`^(multihost: (run|hint)|  (first failure|exit code|stopped|training|logs))`).MatchString(line) {
			continue
		}
		compared++
		if !shown[line] {
			t.Errorf("the picture shows %q, the program does not; draw it anew with: make picture\n%s", line, screen)
		}
	}
	if compared < 5 {
		t.Errorf("only %d lines of the picture were compared", compared)
	}
}

// timeless returns the lines of a picture without what differs from run to run.
func timeless(picture string) []string {
	text := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(picture, "")
	text = strings.NewReplacer("&#39;", "'", "&#34;", `"`, "&gt;", ">", "&lt;", "<", "&amp;", "&").Replace(text)
	text = regexp.MustCompile(`\d+(\.\d+)? (ms|s|B|kB|MB|GB)\b`).ReplaceAllString(text, "N")
	return strings.Split(text, "\n")
}

// recordSession types a command in a terminal beside a simulator with two slices. It
// returns the last screen, with colours as escapes.
func recordSession(t *testing.T, command string) string {
	tmux := testkit.Need(t, "tmux")
	// The length of the name must not vary, because it affects where the program breaks
	// lines.
	dir := fmt.Sprintf("/tmp/mh%010d", rand.Uint32())
	testkit.Must(t, os.Mkdir(dir, 0o700))
	t.Cleanup(func() { os.RemoveAll(dir) })
	home, project := filepath.Join(dir, "ann"), filepath.Join(dir, "ann", "project")
	copyProject(t, project)
	cfg := sim.Config{Dir: filepath.Join(dir, "sim"), Step: 10 * time.Millisecond}
	testkit.Must(t, os.Mkdir(cfg.Dir, 0o700))
	var err error
	cfg.Slices, err = sim.ParseSlices("t:2xv5litepod-16")
	testkit.Must(t, err)
	server, err := sim.Start(context.Background(), cfg)
	testkit.Must(t, err)
	t.Cleanup(func() { server.Close() })

	run := func(args ...string) string {
		cmd := exec.Command(tmux, append([]string{"-S", filepath.Join(dir, "tmux"), "-f", "/dev/null"}, args...)...)
		cmd.Dir = project
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "USER=ann", "TERM=xterm-256color", "LC_ALL=C.UTF-8"}
		for k, v := range server.Env() {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %s: %v: %s", args[0], err, out)
		}
		return string(out)
	}
	shell := fmt.Sprintf("printf '$ %%s\\n' %q; %s; printf '$ '; exec sleep 600", command, command)
	run("new-session", "-d", "-x", "140", "-y", "44", shell)
	t.Cleanup(func() { run("kill-server") })
	deadline := time.After(scriptWait)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		screen := run("capture-pane", "-p", "-e")
		if strings.HasSuffix(strings.TrimRight(screen, " \n"), "\n$") {
			return strings.ReplaceAll(strings.TrimRight(screen, "\n"), dir, "/home")
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the session has not ended after %s:\n%s", scriptWait, screen)
		}
	}
}

// drawTerminal draws lines of text with SGR escapes as an SVG picture.
func drawTerminal(screen string) string {
	const columns, charWidth, lineHeight, margin = 126, 8.0, 18, 16
	lines := strings.Split(screen, "\n")
	width, height := columns*charWidth+2*margin, lineHeight*len(lines)+2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="#16191d"/>`+"\n")
	b.WriteString(`<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="13.3" fill="#d7dae0" style="white-space:pre">` + "\n")
	style := sgr{}
	for i, line := range lines {
		fmt.Fprintf(&b, `<text x="%d" y="%d">`, margin, margin+lineHeight*i+13)
		for line != "" {
			if strings.HasPrefix(line, "\x1b[") {
				codes, rest, _ := strings.Cut(line[2:], "m")
				style.apply(codes)
				line = rest
				continue
			}
			end := strings.IndexByte(line, '\x1b')
			if end < 0 {
				end = len(line)
			}
			style.write(&b, line[:end])
			line = line[end:]
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}

// sgr is the style of a text.
type sgr struct {
	colour      string
	bold, faint bool
}

// apply reads the codes of one escape. It ignores colours that the program does not use.
func (s *sgr) apply(codes string) {
	colours := map[string]string{
		"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff", "36": "#76e3ea", "37": "#d7dae0",
		"90": "#8b949e", "91": "#ffa198", "92": "#aff5b4", "93": "#f2cc60", "94": "#a5d6ff", "95": "#e2c5ff", "96": "#b3f0ff",
	}
	for code := range strings.SplitSeq(codes, ";") {
		switch code {
		case "", "0":
			*s = sgr{}
		case "1":
			s.bold = true
		case "2":
			s.faint = true
		case "22":
			s.bold, s.faint = false, false
		case "39":
			s.colour = ""
		default:
			if c, ok := colours[code]; ok {
				s.colour = c
			}
		}
	}
}

func (s *sgr) write(b *strings.Builder, text string) {
	var attributes string
	if s.colour != "" {
		attributes += fmt.Sprintf(" fill=%q", s.colour)
	}
	if s.bold {
		attributes += ` font-weight="bold"`
	}
	if s.faint {
		attributes += ` fill-opacity="0.65"`
	}
	if attributes != "" {
		fmt.Fprintf(b, "<tspan%s>", attributes)
		defer b.WriteString("</tspan>")
	}
	_ = xml.EscapeText(b, []byte(text)) // a Builder returns no error
}
