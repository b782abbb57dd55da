package computeapi

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"
)

const maxOpWait = 2 * time.Minute

// startComputeOp creates an operation for c, which is DONE after a step. Then it calls
// finish, unless that is nil, with whether the operation has succeeded.
func (s API) startComputeOp(c *computeCall, kind, target string, id uint64, finish func(ok bool)) (any, error) {
	return s.startLongOp(c, kind, target, id, func(ok bool, done func()) {
		s.NextStep(func() {
			if finish != nil {
				finish(ok)
			}
			done()
		})
	})
}

// startLongOp creates an operation for c and calls work, which ends the operation by
// calling done. If ok is false, the operation ends with an error, and work must change
// nothing.
func (s API) startLongOp(c *computeCall, kind, target string, id uint64, work func(ok bool, done func())) (any, error) {
	op := s.Networks().NewComputeOp(c.scope, kind, target, id, cloud.ComputeUser)
	if key := c.replayKey(); key != "" {
		s.State.ComputeSeen[key] = op
	}
	failure := s.Injection().TakeComputeOpFault()
	work(failure == "", func() { s.Networks().EndComputeOp(op, failure) })
	return op.Msg, nil
}

func (c *computeCall) replayKey() string {
	id := c.query.Get("requestId")
	if id == "" {
		return ""
	}
	return c.r.Method + " " + c.r.URL.Path + " " + id
}

// replayed returns the operation that an earlier request with the same id created.
func (c *computeCall) replayed() (any, bool, error) {
	key := c.replayKey()
	if key == "" {
		return nil, false, nil
	}
	if id := c.query.Get("requestId"); !cloud.UUIDPattern.MatchString(id) {
		return nil, false, badValue("requestId", id, "Must be a valid UUID.")
	}
	if op := c.s.State.ComputeSeen[key]; op != nil {
		return op.Msg, true, nil
	}
	return nil, false, nil
}

func (s API) serveComputeOps(c *computeCall) (any, error) {
	if c.verb != "" {
		return nil, wire.UnknownMethod()
	}
	if c.id == "" {
		var all []proto.Message
		for _, op := range cloud.Sorted(s.State.ComputeOps, func(name string, _ *cloud.ComputeOp) bool { return strings.HasPrefix(name, c.name()) }) {
			all = append(all, op.Msg)
		}
		return s.list(c, "compute#operationList", all)
	}
	if err := wire.CheckQuery(c.query); err != nil {
		return nil, err
	}
	op := s.State.ComputeOps[c.name()]
	if op == nil {
		return nil, noSuchCompute(c.name())
	}
	if c.r.Method != http.MethodGet {
		return nil, wire.UnknownMethod()
	}
	return op.Msg, nil
}

var filterTerm = regexp.MustCompile(`^\(?\s*([A-Za-z.]+)\s*(=|!=|:|\beq\b|\bne\b)\s*"?([^"()]*?)"?\s*\)?$`)

// parseFilter parses a filter of comparisons of one string field each. They are joined by
// AND, or stand side by side in parentheses. As in the real service, eq and ne take a
// regular expression for the whole value.
func parseFilter(text string) (func(proto.Message) bool, error) {
	all := func(proto.Message) bool { return true }
	if strings.TrimSpace(text) == "" {
		return all, nil
	}
	terms := strings.Split(strings.ReplaceAll(strings.ReplaceAll(text, ") (", ")\x00("), " AND ", "\x00"), "\x00")
	for _, term := range terms {
		m := filterTerm.FindStringSubmatch(strings.TrimSpace(term))
		if m == nil {
			return nil, wire.NotModelled("The filter " + term)
		}
		field, op, want := m[1], m[2], m[3]
		var pattern *regexp.Regexp
		if op == "eq" || op == "ne" {
			var err error
			if pattern, err = regexp.Compile("^(?:" + want + ")$"); err != nil {
				return nil, badValue("filter", text, "Invalid list filter expression.")
			}
		}
		before := all
		all = func(msg proto.Message) bool {
			got := stringField(msg, field)
			var is bool
			switch op {
			case "eq", "ne":
				is = pattern.MatchString(got)
			case ":":
				is = strings.Contains(got, strings.Trim(want, "*"))
			default:
				is = got == want || strings.Contains(want, "*") && cloud.Glob(want, got)
			}
			return before(msg) && is == (op != "ne" && op != "!=")
		}
	}
	return all, nil
}

func stringField(m proto.Message, name string) string {
	r := m.ProtoReflect()
	field := r.Descriptor().Fields().ByJSONName(name)
	if field == nil || field.IsList() || field.IsMap() || field.Message() != nil {
		return ""
	}
	if e := field.Enum(); e != nil {
		return string(e.Values().ByNumber(r.Get(field).Enum()).Name())
	}
	return r.Get(field).String()
}
