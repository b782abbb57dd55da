package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/shlex"
	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// A markdown is a document of this repository. The word after a fence says what the fence
// holds:
//
//	sh        commands; one shell runs those of a document in order, and all must succeed
//	console   what a terminal showed: lines after "$ " are run, and what follows is
//	          compared; … is any text of a line, or any lines where it stands alone
//	anything else holds no command lines
//
// HTML comments in the document, which readers do not see, change how it is tested:
//
//	<!-- sim: t:2xv5litepod-16 -->   the slices that there are at the start; none: no simulator
//	<!-- setup … -->                 commands that are run, and not shown
//	<!-- not run: REASON -->         the next fence is not run; its multihost commands must still parse
//	<!-- run by: SCRIPT -->          a script of testdata/script runs the document; here it is only parsed
type markdown struct {
	name, dir string
	slices    string
	script    string // the script that tests the document
	steps     []docStep
	prose     string // the text outside of fences
}

type docStep struct {
	line    int
	kind    string // sh, console, parse
	command string
	want    string // output that a console fence shows
}

var (
	docComment = regexp.MustCompile(`^<!-- (sim|not run|run by): (.*) -->$`)
	docInline  = regexp.MustCompile("`(multihost [^`]+)`")
)

// markdownFiles reads README.md and all files below docs.
func markdownFiles(t *testing.T) []*markdown {
	t.Helper()
	root, err := filepath.Abs("../..")
	testkit.Must(t, err)
	paths := []string{filepath.Join(root, "README.md"), filepath.Join(root, "CHANGELOG.md"), filepath.Join(root, "examples/train/README.md")}
	testkit.Must(t, filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			paths = append(paths, path)
		}
		return err
	}))
	var all []*markdown
	for _, path := range paths {
		text, err := os.ReadFile(path)
		testkit.Must(t, err)
		name, err := filepath.Rel(root, path)
		testkit.Must(t, err)
		d := &markdown{name: name, dir: filepath.Dir(path), slices: "t:2xv5litepod-8"}
		for _, err := range d.read(string(text)) {
			t.Errorf("%s:%v", name, err)
		}
		all = append(all, d)
	}
	return all
}

func (d *markdown) read(text string) (faults []error) {
	lines := strings.Split(text, "\n")
	notRun := false
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		switch {
		case line == "<!-- setup":
			begin := i + 1
			for i++; strings.TrimSpace(lines[i]) != "-->"; i++ {
			}
			d.steps = append(d.steps, docStep{line: begin + 1, kind: "sh", command: strings.Join(lines[begin:i], "\n")})
		case docComment.MatchString(line):
			m := docComment.FindStringSubmatch(line)
			switch m[1] {
			case "sim":
				d.slices = m[2]
			case "run by":
				d.script = m[2]
			default:
				notRun = true
			}
		case strings.HasPrefix(line, "```"):
			kind, indent, begin := strings.TrimPrefix(line, "```"), len(lines[i])-len(strings.TrimLeft(lines[i], " ")), i+1
			for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
				lines[i] = strings.TrimPrefix(lines[i], strings.Repeat(" ", indent))
			}
			if i == len(lines) {
				return append(faults, fmt.Errorf("%d: the fence has no end", begin))
			}
			if err := d.fence(kind, notRun, begin, lines[begin:i]); err != nil {
				faults = append(faults, err)
			}
			notRun = false
		default:
			d.prose += lines[i] + "\n"
		}
	}
	return faults
}

func (d *markdown) fence(kind string, notRun bool, at int, lines []string) error {
	text := strings.Join(lines, "\n")
	switch {
	case kind == "sh" && notRun:
		d.steps = append(d.steps, docStep{line: at, kind: "parse", command: text})
	case kind == "sh":
		d.steps = append(d.steps, docStep{line: at, kind: "sh", command: text})
	case kind == "console":
		var s *docStep
		for i, line := range lines {
			command, typed := strings.CutPrefix(line, "$ ")
			switch {
			case typed:
				d.steps = append(d.steps, docStep{line: at + i + 1, kind: "console", command: command})
				s = &d.steps[len(d.steps)-1]
				if notRun {
					s.kind = "parse"
				}
			case s == nil:
				return fmt.Errorf("%d: a console begins with a command after $", at)
			case strings.HasSuffix(s.command, "\\"):
				s.command += "\n" + line
			default:
				s.want += line + "\n"
			}
		}
	case regexp.MustCompile(`(?m)^(\$ )?multihost [a-z]`).MatchString(text) && kind == "":
		return fmt.Errorf("%d: the fence has command lines: begin it with ```sh or ```console, or ```text where none is meant", at)
	}
	return nil
}

// TestEveryCommandLineOfTheDocumentsWorks runs the commands that the documents tell users
// to type, each document in a directory and a simulator of its own. The test compares the
// output with what the document shows of it. make test only parses the commands.
func TestEveryCommandLineOfTheDocumentsWorks(t *testing.T) {
	t.Parallel()
	if testkit.RaceDetector {
		t.Skip("skipped under the race detector: the programs of documents are run without it")
	}
	for _, d := range markdownFiles(t) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			if d.script != "" && !fileExists("testdata/script/"+d.script+".txtar") {
				t.Errorf("there is no script %s", d.script)
			}
			var run []docStep
			for _, s := range d.steps {
				switch {
				case s.kind == "parse" || d.script != "":
					parseStep(t, d, s)
				case testkit.All(t):
					run = append(run, s)
				case !strings.Contains(s.want, "error:"): // a command that multihost refuses need not parse
					parseStep(t, d, s)
				}
			}
			if len(run) > 0 {
				runSteps(t, d, run)
			}
		})
	}
}

// TestEveryCommandNamedInProseParses parses each `multihost …` in the prose.
func TestEveryCommandNamedInProseParses(t *testing.T) {
	seen := 0
	for _, d := range markdownFiles(t) {
		for _, m := range docInline.FindAllStringSubmatch(d.prose, -1) {
			words, err := shlex.Split(strings.ReplaceAll(m[1], "\n", " "))
			if err != nil {
				t.Errorf("%s: `%s`: %v", d.name, m[1], err)
				continue
			}
			seen++
			if err := dryParse(words[1:]); err != nil {
				t.Errorf("%s: `%s`: %v", d.name, m[1], err)
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d commands found", seen)
	}
}

// dryParse reads a command line as the program does, but does not carry it out. Words in
// capitals are placeholders.
func dryParse(argv []string) error {
	var words []string
	for _, w := range argv {
		if w != "…" && !strings.HasPrefix(w, "[") && !strings.HasSuffix(w, "]") {
			words = append(words, w)
		}
	}
	if len(words) > 0 && words[0] == strings.ToUpper(words[0]) && !strings.HasPrefix(words[0], "-") {
		return nil
	}
	if len(words) > 0 && words[0] == "__complete" {
		return nil // only shells type this command, with any words
	}
	p := process{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, lookup: func(key string) (string, bool) {
		if key == "MULTIHOST_FLAG_CONFIG" {
			return "none", true
		}
		return "", false
	}}
	commands := p.commands()
	app := commands.App
	nothing := func(*cli.Context) error { return nil }
	app.Action = nothing
	cmdline.WalkShown(app, func(_ string, c *cli.Command) { c.Action = nothing })
	line, err := commands.Parse(words)
	if err != nil {
		return err
	}
	err = line.Run(context.Background(), app)
	if err != nil && regexp.MustCompile(`^--[a-z-]+=[A-Z]+: `).MatchString(err.Error()) {
		return nil
	}
	return err
}

// parseStep lets a real shell split the commands. Then the program parses those of
// multihost.
func parseStep(t *testing.T, d *markdown, s docStep) {
	calls := filepath.Join(t.TempDir(), "calls")
	const prelude = `multihost() { { printf '%s\0' "$@"; printf '\1'; } >>"$CALLS"; }
command_not_found_handle() { :; }
PATH=/nowhere
`
	cmd := exec.CommandContext(t.Context(), "bash", "-c", prelude+s.command)
	cmd.Dir, cmd.Env = t.TempDir(), []string{"CALLS=" + calls}
	_ = cmd.Run() // a command that is not installed here may fail
	said, err := os.ReadFile(calls)
	if err != nil && strings.Contains(s.command, "multihost ") && regexp.MustCompile(`(?m)(^|[|&(] *)multihost [a-z]`).MatchString(s.command) {
		t.Errorf("%s:%d: the shell finds no multihost command", d.name, s.line)
	}
	for call := range strings.SplitSeq(strings.TrimSuffix(string(said), "\x01"), "\x01") {
		argv := strings.Split(strings.TrimSuffix(call, "\x00"), "\x00")
		if err := dryParse(argv); err != nil {
			t.Errorf("%s:%d: multihost %s: %v", d.name, s.line, strings.Join(argv, " "), err)
		}
	}
}

// runSteps runs the commands of a document in one shell.
func runSteps(t *testing.T, d *markdown, steps []docStep) {
	work, err := os.MkdirTemp(memoryDir(), "multihost-docs-")
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(work) })
	for _, dir := range []string{"home", "run", "steps", "bin"} {
		testkit.Must(t, os.Mkdir(filepath.Join(work, dir), 0o700))
	}
	project := filepath.Join(work, "project")
	copyProject(t, project)
	// Nothing here may ask the internet for this machine's address.
	testkit.WriteProgram(t, filepath.Join(work, "bin/curl"), "#!/bin/sh\necho 203.0.113.7\n")

	agent, err := builtAgent()
	testkit.Must(t, err)
	env := []string{"AGENT_DIR=" + agent, "MULTIHOST_FLAG_SKEW=off", "USER=ann", "HOME=" + filepath.Join(work, "home"), "XDG_RUNTIME_DIR=" + filepath.Join(work, "run"), "TMPDIR=" + work,
		"CLOUDSDK_CONFIG=" + filepath.Join(work, "home/gcloud"), "STEPS=" + filepath.Join(work, "steps"), "PATH=" + filepath.Join(work, "bin") + ":" + os.Getenv("PATH")}
	if d.slices != "none" {
		env = append(env, docSim(t, work, d.slices)...)
	}
	var script strings.Builder
	for i, s := range steps {
		testkit.Must(t, os.WriteFile(filepath.Join(work, "steps", strconv.Itoa(i)), []byte(s.command+"\n"), 0o644))
		mode := "set -e"
		if s.kind == "console" {
			mode = "set +e"
		}
		fmt.Fprintf(&script, "%s\n{ . \"$STEPS/%d\"; } >\"$STEPS/%d.out\" 2>&1 </dev/null\necho $? >\"$STEPS/%d.status\"\n", mode, i, i, i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script.String())
	shell.Dir, shell.Env = project, env
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }
	var said bytes.Buffer
	shell.Stdout, shell.Stderr = &said, &said
	shellErr := shell.Run()
	down := exec.Command("multihost", "sim", "down") // the document may have started a simulator
	down.Env = env
	testkit.Must(t, down.Run())
	for i, s := range steps {
		out, _ := os.ReadFile(filepath.Join(work, "steps", fmt.Sprintf("%d.out", i)))
		status, err := os.ReadFile(filepath.Join(work, "steps", fmt.Sprintf("%d.status", i)))
		if errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s:%d: %v %s\n%s\n%s", d.name, s.line, shellErr, said.String(), s.command, out)
		}
		if s.kind == "console" {
			if want := consolePattern(s.want); !want.Match(trimLines(out)) {
				t.Errorf("%s:%d: $ %s\nshows\n%s\nthe document says\n%s", d.name, s.line, s.command, out, s.want)
			}
			failed := strings.TrimSpace(string(status)) != "0"
			if failed && !strings.Contains(s.want, "error:") && !strings.Contains(s.want, "failed") {
				t.Errorf("%s:%d: $ %s\nends with status %s and the document does not say so\n%s", d.name, s.line, s.command, status, out)
			}
		}
	}
}

// copyProject makes the directory in which the commands of documents run. It has the
// program of examples/train, and scripts in the places where MaxText has its scripts.
func copyProject(t *testing.T, dir string) {
	t.Helper()
	testkit.Must(t, os.CopyFS(dir, os.DirFS("testdata/docs")))
	testkit.Must(t, os.CopyFS(filepath.Join(dir, "examples/train"), os.DirFS("../../examples/train")))
	for _, name := range []string{"train.py", "declaration.txt"} {
		text, err := os.ReadFile(filepath.Join("../../examples/train", name))
		testkit.Must(t, err)
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
}

// docSim starts a simulator and returns the environment of commands that use it.
func docSim(t *testing.T, work, slices string) []string {
	cfg := sim.Config{Dir: filepath.Join(work, "sim"), Step: 10 * time.Millisecond}
	testkit.Must(t, os.Mkdir(cfg.Dir, 0o700))
	var err error
	cfg.Slices, err = sim.ParseSlices(slices)
	testkit.Must(t, err)
	server, err := sim.Start(context.Background(), cfg)
	testkit.Must(t, err)
	t.Cleanup(func() { server.Close() })
	var env []string
	for k, v := range server.Env() {
		env = append(env, k+"="+v)
	}
	return env
}

// consolePattern matches what a document shows: … is any text.
func consolePattern(want string) *regexp.Regexp {
	var b strings.Builder
	for line := range strings.Lines(want) {
		line = strings.TrimRight(line, " \n")
		if line == "…" {
			b.WriteString(`(?:.*\n)*?`)
			continue
		}
		for i, part := range strings.Split(line, "…") {
			if i > 0 {
				b.WriteString(".*")
			}
			b.WriteString(regexp.QuoteMeta(part))
		}
		b.WriteString(`\n`)
	}
	return regexp.MustCompile(`\A` + b.String() + `\z`)
}

func trimLines(out []byte) []byte {
	return regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAll(bytes.ReplaceAll(out, []byte("\r"), nil), nil)
}

var (
	docLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	docHeading = regexp.MustCompile(`(?m)^#{1,6} (.*)$`)
)

// TestDocumentsHaveNoDeadLinks checks every link inside the repository, with its anchor.
func TestDocumentsHaveNoDeadLinks(t *testing.T) {
	seen := 0
	for _, d := range markdownFiles(t) {
		for _, m := range docLink.FindAllStringSubmatch(d.prose, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			seen++
			path := filepath.Join(d.dir, target)
			if target == "" {
				path = filepath.Join("../..", d.name)
			}
			text, err := os.ReadFile(path)
			if info, statErr := os.Stat(path); statErr != nil || err != nil && !info.IsDir() {
				t.Errorf("%s: the link %s leads nowhere", d.name, m[1])
				continue
			}
			if anchor != "" && !anchors(string(text))[anchor] {
				t.Errorf("%s: %s has no heading #%s", d.name, target, anchor)
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d links found", seen)
	}
}

// anchors returns the anchors that GitHub makes of headings.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range docHeading.FindAllStringSubmatch(text, -1) {
		name := strings.ToLower(m[1])
		name = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(name, "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}

// TestTroubleshootingIsKeyedByRealTexts: each heading of docs/troubleshooting.md is a text
// that the program can print, with … for the values in it.
func TestTroubleshootingIsKeyedByRealTexts(t *testing.T) {
	texts := messages(t, true)
	document, err := os.ReadFile("../../docs/troubleshooting.md")
	testkit.Must(t, err)
	headings := regexp.MustCompile("(?m)^### `(.*)`$").FindAllStringSubmatch(string(document), -1)
	for _, m := range headings {
		if !strings.Contains(texts, m[1]) {
			t.Errorf("nothing says %q", m[1])
		}
	}
	if len(headings) < 25 {
		t.Errorf("only %d headings found", len(headings))
	}
}

// messages returns the string literals of the sources, one a line, with … for the values in
// them. Literals joined by + are one text. With scripts, the texts of worker scripts are
// included.
func messages(t *testing.T, scripts bool) string {
	t.Helper()
	verb := regexp.MustCompile(`%(\[\d+\])?[-+# 0]*[\d*]*(\.[\d*]+)?[a-zA-Z]`)
	var all strings.Builder
	dirs := linked(t)
	for _, dir := range []string{".", "../../internal"} {
		testkit.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			in, _ := filepath.Abs(filepath.Dir(path))
			switch {
			case err != nil || d.IsDir():
				return err
			case scripts && strings.HasSuffix(path, ".sh"):
				code, err := os.ReadFile(path)
				all.Write(code)
				return err
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || !dirs[in]:
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				e, ok := n.(ast.Expr)
				if text, is := literal(e); ok && is {
					all.WriteString(verb.ReplaceAllString(text, "…") + "\n")
					return false
				}
				return true
			})
			return nil
		}))
	}
	return all.String()
}

// linked returns the folders of the packages in the program. No user sees the texts of
// other packages.
func linked(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.Dir}}", ".").Output()
	testkit.Must(t, err)
	dirs := map[string]bool{}
	for _, dir := range strings.Fields(string(out)) {
		dirs[dir] = true
	}
	return dirs
}

// literal returns the text of an expression of string literals, with … for all other parts.
func literal(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		left, l := literal(e.X)
		right, r := literal(e.Y)
		if !l {
			left = "…"
		}
		if !r {
			right = "…"
		}
		return left + right, l || r
	}
	return "", false
}

// TestExamplesInHelpParse makes the program parse the examples in its own help.
func TestExamplesInHelpParse(t *testing.T) {
	seen := 0
	app := app()
	look := func(path, description string) {
		for line := range strings.Lines(description) {
			if example := strings.TrimSpace(line); strings.HasPrefix(line, "  ") && strings.HasPrefix(example, "multihost ") {
				example, _, _ = strings.Cut(example, "   ") // the explanation of the example
				seen++
				parseStep(t, &markdown{name: path + " --help"}, docStep{command: example})
			}
		}
	}
	look("multihost", app.Description)
	cmdline.WalkShown(app, func(path string, c *cli.Command) { look(path, c.Description) })
	if seen < 15 {
		t.Errorf("only %d examples found", seen)
	}
}

// TestExamplesFitTheirProgram finds words after train.py in the documents that the program
// of examples/train refuses.
func TestExamplesFitTheirProgram(t *testing.T) {
	t.Parallel()
	python := testkit.Need(t, "python3")
	seen := 0
	guides, err := filepath.Glob("../../docs/guides/*.md")
	testkit.Must(t, err)
	for _, name := range append(guides, "../../docs/metrics.md", "../../README.md", "../../examples/train/README.md") {
		text, err := os.ReadFile(name)
		testkit.Must(t, err)
		for _, m := range regexp.MustCompile(`(?m)\bpython3 train\.py\b([^'"`+"`"+`\n]*)`).FindAllStringSubmatch(string(text), -1) {
			words, err := shlex.Split(m[1])
			testkit.Must(t, err)
			seen++
			// The program refuses unknown words before it refuses wrong values.
			cmd := exec.CommandContext(t.Context(), python, slices.Concat([]string{"../../examples/train/train.py"}, words, []string{"--steps=0"})...)
			if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), "must be at least 1") {
				t.Errorf("%s: python3 train.py%s: %s", name, m[1], out)
			}
		}
	}
	if seen < 18 {
		t.Errorf("only %d commands found", seen)
	}
}
