package main

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/metrics"
	"multihost/internal/sim"
	"multihost/internal/tpu"
	"multihost/internal/xla"
)

// Completion has two halves: a script for each shell, which passes on the words that were
// typed, and this program, which answers. So completion always knows what this binary
// knows, and the scripts need not change with it.

var (
	//go:embed completion/bash.sh
	bashCompletion string
	//go:embed completion/zsh.zsh
	zshCompletion string
	//go:embed completion/fish.fish
	fishCompletion string
)

// completionScripts returns the scripts by shell.
func completionScripts() map[string]string {
	return map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
}

func (p *program) completionCommand() *cli.Command {
	return command(cli.Command{
		Name:      "completion",
		Usage:     "print the script that lets a shell complete multihost's commands, flags and names",
		ArgsUsage: "bash|zsh|fish",
		Description: `Completes commands, flags and their values: accelerator types, runtime versions,
zones, XLA presets, and the names of runs on this machine, of slices and of
queued resources. For the last two it asks the API, with a limit of 2 seconds, and
keeps the answer for a minute.

  source <(multihost completion bash)
  source <(multihost completion zsh)
  multihost completion fish | source

Each script says at its beginning how to load it in every shell.`,
		Action: func(c *cli.Context) error {
			shell := p.oneArgument("multihost completion", "shell")
			script := completionScripts()[shell]
			if script == "" {
				p.inv.refuse(&usageError{err: fmt.Errorf("no completion for %q", shell), hint: "the shells are bash, zsh and fish"}, positional)
			}
			return p.show(c, event.Result{Name: "completion", Text: script, Data: completionScript{shell, script}})
		},
	}, exitOK, exitUsage)
}

// completionScript is the result of completion.
type completionScript struct {
	Shell  string `json:"shell"`
	Script string `json:"script"`
}

// A candidate is a text that the current word can become.
type candidate struct {
	text  string
	about string // a few words, or ""
}

// The kinds of answers tell the shell what to do after or instead of the candidates.
const (
	answerWords = "words" // a space follows the word
	answerOpen  = "open"  // no space: the word goes on
	answerFiles = "files" // the shell completes files
	answerDirs  = "dirs"
)

// complete answers a completion script: it prints a line with the kind, then one
// candidate per line. It ignores all errors.
func (p *program) complete(ctx context.Context, argv []string) {
	if len(argv) < 2 {
		return
	}
	shell, words, cut := argv[0], argv[1:], 0
	if shell == "bash" {
		if len(argv) < 3 {
			return
		}
		words = splitLine(argv[2])[1:]
		cut = strings.LastIndexAny(words[len(words)-1], keepOnly(argv[1], "=:")) + 1
	}
	q := newQuery(ctx, p, words)
	kind, list := q.answer()
	b := bufio.NewWriter(p.stdout)
	defer b.Flush()
	fmt.Fprintln(b, kind)
	for _, c := range list {
		if !strings.HasPrefix(c.text, q.current) || !plainWord.MatchString(c.text) {
			continue
		}
		about, _, _ := strings.Cut(strings.ReplaceAll(c.about, "`", ""), "\n")
		fmt.Fprintf(b, "%s\t%s\n", c.text[cut:], about)
	}
}

// plainWord matches words that a shell takes literally. The scripts insert candidates
// unquoted, and a name can come from a file or directory of another user: pressing Tab
// must never put $(…) into the line.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9._:/=,@*+-]+$`)

// keepOnly drops all characters of s that are not in set.
func keepOnly(s, set string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(set, r) {
			return r
		}
		return -1
	}, s)
}

// splitLine splits the beginning of a command line as a shell does. The last word is the
// one under the cursor; its quote may still be open. The result has at least two words.
func splitLine(line string) []string {
	words := []string{""}
	var quote rune
	escaped, inside := false, false
	for _, r := range line {
		last := &words[len(words)-1]
		switch {
		case escaped:
			*last, escaped = *last+string(r), false
		case r == '\\' && quote != '\'':
			escaped, inside = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			*last += string(r)
		case r == '\'' || r == '"':
			quote, inside = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if inside {
				words, inside = append(words, ""), false
			}
		default:
			*last, inside = *last+string(r), true
		}
	}
	if len(words) == 1 {
		words = append(words, "")
	}
	return words
}

// A query is a command line that is being completed.
type query struct {
	ctx     context.Context
	p       *program // discards its output
	words   []string // the words before the current one
	current string

	levels      []*level
	commands    []*cli.Command
	command     *cli.Command // the innermost command
	positionals []string
	path        string   // "qr show"
	flag        cli.Flag // the flag whose value is the current word, or nil
	after       bool     // the current word is after --
	given       map[string]bool
}

func newQuery(ctx context.Context, p *program, words []string) *query {
	quiet := &program{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, lookup: p.lookup, home: p.home, dir: p.dir, leave: p.leave}
	app := quiet.app()
	q := &query{ctx: ctx, p: quiet, words: words[:len(words)-1], current: words[len(words)-1],
		levels: []*level{{flags: app.Flags}}, commands: app.Commands, given: map[string]bool{}}
	for i := 0; i < len(q.words); i++ {
		word := q.words[i]
		switch {
		case word == "--":
			q.after = true
			return q
		case len(word) > 1 && word[0] == '-':
			name, _, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
			_, f := findFlag(q.levels, name)
			if f == nil {
				continue
			}
			q.given[f.Names()[0]] = true
			if hasValue || isSwitch(f) {
				continue
			}
			if i++; i == len(q.words) {
				q.flag, q.words = f, q.words[:i-1]
			}
		case len(q.positionals) == 0 && findCommand(q.commands, word) != nil:
			q.command = findCommand(q.commands, word)
			q.levels = append(q.levels, &level{name: q.command.Name, flags: q.command.Flags})
			q.commands = q.command.Subcommands
			q.path = strings.TrimSpace(q.path + " " + q.command.Name)
		default:
			q.positionals = append(q.positionals, word)
		}
	}
	return q
}

func (q *query) answer() (kind string, list []candidate) {
	name, value, hasValue := strings.Cut(q.current, "=")
	switch {
	case q.after:
		return answerFiles, nil
	case q.flag != nil:
		return q.values(q.flag, "", q.current)
	case strings.HasPrefix(q.current, "-") && hasValue:
		if _, f := findFlag(q.levels, strings.TrimLeft(name, "-")); f != nil {
			return q.values(f, name+"=", value)
		}
		if name == "--help" {
			return answerWords, []candidate{{"--help=all", helpFlag.Text}}
		}
		return answerWords, nil
	case strings.HasPrefix(q.current, "-"):
		return q.flags()
	}
	if kind := positionalFiles[q.path]; kind != "" {
		return kind, nil
	}
	if len(q.positionals) == 0 {
		for _, c := range q.commands {
			if !c.Hidden {
				list = append(list, candidate{c.Name, c.Usage})
			}
		}
	}
	if complete := positionalValues[q.path]; complete != nil {
		list = append(list, complete(q)...)
	}
	return answerWords, list
}

// flags lists the flags that are not given yet or may be repeated.
func (q *query) flags() (kind string, list []candidate) {
	upper := q.current != strings.ToLower(q.current)
	seen := map[string]bool{}
	open, found := true, false
	for _, l := range slices.Backward(q.levels) {
		for _, f := range l.flags {
			if v, ok := f.(cli.VisibleFlag); ok && !v.IsVisible() || seen[f.Names()[0]] || q.given[f.Names()[0]] && kindOf(f) != config.List {
				continue
			}
			seen[f.Names()[0]] = true
			for i, name := range f.Names() {
				if len(name) == 1 || i > 0 && (name != strings.ToUpper(name) || !upper) {
					continue
				}
				text := "--" + name
				if !isSwitch(f) {
					text += "="
				}
				if strings.HasPrefix(text, q.current) {
					open, found = open && !isSwitch(f), true
				}
				list = append(list, candidate{text, f.(cli.DocGenerationFlag).GetUsage()})
			}
		}
	}
	for _, text := range []string{"--help", "--help=all"} {
		if strings.HasPrefix(text, q.current) {
			open = false
		}
		list = append(list, candidate{text, helpFlag.Text})
	}
	if open && found {
		return answerOpen, list
	}
	return answerWords, list
}

// values completes the value of a flag; prefix is the part of the word before the value.
func (q *query) values(f cli.Flag, prefix, value string) (kind string, list []candidate) {
	name := f.Names()[0]
	switch {
	case slices.Contains([]string{"script-dir", "log-dir", "state-dir", "sim-dir"}, name):
		return answerDirs, nil
	case slices.Contains(pathFlags, name):
		return answerFiles, nil
	}
	kind = answerWords
	complete := flagValues[name]
	switch {
	case isBool(f):
		list = []candidate{{"true", ""}, {"false", ""}}
	case complete != nil:
		list = complete(q)
	default:
		for _, word := range enumeration(f.(cli.DocGenerationFlag).GetUsage()) {
			list = append(list, candidate{word, ""})
		}
	}
	if slices.Contains(commaFlags, name) { // completes the last of several names
		prefix += value[:strings.LastIndexByte(value, ',')+1]
		kind = answerOpen
	}
	for i := range list {
		list[i].text = prefix + list[i].text
		if strings.HasSuffix(list[i].text, "=") {
			kind = answerOpen
		}
	}
	return kind, list
}

// commaFlags take several names, separated by commas.
var commaFlags = []string{"xla-preset", "workers", "exclude-workers"}

var enumerated = regexp.MustCompile(`^([a-z0-9-]+(?:, [a-z0-9-]+)*,? or [a-z0-9-]+)(?::| \()`)

// enumeration returns the words that a flag takes if its help begins with them, as in
// "auto, on or off: …".
func enumeration(usage string) []string {
	m := enumerated.FindStringSubmatch(regexp.MustCompile(` \([^)]*\)`).ReplaceAllString(usage, "") + " (")
	if m == nil {
		return nil
	}
	return strings.FieldsFunc(strings.ReplaceAll(m[1], " or ", " "), func(r rune) bool { return r == ' ' || r == ',' })
}

// flagValues completes the values of flags; positionalValues completes the words
// of commands.
var flagValues = map[string]func(q *query) []candidate{
	"tpu-prefix":      (*query).prefixes,
	"prefix":          (*query).prefixes,
	"tpu-type":        (*query).types,
	"runtime-version": (*query).runtimes,
	"type":            (*query).chips,
	"topology":        (*query).topologies,
	"zone":            (*query).zones,
	"project":         (*query).projects,
	"configuration":   (*query).configurations,
	"profile":         (*query).profiles,
	"xla-preset":      (*query).presets,
	"xla-flag":        (*query).xlaFlags,
	"compare":         func(*query) []candidate { return plain(metrics.Published()) },
	"worker":          (*query).workers,
	"workers":         (*query).workers,
	"exclude-workers": (*query).workers,
	"run-name":        (*query).runs,
	"sim-fault":       (*query).faults,
	"fault":           (*query).faults,
}

// positionalValues completes the words of commands.
var positionalValues = map[string]func(q *query) []candidate{
	"attach":         (*query).run,
	"logs":           (*query).run,
	"stop":           (*query).run,
	"report":         (*query).run,
	"top":            (*query).run,
	"metrics":        (*query).run,
	"dump":           (*query).run,
	"qr show":        (*query).queued,
	"qr wait":        (*query).queued,
	"qr delete":      (*query).queued,
	"qr reset":       (*query).queued,
	"hostkey forget": (*query).workers,
	"ssh":            (*query).workers,
	"xla flags":      (*query).flagNames,
	"xla presets":    (*query).presets,
	"xla check":      (*query).xlaFlags,
	"config show":    (*query).commandNames,
	"completion":     func(*query) []candidate { return plain([]string{"bash", "zsh", "fish"}) },
	"sim fault":      (*query).faultWords,
	"preflight":      func(*query) []candidate { return plain([]string{"PLATFORM=gce", "PLATFORM=gke"}) },
}

// positionalFiles lists the commands whose words name files.
var positionalFiles = map[string]string{"cp": answerFiles, "manual": answerDirs}

func plain(texts []string) []candidate {
	list := make([]candidate, len(texts))
	for i, t := range texts {
		list[i].text = t
	}
	return list
}

// setting returns the value that a flag has, typed or from a layer; "" if the command
// line has an error.
func (q *query) setting(flag string) string {
	inv, err := q.p.arrange(q.p.app(), q.words)
	if err != nil {
		return ""
	}
	return inv.value(flag)
}

// run completes the one word that names a run.
func (q *query) run() []candidate {
	if len(q.positionals) > 0 {
		return nil
	}
	return q.runs()
}

// runs returns the runs that this machine has records of, the newest first.
func (q *query) runs() []candidate {
	dir := cmp.Or(q.setting("state-dir"), config.StateDir(q.p.lookup, q.p.home))
	entries, _ := os.ReadDir(filepath.Join(dir, "runs"))
	type found struct {
		name string
		when time.Time
	}
	var all []found
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() {
			all = append(all, found{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b found) int { return b.when.Compare(a.when) })
	list := make([]candidate, 0, len(all))
	for _, f := range all {
		list = append(list, candidate{f.name, event.Age(time.Since(f.when)) + " ago"})
	}
	return list
}

// chips returns the kinds of chip that --type takes.
func (q *query) chips() []candidate {
	var list []candidate
	for _, g := range tpu.Generations() {
		if g.CloudAPI {
			list = append(list, candidate{g.Family, ""})
		}
	}
	return list
}

// topologies returns the topologies of the kind of chip that is typed, or of any kind.
func (q *query) topologies() []candidate {
	kind := q.setting("type")
	var list []candidate
	for _, t := range tpu.Types() {
		if kind == "" || t.Generation.Family == kind {
			list = append(list, candidate{t.Topology, t.Name})
		}
	}
	return list
}

func (q *query) types() []candidate {
	var list []candidate
	for _, t := range tpu.Types() {
		list = append(list, candidate{t.Name, fmt.Sprintf("%s, %s", event.Count(t.Chips, "chip"), event.Count(t.Workers, "worker"))})
	}
	return list
}

func (q *query) runtimes() []candidate {
	wanted := q.setting("tpu-type")
	var list []candidate
	for _, g := range tpu.Generations() {
		if g.RuntimeVersion == "" || wanted != "" && !strings.HasPrefix(wanted, g.Family) {
			continue
		}
		if i := slices.IndexFunc(list, func(c candidate) bool { return c.text == g.RuntimeVersion }); i >= 0 {
			list[i].about += ", " + g.Name
			continue
		}
		list = append(list, candidate{g.RuntimeVersion, g.Name})
	}
	return list
}

// zones returns the zones in which Google documents TPUs, with their generations. The
// list only helps to type: no zone is refused because it is missing here.
func (q *query) zones() []candidate {
	return []candidate{
		{"asia-east1-c", "v2"}, {"asia-northeast1-b", "v6e"}, {"europe-west4-a", "v2, v3, v6e"}, {"europe-west4-b", "v5e, v5p"},
		{"southamerica-west1-a", "v6e"}, {"us-central1-a", "v2, v3, v5e, v5p"}, {"us-central1-b", "v2, v3, v6e"}, {"us-central1-c", "v2"},
		{"us-central2-b", "v4"}, {"us-east1-d", "v6e"}, {"us-east5-a", "v5p, v6e"}, {"us-east5-b", "v6e"}, {"us-south1-a", "v5e"},
		{"us-west1-c", "v5e"}, {"us-west4-a", "v5e"},
	}
}

// gcloudFor returns the gcloud configuration of that name; it only reads files.
func (q *query) gcloudFor(name string) config.Gcloud {
	g, _ := config.LoadGcloud(q.p.lookup, q.p.home, name)
	return g
}

func (q *query) configurations() []candidate {
	var list []candidate
	for _, name := range config.GcloudConfigurations(q.p.lookup, q.p.home) {
		list = append(list, candidate{name, q.gcloudFor(name).Project})
	}
	return list
}

func (q *query) projects() []candidate {
	var names []string
	for _, c := range q.configurations() {
		names = append(names, c.about)
	}
	names = append(names, q.gcloudFor("").Project)
	slices.Sort(names)
	return plain(slices.DeleteFunc(slices.Compact(names), func(s string) bool { return s == "" }))
}

func (q *query) profiles() []candidate {
	inv, err := q.p.arrange(q.p.app(), nil)
	if err != nil {
		return nil
	}
	return plain(inv.layers.files.Profiles())
}

func (q *query) presets() []candidate {
	catalogue := xla.Load()
	generation, _ := catalogue.Generation(q.setting("tpu-type"))
	var list []candidate
	for _, g := range catalogue.Groups() {
		if !g.Historical && (generation == "" || g.Fits(generation)) {
			name := g.Name
			if g.Parameter && !strings.Contains(name, "=") {
				name += "="
			}
			list = append(list, candidate{name, g.About})
		}
	}
	for _, p := range catalogue.Presets() {
		if generation == "" || p.Generation == generation {
			list = append(list, candidate{p.Name, p.Model})
		}
	}
	return list
}

func (q *query) xlaFlags() []candidate {
	dashes := q.current[:len(q.current)-len(strings.TrimLeft(q.current, "-"))]
	if strings.HasPrefix(q.current, "--xla-flag=") {
		dashes = ""
	}
	var list []candidate
	for _, f := range xla.Load().Flags() {
		list = append(list, candidate{dashes + f.Name + "=", f.Meaning})
	}
	return list
}

func (q *query) flagNames() []candidate {
	var list []candidate
	for _, f := range xla.Load().Flags() {
		list = append(list, candidate{f.Name, f.Meaning})
	}
	return list
}

// commandNames returns the next words of a command's path.
func (q *query) commandNames() []candidate {
	commands := q.p.app().Commands
	for _, word := range q.positionals {
		c := findCommand(commands, word)
		if c == nil {
			return nil
		}
		commands = c.Subcommands
	}
	var list []candidate
	for _, c := range commands {
		list = append(list, candidate{c.Name, c.Usage})
	}
	return list
}

func (q *query) faults() []candidate {
	var list []candidate
	for _, f := range sim.Faults() {
		list = append(list, candidate{f.Name, f.What})
	}
	return list
}

// faultWords returns the names of faults, then the arguments of the named fault.
func (q *query) faultWords() []candidate {
	if len(q.positionals) == 0 {
		return append(q.faults(), candidate{"clear", "take faults back"})
	}
	var list []candidate
	for _, f := range sim.Faults() {
		if f.Name == q.positionals[0] {
			for _, arg := range f.Args {
				list = append(list, candidate{arg + "=", ""})
			}
		}
	}
	return list
}

// namesFresh is how long names from the API are used again without asking.
const namesFresh = time.Minute

// namesLimit limits the time that the API may take to return names: a user who has
// pressed Tab does not wait longer. Only tests, on machines under load, change it.
var namesLimit = 2 * time.Second

// cloudNames holds the names that the API knows, as they are kept between two key
// strokes.
type cloudNames struct {
	Place  string         `json:"place"` // project, zone and endpoint
	Read   time.Time      `json:"read"`
	Slices map[string]int `json:"slices"` // number of workers
	Queued []string       `json:"queued_resources"`
}

// cloud returns the names from the API, or its answer of a moment ago. If a simulator
// would have to be started for that, it returns none.
func (q *query) cloud() (names cloudNames) {
	app := q.p.app()
	inv, err := q.p.arrange(app, q.words)
	if err != nil || q.setting("sim") == "true" || len(inv.path) == 0 {
		return names
	}
	leaf := findCommand(app.Commands, inv.path[0])
	for _, name := range inv.path[1:] {
		leaf = findCommand(leaf.Subcommands, name)
	}
	leaf.Action = func(c *cli.Context) error {
		s, err := q.p.open(c)
		if err != nil {
			return err
		}
		defer s.close()
		if err := q.p.ready(c); err != nil {
			return err
		}
		if s.queue != nil {
			names, err = s.cloudNames(q.ctx)
		}
		return err
	}
	q.p.inv = inv
	_ = app.RunContext(q.ctx, append([]string{"multihost"}, inv.args...)) // errors are ignored: there are no names then
	return names
}

// prefixes returns values for --tpu-prefix: names of slices, and what the names of
// several slices begin with.
func (q *query) prefixes() []candidate {
	slicesOf := map[string]int{}
	names := q.cloud().Slices
	for name := range names {
		if base, number, ok := cutLast(name, "-"); ok && strings.Trim(number, "0123456789") == "" {
			slicesOf[base]++
		}
	}
	var list []candidate
	for base, n := range slicesOf {
		if _, single := names[base]; !single {
			list = append(list, candidate{base, event.Count(n, "slice")})
		}
	}
	for name, workers := range names {
		list = append(list, candidate{name, event.Count(workers, "worker")})
	}
	slices.SortFunc(list, func(a, b candidate) int { return strings.Compare(a.text, b.text) })
	return list
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// queued returns the queued resources, for the one word that names one.
func (q *query) queued() []candidate {
	if len(q.positionals) > 0 {
		return nil
	}
	return plain(q.cloud().Queued)
}

// workers returns the workers of the run that is named, or of the slices that
// --tpu-prefix names.
func (q *query) workers() []candidate {
	var counts []int
	if len(q.positionals) > 0 {
		counts, _ = job.RecordedWorkers(cmp.Or(q.setting("state-dir"), config.StateDir(q.p.lookup, q.p.home)), q.positionals[0])
	}
	if prefix := q.setting("tpu-prefix"); counts == nil && prefix != "" {
		names := q.cloud().Slices
		if n, ok := names[prefix]; ok {
			counts = []int{n}
		}
		for i := 0; ; i++ {
			n, ok := names[fmt.Sprintf("%s-%d", prefix, i)]
			if !ok {
				break
			}
			counts = append(counts, n)
		}
	}
	var list []candidate
	for s, n := range counts {
		for w := range n {
			list = append(list, candidate{tpu.WorkerID{Slice: s, Worker: w}.String(), ""})
		}
	}
	return list
}

// cloudNames returns the names that the API knows: from the kept file if it is fresh, or
// else from the API.
func (s *session) cloudNames(ctx context.Context) (cloudNames, error) {
	roots, err := s.cloud.Roots()
	if err != nil {
		return cloudNames{}, err
	}
	place := s.cloud.Project() + "/" + s.cloud.Zone() + " at " + roots.TPU
	path := filepath.Join(s.stateDir, "completion.json")
	var kept cloudNames
	if data, err := os.ReadFile(path); err == nil && json.Unmarshal(data, &kept) == nil &&
		kept.Place == place && time.Since(kept.Read) < namesFresh && time.Since(kept.Read) >= 0 {
		return kept, nil
	}
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), namesLimit)
	defer cancel()
	names := cloudNames{Place: place, Read: time.Now(), Slices: map[string]int{}}
	all, err := s.queue.Slices(ctx)
	if err != nil {
		return names, err
	}
	for _, slice := range all {
		names.Slices[slice.Name] = len(slice.Workers)
	}
	if names.Queued, err = s.queue.IDs(ctx); err != nil {
		return names, err
	}
	if data, err := json.Marshal(names); err == nil && os.MkdirAll(s.stateDir, 0o700) == nil {
		_ = writeWhole(path, data) // if it fails, the next key stroke asks the API again
	}
	return names, nil
}
