package cloud

import (
	"fmt"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"
)

// A ComputeOp is an operation of the Compute API.
type ComputeOp struct {
	Msg  *computepb.Operation
	Done chan struct{} // closed when the operation is done
}

// The users for whom operations run: the caller, and the service itself.
const (
	ComputeUser   = "simulator@example.com"
	ComputeSystem = "system"
)

// NewComputeOp adds a running operation on the resource target. scope is the resource's:
// global, regions/R or zones/Z. id is its number, or 0 if it has none.
func (s Networks) NewComputeOp(scope, kind, target string, id uint64, user string) *ComputeOp {
	number := NewID()
	now := s.Timestamp()
	place, name, placed := strings.Cut(scope, "/")
	if !placed {
		scope = "global"
	}
	path := s.ComputePath(scope, "operations", fmt.Sprintf("operation-%d-%x", s.Clock.Now().UnixMilli(), number))
	op := &ComputeOp{Done: make(chan struct{}), Msg: &computepb.Operation{
		Kind: proto.String("compute#operation"), Id: proto.Uint64(uint64(number)), Name: proto.String(path[strings.LastIndexByte(path, '/')+1:]),
		OperationType: &kind, TargetLink: proto.String(s.Link(target)), Status: computepb.Operation_RUNNING.Enum(),
		User: &user, Progress: proto.Int32(0), InsertTime: &now, StartTime: &now, SelfLink: proto.String(s.Link(path)),
	}}
	link := proto.String(s.Link("projects/" + s.Config.Project + "/" + place + "/" + name))
	switch place {
	case "regions":
		op.Msg.Region = link
	case "zones":
		op.Msg.Zone = link
	}
	if id != 0 {
		op.Msg.TargetId = &id
	}
	s.State.ComputeOps[path] = op
	return op
}

// EndComputeOp makes op DONE. failure is the text of its error, or "".
func (s Networks) EndComputeOp(op *ComputeOp, failure string) {
	op.Msg.Status, op.Msg.Progress, op.Msg.EndTime = computepb.Operation_DONE.Enum(), proto.Int32(100), proto.String(s.Timestamp())
	if failure != "" {
		// Leave httpErrorStatusCode unset: Google's own Go client takes an operation
		// without it for a success.
		op.Msg.Error = &computepb.Error{Errors: []*computepb.Errors{{Code: proto.String("QUOTA_EXCEEDED"), Message: &failure}}}
	}
	close(op.Done)
}
