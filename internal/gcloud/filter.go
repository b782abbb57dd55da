package gcloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"multihost/internal/fault"
)

// A Filter is an expression in the language of gcloud's --filter:
//
//	expr     = any { any }                    terms side by side must all hold
//	any      = all { "OR" all }
//	all      = not { "AND" not }
//	not      = [ "NOT" ] term
//	term     = "(" expr ")" | [ "-" ] path [ operator operand ]
//	operator = ":" | "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~"
//	operand  = word | "(" word { word } ")"   the list with : and = only
//	path     = name { "." name | "[" number "]" | "[]" }
//
// A path without an operator is a text that some field must contain. As in gcloud, AND and
// OR in one pair of parentheses are an error. The functions of gcloud's language are not
// supported.
type Filter struct {
	text string
	root condition
}

// A condition reports whether a resource in decoded JSON passes a test.
type condition func(resource any) bool

// A FilterError says what is wrong with a filter. At is the byte offset in Text.
type FilterError struct {
	Text    string
	At      int // byte
	Problem string
}

func (e *FilterError) Error() string {
	return fmt.Sprintf("parse filter %q: %s, at %q", e.Text, e.Problem, e.Text[e.At:])
}

// Fault returns fault.Usage.
func (e *FilterError) Fault() fault.Kind { return fault.Usage }

// Hint returns an example.
func (e *FilterError) Hint() string {
	return `a filter is such as --filter="state.state=ACTIVE AND name:train"; put a value with spaces or parentheses into quotes`
}

// ParseFilter parses a filter. Times without a zone are in the time zone of now,
// and durations count from now. The empty text matches every resource. The error
// is a *FilterError.
func ParseFilter(text string, now time.Time) (Filter, error) {
	p := &filterParser{text: text, now: now, groups: []string{""}}
	f := Filter{text: text, root: func(any) bool { return true }}
	p.space()
	if p.end() {
		return f, nil
	}
	var err error
	if f.root, err = p.expr(); err == nil && !p.end() {
		err = p.fail(p.at, "a term is expected")
	}
	return f, err
}

// Match reports whether the filter matches a resource in decoded JSON.
func (f Filter) Match(resource any) bool { return f.root(resource) }

// maxNesting limits nested parentheses.
const maxNesting = 100

type filterParser struct {
	text   string
	at     int
	now    time.Time
	groups []string // "AND", "OR" or "" (neither yet), for the whole filter and each open parenthesis
}

func (p *filterParser) fail(at int, problem string, args ...any) error {
	return &FilterError{Text: p.text, At: min(at, len(p.text)), Problem: fmt.Sprintf(problem, args...)}
}

func (p *filterParser) end() bool { return p.at >= len(p.text) }

func (p *filterParser) space() {
	p.at += len(p.text[p.at:]) - len(strings.TrimLeftFunc(p.text[p.at:], unicode.IsSpace))
}

// peek reports whether s comes next.
func (p *filterParser) peek(s string) bool { return strings.HasPrefix(p.text[p.at:], s) }

func (p *filterParser) take(s string) bool {
	if p.peek(s) {
		p.at += len(s)
		return true
	}
	return false
}

// word reports whether w, one of AND, OR and NOT, comes next.
func (p *filterParser) word(w string) bool {
	p.space()
	rest, ok := strings.CutPrefix(p.text[p.at:], w)
	r, _ := utf8.DecodeRuneInString(rest)
	return ok && (rest == "" || r == '(' || unicode.IsSpace(r))
}

func (p *filterParser) takeWord(w string) bool {
	if p.word(w) {
		p.at += len(w)
		return true
	}
	return false
}

func (p *filterParser) expr() (condition, error) {
	left, err := p.chain("OR", func() (condition, error) { return p.chain("AND", p.not) })
	for err == nil {
		p.space()
		if p.end() || p.peek(")") {
			return left, nil
		}
		var right condition
		right, err = p.chain("OR", func() (condition, error) { return p.chain("AND", p.not) })
		left = both(left, right)
	}
	return nil, err
}

// chain reads one or more parts, with word (AND or OR) between them.
func (p *filterParser) chain(word string, part func() (condition, error)) (condition, error) {
	left, err := part()
	for err == nil && p.word(word) {
		group := &p.groups[len(p.groups)-1]
		if *group != "" && *group != word {
			return nil, p.fail(p.at, "AND and OR side by side need parentheses")
		}
		*group = word
		p.takeWord(word)
		var right condition
		right, err = part()
		if word == "AND" {
			left = both(left, right)
		} else {
			l := left
			left = func(v any) bool { return l(v) || right(v) }
		}
	}
	return left, err
}

func both(l, r condition) condition { return func(v any) bool { return l(v) && r(v) } }

func (p *filterParser) not() (condition, error) {
	if !p.takeWord("NOT") {
		return p.term()
	}
	c, err := p.term()
	return func(v any) bool { return !c(v) }, err
}

func (p *filterParser) term() (condition, error) {
	p.space()
	for _, w := range []string{"AND", "OR", "NOT"} {
		if p.word(w) {
			return nil, p.fail(p.at, "a term is expected")
		}
	}
	if p.end() || p.peek(")") {
		return nil, p.fail(p.at, "a term is expected")
	}
	if p.take("(") {
		return p.group()
	}
	negative := p.take("-")
	c, err := p.comparison()
	if negative && err == nil {
		return func(v any) bool { return !c(v) }, nil
	}
	return c, err
}

func (p *filterParser) group() (condition, error) {
	open := p.at - 1
	if len(p.groups) > maxNesting {
		return nil, p.fail(open, "there are more than %d parentheses in each other", maxNesting)
	}
	p.groups = append(p.groups, "")
	c, err := p.expr()
	if err != nil {
		return nil, err
	}
	p.groups = p.groups[:len(p.groups)-1]
	if !p.take(")") {
		return nil, p.fail(open, "the parenthesis is not closed")
	}
	return c, nil
}

// filterOperators are the operators, the longer ones first.
var filterOperators = []string{"!=", "!~", "<=", ">=", ":", "=", "<", ">", "~"}

func (p *filterParser) comparison() (condition, error) {
	start := p.at
	path, err := p.path()
	if err != nil {
		return nil, err
	}
	if p.peek("(") {
		return nil, p.fail(start, "functions are not supported")
	}
	end := p.at
	p.space()
	i := slices.IndexFunc(filterOperators, p.peek)
	if i < 0 {
		p.at = end
		if r, _ := utf8.DecodeRuneInString(p.text[end:]); !p.end() && r != ')' && !unicode.IsSpace(r) {
			return nil, p.fail(p.at, "an operator is expected: one of %s", strings.Join(filterOperators, " "))
		}
		return anywhere(pathText(path)), nil
	}
	operator := filterOperators[i]
	p.at += len(operator)
	if !p.end() && strings.IndexByte(":=<>~!", p.text[p.at]) >= 0 {
		return nil, p.fail(p.at-len(operator), "there is no such operator: use one of %s", strings.Join(filterOperators, " "))
	}
	p.space()
	at := p.at
	words, err := p.operands(operator)
	if err != nil {
		return nil, err
	}
	test, err := comparisonOf(operator, words, p.now)
	if err != nil {
		return nil, p.fail(at, "%v", err)
	}
	return func(v any) bool { return test(lookUp(v, path)) }, nil
}

// operands reads the value, or the list of values, after an operator.
func (p *filterParser) operands(operator string) ([]string, error) {
	for _, w := range []string{"AND", "OR", "NOT"} {
		if p.word(w) {
			return nil, p.fail(p.at, "a value is expected; put the word %s into quotes if it is one", w)
		}
	}
	open := p.at
	if !p.peek("(") {
		w, ok, err := p.token("()")
		if err == nil && !ok {
			err = p.fail(p.at, "a value is expected")
		}
		return []string{w}, err
	}
	if operator != ":" && operator != "=" {
		return nil, p.fail(open, "a list of values is for : and = only")
	}
	p.at++
	var words []string
	for {
		p.at += len(p.text[p.at:]) - len(strings.TrimLeft(p.text[p.at:], " \t\n,"))
		if p.end() {
			return nil, p.fail(open, "the parenthesis is not closed")
		}
		if p.take(")") {
			if len(words) == 0 {
				return nil, p.fail(open, "the list of values is empty")
			}
			return words, nil
		}
		w, ok, err := p.token(",()")
		switch {
		case err != nil:
			return nil, err
		case !ok:
			return nil, p.fail(p.at, "a value is expected")
		case !slices.Contains([]string{"AND", "OR", "NOT"}, w):
			words = append(words, w)
		}
	}
}

// token reads a word up to a space or a character of stops. The word may be quoted, wholly
// or in parts.
func (p *filterParser) token(stops string) (word string, ok bool, err error) {
	var b strings.Builder
	quote, start := rune(0), p.at
	for !p.end() {
		r, size := utf8.DecodeRuneInString(p.text[p.at:])
		switch {
		case r == '\\' && p.at+1 < len(p.text):
			next, more := utf8.DecodeRuneInString(p.text[p.at+1:])
			if next != '\\' && next != quote && (quote != 0 || next != '\'' && next != '"') {
				b.WriteRune(r)
			}
			b.WriteString(p.text[p.at+1 : p.at+1+more])
			p.at += more
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		case quote == 0 && (unicode.IsSpace(r) || strings.ContainsRune(stops, r)):
			return b.String(), p.at > start, nil
		default:
			b.WriteString(p.text[p.at : p.at+size])
		}
		p.at += size
	}
	if quote != 0 {
		return "", false, p.fail(start, "the quote is not closed")
	}
	return b.String(), p.at > start, nil
}

// A step of a path selects a field by name, an item by number, or every item of a list.
type step struct {
	name   string
	number int
	kind   stepKind
}

type stepKind int

const (
	byName stepKind = iota
	byNumber
	everyItem
)

// path reads NAME[.NAME|[NUMBER]|[]]….
func (p *filterParser) path() ([]step, error) {
	var path []step
	for {
		start := p.at
		name, ok, err := p.token(`.[]:=<>~!(),*`)
		switch {
		case err != nil:
			return nil, err
		case !ok && p.peek("*"):
			return nil, p.fail(p.at, "* in a path is not supported: leave the operator out to look at all fields")
		case !ok:
			return nil, p.fail(start, "the name of a field is expected")
		}
		path = append(path, step{name: name})
		for p.take("[") {
			if p.take("]") {
				path = append(path, step{kind: everyItem})
				continue
			}
			text, _, _ := strings.Cut(p.text[p.at:], "]")
			n, err := strconv.Atoi(text)
			if err != nil || !strings.HasPrefix(p.text[p.at+len(text):], "]") {
				return nil, p.fail(p.at-1, "a number or nothing is expected in the brackets")
			}
			path = append(path, step{number: n, kind: byNumber})
			p.at += len(text) + 1
		}
		if !p.take(".") {
			return path, nil
		}
	}
}

func pathText(path []step) string {
	var b strings.Builder
	for i, s := range path {
		switch s.kind {
		case byNumber:
			fmt.Fprintf(&b, "[%d]", s.number)
		case everyItem:
			b.WriteString("[]")
		default:
			if i > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.name)
		}
	}
	return b.String()
}

// lookUp returns the value at a path, or nil. In a list, it looks up a name in each item.
func lookUp(v any, path []step) any {
	for i, s := range path {
		switch at := v.(type) {
		case map[string]any:
			if s.kind != byName {
				return nil
			}
			v = member(at, s.name)
		case []any:
			switch {
			case s.kind == everyItem && i == len(path)-1:
				return at
			case s.kind == everyItem:
				return each(at, path[i+1:])
			case s.kind == byName:
				return each(at, path[i:])
			}
			n := s.number
			if n < 0 {
				n += len(at)
			}
			if n < 0 || n >= len(at) {
				return nil
			}
			v = at[n]
		default:
			return nil
		}
	}
	return v
}

func each(list []any, path []step) any {
	var all []any
	for _, item := range list {
		switch v := lookUp(item, path).(type) {
		case []any:
			all = append(all, v...)
		case nil:
		default:
			all = append(all, v)
		}
	}
	if all == nil {
		return nil
	}
	return all
}

// member returns the field with this name. The name can be spelled as in the API or with
// underscores.
func member(m map[string]any, name string) any {
	if v, ok := m[name]; ok {
		return v
	}
	return m[camelRE.ReplaceAllStringFunc(name, func(s string) string { return strings.ToUpper(s[1:]) })]
}

var camelRE = regexp.MustCompile(`_[a-z0-9]`)

// anywhere matches a resource if some field contains the text, in any case.
func anywhere(text string) condition {
	text = strings.ToLower(text)
	var holds condition
	holds = func(v any) bool {
		switch v := v.(type) {
		case map[string]any:
			for _, item := range v {
				if holds(item) {
					return true
				}
			}
			return false
		case []any:
			return slices.ContainsFunc(v, holds)
		case nil:
			return false
		case bool:
			return v && strings.Contains("true", text)
		}
		return strings.Contains(strings.ToLower(plainText(v)), text)
	}
	return holds
}

// plainText returns a decoded JSON value as text.
func plainText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	case nil:
		return ""
	}
	text, _ := json.Marshal(v) // never fails for decoded JSON
	return string(text)
}

// comparisonOf returns the condition of an operator and its operands. A value passes if it
// matches one operand. A list passes if one of its items passes.
func comparisonOf(operator string, operands []string, now time.Time) (condition, error) {
	var tests []condition
	for _, operand := range operands {
		test, err := oneTest(operator, operand, now)
		if err != nil {
			return nil, err
		}
		tests = append(tests, test)
	}
	return func(v any) bool {
		items, ok := v.([]any)
		if !ok || len(items) == 0 {
			items = []any{v}
		}
		return slices.ContainsFunc(items, func(item any) bool {
			return slices.ContainsFunc(tests, func(test condition) bool { return test(item) })
		})
	}, nil
}

func oneTest(operator, operand string, now time.Time) (condition, error) {
	switch operator {
	case "~", "!~":
		re, err := regexp.Compile(operand)
		if err != nil {
			return nil, err
		}
		return func(v any) bool { return re.MatchString(plainText(v)) == (operator == "~") }, nil
	case ":":
		if strings.Count(operand, "*") > 1 {
			return nil, errors.New(`after the operator ":" at most one * is expected`)
		}
		return has(operand), nil
	case "=":
		return func(v any) bool { return same(v, operand, now) }, nil
	case "!=":
		return func(v any) bool { return !same(v, operand, now) }, nil
	}
	return ordered(operator, operand, now), nil
}

// has is the test of the operator ":". A text passes if it contains the operand, in any
// case. With a * in the operand, the text must begin with the part before the * and end
// with the part after it. In an object, has also tests keys.
func has(operand string) condition {
	lower := strings.ToLower(operand)
	head, tail, star := strings.Cut(lower, "*")
	fits := func(v any) bool {
		text := strings.ToLower(plainText(v))
		switch {
		case v == nil:
			return operand == ""
		case operand == "*":
			return text != ""
		case star:
			return len(text) >= len(head)+len(tail) && strings.HasPrefix(text, head) && strings.HasSuffix(text, tail)
		}
		return strings.Contains(text, lower)
	}
	return func(v any) bool { return anyOf(v, fits) }
}

// same is the test of the operator "=". It compares numbers, times, or texts in any case.
func same(v any, operand string, now time.Time) bool {
	return anyOf(v, func(v any) bool {
		if v == nil {
			return operand == ""
		}
		if a, b, ok := numbers(v, operand); ok {
			return a == b
		}
		if a, b, ok := times(v, operand, now); ok {
			return a.Equal(b)
		}
		return strings.EqualFold(plainText(v), operand)
	})
}

// anyOf applies a test to a value, or to all keys and values of an object.
func anyOf(v any, test condition) bool {
	object, ok := v.(map[string]any)
	if !ok {
		return test(v)
	}
	for key, item := range object {
		if test(key) || test(item) {
			return true
		}
	}
	return false
}

// ordered is the test of <, <=, > and >=, for numbers, times or texts.
func ordered(operator, operand string, now time.Time) condition {
	return func(v any) bool {
		order := strings.Compare(plainText(v), operand)
		if a, b, ok := numbers(v, operand); ok {
			order = 0
			if a < b {
				order = -1
			} else if a > b {
				order = 1
			}
		} else if a, b, ok := times(v, operand, now); ok {
			order = a.Compare(b)
		} else if _, is := timeOf(v); is {
			return false
		}
		switch operator {
		case "<":
			return order < 0
		case "<=":
			return order <= 0
		case ">":
			return order > 0
		}
		return order >= 0
	}
}

func numbers(v any, operand string) (a, b float64, ok bool) {
	if is, boolean := v.(bool); boolean {
		if is {
			a = 1
		}
	} else {
		n, err := strconv.ParseFloat(plainText(v), 64)
		if err != nil {
			return 0, 0, false
		}
		a = n
	}
	switch strings.ToLower(operand) {
	case "true":
		return a, 1, true
	case "false":
		return a, 0, true
	}
	b, err := strconv.ParseFloat(operand, 64)
	return a, b, err == nil
}

var timeRE = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}`)

func timeOf(v any) (time.Time, bool) {
	text, _ := v.(string)
	if !timeRE.MatchString(text) {
		return time.Time{}, false
	}
	t, err := ParseTime(text, time.Time{}) // times in the API have a zone, so now does not matter
	return t, err == nil
}

func times(v any, operand string, now time.Time) (a, b time.Time, ok bool) {
	a, ok = timeOf(v)
	if !ok {
		return a, b, false
	}
	b, err := ParseTime(operand, now)
	return a, b, err == nil
}

// A SortKey is one path of --sort-by, as in gcloud.
type SortKey struct {
	path    []step
	reverse bool
}

// ParseSortKeys parses PATH,~PATH,…. "~" reverses the order.
func ParseSortKeys(text string) ([]SortKey, error) {
	var keys []SortKey
	for _, word := range SplitList(text) {
		name, reverse := strings.CutPrefix(strings.TrimSpace(word), "~")
		p := &filterParser{text: name}
		path, err := p.path()
		if err != nil || !p.end() {
			return nil, fmt.Errorf("%q is not the path of a field, such as createTime or state.state", word)
		}
		for i := range path {
			if path[i].kind == everyItem {
				path[i] = step{kind: byNumber} // the first item, as in gcloud
			}
		}
		keys = append(keys, SortKey{path, reverse})
	}
	return keys, nil
}

// Compare returns the order of two resources in decoded JSON: -1, 0 or 1. The first key
// matters most.
func Compare(a, b any, keys []SortKey) int {
	for _, key := range keys {
		order := strings.Compare(plainText(lookUp(a, key.path)), plainText(lookUp(b, key.path)))
		if key.reverse {
			order = -order
		}
		if order != 0 {
			return order
		}
	}
	return 0
}
