package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/urfave/cli/v2"

	"multihost/cmd/multihost/simcmd"
	"multihost/cmd/multihost/workloadcmd"
	"multihost/internal/attempt"
	"multihost/internal/cmdline"
	"multihost/internal/doctor"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gc"
	"multihost/internal/gke"
	"multihost/internal/metrics"
	"multihost/internal/network"
	"multihost/internal/ops"
	"multihost/internal/options"
	"multihost/internal/plan"
	"multihost/internal/provider"
	"multihost/internal/qr"
	"multihost/internal/runs"
	"multihost/internal/settings"
	"multihost/internal/sim"
	"multihost/internal/workloads"
	"multihost/internal/xla"
)

// schemaDir has the JSON Schemas of the output with --output=json: a file for each command,
// and events.json for the lines that several commands print.
const schemaDir = "../../docs/schema/v1"

// Kinds of lines that commands print besides their results.
var (
	answers = []string{"note", "error"}                                                     // of commands that read something local
	steps   = append([]string{"phase", "progress", "state", "dropped"}, answers...)         // of commands that work on the cloud or on workers
	follows = append([]string{"attempt", "release", "output", "worker_done", "attempt_end", // of commands that follow a run
		"training", "stall", "summary"}, steps...)
)

// A jsonAnswer is what a command prints with --output=json.
type jsonAnswer struct {
	lines   []string
	results map[string]any // by name of the result, a value of its type
}

type results map[string]any

// answersInJSON has every command with what it prints. TestEveryCommandHasASchema finds
// commands that are missing here. TestScripts/json_everywhere checks the output against the
// schemas that make docs writes.
func answersInJSON() map[string]jsonAnswer {
	run := results{"preflight": []settings.WorkerReport{}, "stacks": []follow.Dumped{}, "skew": []attempt.Skew{}}
	runOrPlan := maps.Clone(run)
	runOrPlan["plan"] = plan.Plan{}
	ofJob := maps.Clone(runOrPlan)
	ofJob["workload_plan"] = workloadcmd.Plan{}
	return map[string]jsonAnswer{
		"attach":                  {follows, run},
		"cluster create":          {steps, results{"cluster_plan": gke.Plan{}}},
		"cluster delete":          {steps, results{"cluster_delete_plan": gke.Deletion{}}},
		"cluster list":            {steps, results{"clusters": []gke.Info{}}},
		"cluster show":            {steps, results{"cluster": gke.Info{}}},
		"completion":              {answers, results{"completion": completionScript{}}},
		"config show":             {answers, results{"config": options.Defaults{}}},
		"cp":                      {steps, results{"copied": []ops.Copied{}}},
		"doctor":                  {steps, results{"doctor": doctor.Report{}}},
		"dump":                    {steps, results{"stacks": []follow.Dumped{}, "consoles": []ops.ConsoleEnd{}}},
		"exec":                    {steps, results{"exec": ops.ExecResult{}, "exec_summary": ops.ExecSummary{}}},
		"gc":                      {steps, results{"leftovers": []gc.Leftover{}}},
		"hostkey forget":          {steps, nil},
		"init":                    {answers, results{"init": writtenFile{}}},
		"job":                     {append([]string{"request"}, follows...), ofJob},
		"logs":                    {append([]string{"output"}, steps...), results{"logs_verified": []runs.Verified{}}},
		"manual":                  {answers, results{"manual": writtenPages{}}},
		"metrics":                 {answers, results{"metrics": metrics.Document{}, "training": event.Training{}}},
		"network create":          {steps, results{"network_plan": network.Plan{}}},
		"network delete":          {steps, results{"delete_plan": network.Deletion{}}},
		"network firewall create": {steps, nil},
		"network firewall delete": {steps, nil},
		"network show":            {steps, results{"network": network.Info{}}},
		"network update":          {steps, nil},
		"preflight":               {steps, results{"preflight": []settings.WorkerReport{}}},
		"preflight apply":         {steps, results{"preflight": []settings.WorkerReport{}}},
		"preflight check":         {steps, results{"preflight": []settings.WorkerReport{}}},
		"preflight print":         {answers, results{"preflight_script": preflightScript{}}},
		"ps":                      {steps, results{"runs": []runs.Seen{}}},
		"qr create":               {append([]string{"request"}, steps...), results{"queued_resource_plan": qr.CreatePlan{}}},
		"qr delete":               {steps, results{"delete_plan": qr.DeletePlan{}}},
		"qr list":                 {steps, results{"queued_resources": []qr.Resource{}, "queued_resource_uris": []string{}}},
		"qr reset":                {steps, results{"reset_plan": qr.ResetPlan{}}},
		"qr show":                 {steps, results{"queued_resource": qr.Resource{}}},
		"qr wait":                 {steps, nil},
		"slices create":           {append([]string{"request"}, steps...), results{"slices_plan": provider.Plan{}}},
		"slices delete":           {steps, results{"slices_plan": provider.Plan{}}},
		"slices list":             {steps, results{"slices": []provider.Listed{}}},
		"slices wait":             {steps, nil},
		"report":                  {answers, results{"report": reportFile{}}},
		"run":                     {follows, runOrPlan},
		"sim down":                {answers, results{"sim_down": simcmd.Ended{}}},
		"sim env":                 {answers, results{"sim_env": map[string]string{}}},
		"sim fault":               {answers, results{"sim_fault": simcmd.FaultSet{}, "sim_faults_cleared": simcmd.Cleared{}}},
		"sim login":               {answers, results{"sim_login": simcmd.LoggedIn{}}},
		"sim status":              {answers, results{"sim_status": sim.Status{}}},
		"sim up":                  {answers, results{"sim_up": simcmd.Ready{}}},
		"ssh":                     {steps, nil},
		"stop":                    {steps, nil},
		"top":                     {answers, results{"top": topLook{}}},
		"version":                 {answers, results{"version": map[string]string{}}},
		"workload create":         {append([]string{"output"}, steps...), results{"workload_plan": workloadcmd.Plan{}}},
		"workload delete":         {steps, results{"workload": workloads.Status{}}},
		"workload list":           {steps, results{"workloads": []workloads.Row{}}},
		"workload logs":           {append([]string{"output"}, steps...), nil},
		"workload status":         {steps, results{"workload": workloads.Status{}}},
		"xpk cluster create":      {steps, results{"cluster_plan": gke.Plan{}}},
		"xpk cluster delete":      {steps, results{"cluster_delete_plan": gke.Deletion{}}},
		"xpk cluster list":        {steps, results{"clusters": []gke.Info{}}},
		"xpk workload create":     {append([]string{"output"}, steps...), results{"workload_plan": workloadcmd.Plan{}}},
		"xpk workload delete":     {steps, results{"workloads": []workloads.Row{}}},
		"xpk workload list":       {steps, results{"workloads": []workloads.Row{}}},
		"xla check":               {answers, results{"xla_check": xla.Checked{}}},
		"xla flags":               {answers, results{"xla_flags": []xla.Flag{}, "xla_flag": xla.Flag{}}},
		"xla presets":             {answers, results{"xla_presets": xla.List{}, "xla_group": xla.Group{}, "xla_preset": xla.Preset{}}},
	}
}

// leafCommands are the commands that do something.
func leafCommands() []string {
	var all []string
	cmdline.Walk(app().Commands, func(path string, c *cli.Command) {
		if !c.Hidden && (len(c.Subcommands) == 0 || c.ArgsUsage != "") {
			all = append(all, path)
		}
	})
	return all
}

func schemaFile(command string) string { return strings.ReplaceAll(command, " ", "-") + ".json" }

// TestEveryCommandHasASchema: each command has a row here, and its schema is in
// docs/schema. make docs writes the schemas.
func TestEveryCommandHasASchema(t *testing.T) {
	docs := answersInJSON()
	leaves := leafCommands()
	for _, name := range leaves {
		if _, ok := docs[name]; !ok {
			t.Errorf("multihost %s: what it prints with --output=json is not in answersInJSON() of schema_test.go", name)
		}
	}
	want := map[string][]byte{}
	g := &schemas{comments: map[string]string{}, read: map[string]bool{}}
	want["events.json"] = g.events()
	for name, doc := range docs {
		if !slices.Contains(leaves, name) {
			t.Errorf("answersInJSON() has %q, which is no command", name)
		}
		want[schemaFile(name)] = g.command(name, doc)
	}
	if g.err != nil {
		t.Fatal(g.err)
	}
	there, _ := filepath.Glob(filepath.Join(schemaDir, "*.json"))
	for _, path := range there {
		if want[filepath.Base(path)] == nil {
			if *update {
				os.Remove(path)
				continue
			}
			t.Errorf("%s is of no command: run make docs", path)
		}
	}
	for name, text := range want {
		path := filepath.Join(schemaDir, name)
		if *update {
			if err := errors.Join(os.MkdirAll(schemaDir, 0o755), os.WriteFile(path, text, 0o644)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%v: run make docs", err)
		} else if diff := cmp.Diff(string(text), string(got)); diff != "" {
			t.Errorf("%s is not what the command prints; run make docs (-want +got):\n%s", path, diff)
		}
	}
}

// schemas makes JSON Schemas from Go types and their comments.
type schemas struct {
	defs     map[string]any
	comments map[string]string // comments by package.Type and package.Type.Field
	read     map[string]bool   // directories
	err      error
}

type object = map[string]any

const draft = "https://json-schema.org/draft/2020-12/schema"

// events returns the schema of the lines that several commands print.
func (g *schemas) events() []byte {
	g.defs = object{}
	lines := object{}
	for _, e := range []event.Event{
		event.Note{}, event.Phase{}, event.Progress{}, event.Training{}, event.Stall{}, event.Request{}, event.State{}, event.Attempt{}, event.Release{},
		event.WorkerDone{}, event.AttemptEnd{}, event.Summary{},
	} {
		lines[e.Kind()] = g.line(e.Kind(), reflect.TypeOf(e))
	}
	text, number := object{"type": "string"}, object{"type": "integer"}
	summary := lines["summary"].(object)["properties"].(object)
	summary["last_lines_base64"] = object{"type": "array", "items": object{"type": "string", "contentEncoding": "base64"},
		"description": "the last lines byte for byte, where they are no UTF-8"}
	extra := func(kind, about string, properties object, required ...string) {
		l := g.line(kind, nil)
		l["description"] = about
		maps.Copy(l["properties"].(object), properties)
		l["required"] = append(l["required"].([]string), required...)
		lines[kind] = l
	}
	extra("output", "bytes that a worker's command wrote, in order, not split at lines: as text, or where they are no UTF-8 in base64",
		object{"slice": number, "worker": number, "text": text, "base64": object{"type": "string", "contentEncoding": "base64"}}, "slice", "worker")
	extra("error", "why the command failed, and the status that it ends with",
		object{"text": text, "hint": object{"type": "string", "description": "what to type next"}, "exit_code": number}, "text")
	extra("dropped", "the reader was too slow: so much output is not in this stream, but in the log files", object{"bytes": number, "text": text}, "bytes", "text")
	maps.Copy(g.defs, lines)
	return g.write(object{"$schema": draft, "title": "lines of multihost --output=json", "$defs": g.defs})
}

// line returns the schema of a kind of line, with the fields of t.
func (g *schemas) line(kind string, t reflect.Type) object {
	properties := object{
		"v":    object{"const": 1, "description": "version of this format"},
		"time": object{"type": "string", "format": "date-time"},
		"kind": object{"const": kind},
	}
	line := object{"type": "object", "properties": properties, "required": []string{"v", "time", "kind"}}
	if t != nil {
		fields := g.fields(t)
		maps.Copy(properties, fields["properties"].(object))
		line["required"] = append([]string{"v", "time", "kind"}, fields["required"].([]string)...)
		if about := g.comment(t, ""); about != "" {
			line["description"] = about
		}
	}
	return line
}

func (g *schemas) command(name string, doc jsonAnswer) []byte {
	g.defs = object{}
	var lines []object
	for _, kind := range slices.Sorted(slices.Values(doc.lines)) {
		lines = append(lines, object{"$ref": "events.json#/$defs/" + kind})
	}
	for _, result := range slices.Sorted(maps.Keys(doc.results)) {
		line := g.line("result", nil)
		line["properties"].(object)["name"] = object{"const": result}
		line["properties"].(object)["data"] = g.schema(reflect.TypeOf(doc.results[result]))
		line["required"] = append(line["required"].([]string), "name", "data")
		lines = append(lines, line)
	}
	return g.write(object{"$schema": draft, "title": "multihost " + name + " --output=json", "description": "Each line of standard output is one of these.", "anyOf": lines, "$defs": g.defs})
}

func (g *schemas) write(schema object) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	g.err = errors.Join(g.err, enc.Encode(schema))
	return b.Bytes()
}

var (
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
)

func (g *schemas) schema(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[time.Duration]():
		return object{"type": "integer", "description": "nanoseconds"}
	case reflect.TypeFor[metrics.Number]():
		return object{"type": []string{"number", "null"}, "description": "null: not known"}
	case reflect.TypeFor[json.RawMessage]():
		return object{}
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return g.schema(t.Elem())
	case t.Implements(jsonMarshaler):
		g.err = errors.Join(g.err, fmt.Errorf("%s writes its own JSON: schema_test.go has to know how", t))
		return object{}
	case t.Implements(textMarshaler):
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": "array", "items": g.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.schema(t.Elem())}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		name := strings.TrimPrefix(filepath.Base(t.PkgPath())+"."+t.Name(), "multihost.")
		if _, ok := g.defs[name]; !ok {
			g.defs[name] = object{} // for types that contain themselves
			fields := g.fields(t)
			fields["type"] = "object"
			if about := g.comment(t, ""); about != "" {
				fields["description"] = about
			}
			g.defs[name] = fields
		}
		return object{"$ref": "#/$defs/" + name}
	}
	g.err = errors.Join(g.err, fmt.Errorf("%s: no schema for such a type", t))
	return object{}
}

// fields returns the properties of a struct, including those of embedded structs.
func (g *schemas) fields(t reflect.Type) object {
	properties, required := object{}, []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && tag == "" {
			inner := g.fields(f.Type)
			maps.Copy(properties, inner["properties"].(object))
			required = append(required, inner["required"].([]string)...)
			continue
		}
		if !f.IsExported() || tag == "-" {
			continue
		}
		optional := strings.Contains(options, "omit")
		s := g.schema(f.Type)
		switch kind := f.Type.Kind(); {
		case optional:
		case kind == reflect.Pointer:
			s = object{"anyOf": []object{s, {"type": "null"}}}
		case s["type"] == "array" || kind == reflect.Map: // Go may write an empty value as null
			s["type"] = []any{s["type"], "null"}
		}
		if about := g.comment(t, f.Name); about != "" {
			s["description"] = about
		}
		if tag == "" {
			tag = f.Name
		}
		properties[tag] = s
		if !optional {
			required = append(required, tag)
		}
	}
	slices.Sort(required)
	return object{"properties": properties, "required": required}
}

// comment returns the comment of a type or a field in the code.
func (g *schemas) comment(t reflect.Type, field string) string {
	path := t.PkgPath()
	dir := "../../" + strings.TrimPrefix(path, "multihost/")
	if path == "multihost/cmd/multihost" || path == "main" {
		dir = "."
	}
	if !g.read[dir] {
		g.read[dir] = true
		files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
		for _, file := range files {
			g.readComments(dir, file)
		}
	}
	return strings.Join(strings.Fields(g.comments[strings.TrimSuffix(dir+"."+t.Name()+"."+field, ".")]), " ")
}

func (g *schemas) readComments(dir, file string) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		g.err = errors.Join(g.err, err)
		return
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		decl, ok := n.(*ast.GenDecl)
		if !ok || decl.Tok != token.TYPE {
			return true
		}
		for _, spec := range decl.Specs {
			ts := spec.(*ast.TypeSpec)
			name := dir + "." + ts.Name.Name
			g.comments[name] = decl.Doc.Text() + ts.Doc.Text()
			st, ok := ts.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range st.Fields.List {
				for _, ident := range f.Names {
					g.comments[name+"."+ident.Name] = f.Doc.Text() + f.Comment.Text()
				}
			}
		}
		return true
	})
}

// checkJSON returns an error for each line of a command's standard output that the schema
// does not describe. It is stricter than the schema, which lets readers expect more fields:
// here it must describe all of them.
func checkJSON(dir, command string, out []byte) error {
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(strictLoader{})
	path, err := filepath.Abs(filepath.Join(dir, schemaFile(command)))
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil // TestEveryCommandHasASchema reports a missing schema
	}
	schema, err := compiler.Compile("file://" + path)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(out) {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
		if err != nil {
			return fmt.Errorf("multihost %s: no JSON: %w: %.200s", command, err, line)
		}
		if err := schema.Validate(value); err != nil {
			return fmt.Errorf("multihost %s: its schema does not describe this line: %.600s\n%w", command, line, err)
		}
	}
	return nil
}

type strictLoader struct{}

func (strictLoader) Load(url string) (any, error) {
	f, err := os.Open(strings.TrimPrefix(url, "file://"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	strict(doc)
	return doc, err
}

func strict(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["properties"].(map[string]any); ok && v["required"] != nil {
			v["additionalProperties"] = false
		}
		for _, inner := range v {
			strict(inner)
		}
	case []any:
		for _, inner := range v {
			strict(inner)
		}
	}
}

// deaf accepts everything, even if its reader has gone.
type deaf struct{ w io.Writer }

func (d deaf) Write(p []byte) (int, error) {
	d.w.Write(p)
	return len(p), nil
}

// checkedStatus replaces mainStatus in scripts. It checks the JSON output against the
// schema of the command, and records that it has seen the command.
func checkedStatus() int {
	dir, seen := os.Getenv("SCHEMA_DIR"), os.Getenv("SCHEMA_SEEN")
	line, err := ownProcess().commands().Parse(os.Args[1:])
	if dir == "" || err != nil || len(line.Path) == 0 || line.Values["output"] != "json" {
		return mainStatus()
	}
	stdout := os.Stdout
	if info, err := stdout.Stat(); err != nil || info.Mode()&os.ModeCharDevice != 0 {
		return mainStatus() // the program cannot write, and must behave as usual
	}
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	os.Stdout = w
	copied := make(chan []byte)
	go func() { // ends with the pipe
		var all bytes.Buffer
		io.Copy(io.MultiWriter(&all, deaf{stdout}), r)
		copied <- all.Bytes()
	}()
	code := mainStatus()
	w.Close()
	out := <-copied
	command := strings.Join(line.Path, " ")
	if err := checkJSON(dir, command, out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	if f, err := os.OpenFile(seen, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil && len(out) > 0 {
		fmt.Fprintln(f, command)
		f.Close()
	}
	return code
}
