package xla

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	// NAME= in shell, where a command or an assignment may begin, perhaps inside the quoted
	// text of another shell.
	shellAssignment = regexp.MustCompile(`(?m)(^|[\s;&|(){'"` + "`" + `])LIBTPU_INIT_ARGS(\+?=)`)
	// The variable is unset.
	shellUnset = regexp.MustCompile(`(?m)(^|[\s;&|(){'"])unset\s+(-v\s+)?LIBTPU_INIT_ARGS\b`)
	// A test whether the variable is set, on which the assignment after it depends.
	shellGuard = regexp.MustCompile(`(-z|-n|-v)\s+"?(\$\{?)?LIBTPU_INIT_ARGS`)
	// A use of the variable's value.
	shellUse = regexp.MustCompile(`\$(\{LIBTPU_INIT_ARGS[^A-Za-z0-9_]|LIBTPU_INIT_ARGS\b)`)

	pythonAssignment = regexp.MustCompile(`environ\s*\[\s*["']LIBTPU_INIT_ARGS["']\s*\]\s*(\+?=)[^=]`)
	pythonUse        = regexp.MustCompile(`(environ\s*(\.get\s*\(|\[)|getenv\s*\()\s*["']LIBTPU_INIT_ARGS["']`)
)

// unknownText stands for text that a shell or Python would insert: the value of another
// variable, or the output of a command.
const unknownText = "\x00"

// mostPlaces limits the assignments to check in one script.
const mostPlaces = 50

// ScanScript finds the places in a script that set LIBTPU_INIT_ARGS, and returns what is
// wrong with the flags. It also reports that the script discards the present value of the
// variable, because a preset then has no effect. A script whose name ends in .py is Python,
// any other is shell. The generation may be "".
func (c *Catalogue) ScanScript(name, content, generation string) []Finding {
	if strings.HasSuffix(name, ".py") {
		return c.scanPython(name, content, generation)
	}
	var findings []Finding
	for _, m := range shellAssignment.FindAllStringSubmatchIndex(content, mostPlaces) {
		start, end := m[3], m[1] // the variable's name begins at start, and its value at end
		if inComment(content, start) {
			continue
		}
		where := place(name, content, start)
		quote := ""
		if before := content[m[2]:m[3]]; before == `'` || before == `"` {
			quote = before
		}
		raw := shellWord(content[end:], quote)
		if content[m[4]:m[5]] == "=" && !shellUse.MatchString(raw) && !guarded(content, start) {
			findings = append(findings, overwrites(where, `LIBTPU_INIT_ARGS="${LIBTPU_INIT_ARGS:-} `, raw))
		}
		findings = append(findings, c.scanText(plainText(raw), generation, where)...)
	}
	for _, m := range shellUnset.FindAllStringSubmatchIndex(content, mostPlaces) {
		if !inComment(content, m[3]) {
			findings = append(findings, Finding{Severity: Warning, Rule: RuleOverwrites, Where: place(name, content, m[3]), Text: "unset LIBTPU_INIT_ARGS: flags that are set outside are lost here"})
		}
	}
	return findings
}

func overwrites(where, instead, raw string) Finding {
	f := Finding{Severity: Warning, Rule: RuleOverwrites, Where: where, Text: "LIBTPU_INIT_ARGS is overwritten: flags that are set outside, as by --xla-preset, are lost here"}
	if first := Words(plainText(raw)); len(first) > 0 && !strings.Contains(first[0], unknownText) {
		f.Instead = instead + first[0]
		if len(first) > 1 {
			f.Instead += " …"
		}
		f.Instead += `"`
	}
	return f
}

// scanText checks the flags of an assignment, without words that have unknown text.
func (c *Catalogue) scanText(text, generation, where string) []Finding {
	words := slices.DeleteFunc(Words(text), func(w string) bool { return strings.Contains(w, unknownText) })
	var findings []Finding
	for _, f := range c.Check(strings.Join(words, " "), generation) {
		if f.Severity != Info {
			f.Where = where
			findings = append(findings, f)
		}
	}
	return findings
}

func place(name, content string, at int) string {
	return name + ":" + strconv.Itoa(1+strings.Count(content[:at], "\n"))
}

// inComment reports whether an unquoted # stands before the place at, on the same line.
func inComment(content string, at int) bool {
	line := content[strings.LastIndexByte(content[:at], '\n')+1 : at]
	var quote byte
	for i := range len(line) {
		switch b := line[i]; {
		case quote != 0:
			if b == quote {
				quote = 0
			}
		case b == '\'' || b == '"':
			quote = b
		case b == '#' && (i == 0 || isBlank(line[i-1]) || line[i-1] == ';'):
			return true
		}
	}
	return false
}

// guarded reports whether the assignment probably happens only if the variable is empty:
// whether the same line, or one of the three before, tests it.
func guarded(content string, at int) bool {
	from := at
	for range 4 {
		i := strings.LastIndexByte(content[:from], '\n')
		if i < 0 {
			from = 0
			break
		}
		from = i
	}
	return shellGuard.MatchString(content[from:at])
}

// shellWord returns the word at the beginning of a shell text, as it is written. open is a
// quote opened before the word, whose closing quote ends the word, or "".
func shellWord(text, open string) string {
	var quote byte
	escaped := strings.HasPrefix(text, `\"`) // a quoted value inside another quoted text
	i := 0
	if escaped {
		if end := strings.Index(text[2:], `\"`); end >= 0 {
			return text[2 : 2+end]
		}
	}
	for ; i < len(text); i++ {
		b := text[i]
		switch {
		case quote != 0:
			if b == '\\' && quote == '"' {
				i++
			} else if b == quote {
				quote = 0
			}
		case open != "" && b == open[0]:
			return text[:i]
		case b == '\\':
			i++
		case b == '\'' || b == '"':
			quote = b
		case b == '$' && i+1 < len(text) && (text[i+1] == '{' || text[i+1] == '('):
			i += matching(text[i+1:])
		case open == "" && (isBlank(b) || strings.IndexByte(";&|)", b) >= 0):
			return text[:i]
		}
	}
	return text[:min(i, len(text))]
}

// matching returns the number of bytes from the bracket at the beginning of text to its
// closing bracket.
func matching(text string) int {
	closing := byte(')')
	if text[0] == '{' {
		closing = '}'
	}
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case text[0]:
			depth++
		case closing:
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(text)
}

// plainText removes the quotes of a shell word, and writes unknownText for text that the
// shell would insert. It keeps the text after :- in ${NAME:-text}.
func plainText(raw string) string {
	var b strings.Builder
	var quote byte
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(raw):
			i++
			if raw[i] != '\n' {
				b.WriteByte(raw[i])
			}
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote != 0 && c == quote:
			quote = 0
		case c == '`' && quote != '\'':
			end := strings.IndexByte(raw[i+1:], '`')
			if end < 0 {
				end = len(raw) - i - 2
			}
			i += end + 1
			b.WriteString(unknownText)
		case c == '$' && quote != '\'' && i+1 < len(raw):
			n, text := expansion(raw[i+1:])
			if n == 0 {
				b.WriteByte(c)
				continue
			}
			i += n
			b.WriteString(text)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// expansion reads the text after a $. It returns the length of the expansion in bytes, and
// what is known about its result.
func expansion(text string) (int, string) {
	switch {
	case text[0] == '(':
		return matching(text), unknownText
	case text[0] == '{':
		n := matching(text)
		inner := strings.TrimSuffix(text[1:n], "}")
		name := strings.TrimLeft(inner, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
		for _, operator := range []string{":-", ":=", ":+", "-", "=", "+"} {
			if rest, ok := strings.CutPrefix(name, operator); ok {
				return n, unknownText + " " + plainText(rest) + " "
			}
		}
		return n, unknownText
	}
	n := len(text) - len(strings.TrimLeft(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"))
	if n == 0 {
		return 0, ""
	}
	return n, unknownText
}

func (c *Catalogue) scanPython(name, content, generation string) []Finding {
	var findings []Finding
	for _, m := range pythonAssignment.FindAllStringSubmatchIndex(content, mostPlaces) {
		if inComment(content, m[0]) {
			continue
		}
		statement := pythonStatement(content[m[3]:])
		where := place(name, content, m[0])
		if content[m[2]:m[3]] == "=" && !pythonUse.MatchString(statement) {
			f := overwrites(where, "", "")
			f.Instead = `os.environ["LIBTPU_INIT_ARGS"] = os.environ.get("LIBTPU_INIT_ARGS", "") + " …"`
			findings = append(findings, f)
		}
		findings = append(findings, c.scanText(pythonText(statement), generation, where)...)
	}
	return findings
}

// pythonStatement returns the rest of a statement, which ends with the line on which all
// brackets are closed.
func pythonStatement(text string) string {
	depth := 0
	var quote byte
	for i := range len(text) {
		switch b := text[i]; {
		case quote != 0:
			if b == quote || b == '\n' {
				quote = 0
			}
		case b == '\'' || b == '"':
			quote = b
		case strings.IndexByte("([{", b) >= 0:
			depth++
		case strings.IndexByte(")]}", b) >= 0:
			depth--
		case b == '\n' && depth <= 0 && (i == 0 || text[i-1] != '\\'):
			return text[:i]
		}
	}
	return text
}

var pythonString = regexp.MustCompile(`(?s)([fF]?)("""(.*?)"""|'''(.*?)'''|"([^"\n]*)"|'([^'\n]*)')`)

// pythonText joins the string literals of a statement.
func pythonText(statement string) string {
	statement = pythonUse.ReplaceAllString(statement, "")
	var b strings.Builder
	for _, m := range pythonString.FindAllStringSubmatch(statement, -1) {
		text := m[3] + m[4] + m[5] + m[6]
		if m[1] != "" {
			text = strings.NewReplacer("{", unknownText, "}", "").Replace(text)
		}
		b.WriteString(text)
	}
	return b.String()
}

// A Scan says what ScanCommand knows about the command.
type Scan struct {
	Generation string // generation of the workers; "": unknown
	Given      bool   // a preset or the user puts LIBTPU_INIT_ARGS into the environment
}

// ScanCommand looks for assignments to LIBTPU_INIT_ARGS in a command and in the scripts
// that it names. files is the directory in which the command runs, or nil. Scripts outside
// of it are skipped. With s.Given, ScanCommand also reports that a script overwrites the
// variable. Otherwise nothing would be lost.
func (c *Catalogue) ScanCommand(command string, files fs.FS, s Scan) []Finding {
	findings := c.ScanScript("command", command, s.Generation)
	seen := map[string]bool{}
	// Launchers call other launchers. No known launcher needs more than a few.
	const most = 16
	queue := ScriptNames(command)
	for len(queue) > 0 && files != nil && len(seen) < most {
		name := queue[0]
		queue = queue[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		content, ok := readScript(files, name)
		if !ok {
			continue
		}
		findings = append(findings, c.ScanScript(name, content, s.Generation)...)
		if !strings.HasSuffix(name, ".py") {
			queue = append(queue, ScriptNames(content)...)
		}
	}
	return slices.DeleteFunc(findings, func(f Finding) bool { return f.Rule == RuleOverwrites && !s.Given })
}

// largestScript is the size above which a file counts as data, not as a launcher.
const largestScript = 1 << 20

func readScript(files fs.FS, name string) (string, bool) {
	info, err := fs.Stat(files, name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > largestScript {
		return "", false
	}
	content, err := fs.ReadFile(files, name)
	return string(content), err == nil
}

// ScriptNames returns the relative paths of the shell and Python scripts in a shell text,
// in the order of the text.
func ScriptNames(text string) []string {
	var names []string
	runner := false // the previous word runs a script
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for field := range strings.FieldsFuncSeq(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n;&|()'\"`<>", r) }) {
			script := strings.HasSuffix(field, ".sh") || strings.HasSuffix(field, ".bash") || strings.HasSuffix(field, ".py")
			option := strings.HasPrefix(field, "-")
			if name := path.Clean(field); (script || runner && !option) && fs.ValidPath(name) && name != "." && !strings.ContainsAny(name, "$*") && !slices.Contains(names, name) {
				names = append(names, name)
			}
			switch path.Base(field) {
			case "bash", "sh", "source", ".", "python", "python3":
				runner = true
			default:
				runner = runner && option && field != "-c" && field != "-m"
			}
		}
		runner = false
	}
	return names
}
