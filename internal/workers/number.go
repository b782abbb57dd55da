package workers

import (
	"cmp"
	"context"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// numberLimit is how long a VM may take to answer and to report its worker number.
const numberLimit = time.Minute

// numberless is the failure of a VM that does not know its worker number.
type numberless struct{}

func (numberless) Error() string {
	return "its metadata has no agent-worker-number, or its guest attributes are off"
}

func (numberless) Hint() string {
	return "switch guest attributes on: gcloud compute instances add-metadata VM --metadata=enable-guest-attributes=TRUE"
}

// number connects to VMs whose worker number is unknown and makes them report it. It returns
// true if it has tried, because the provider may then know more. It warns about VMs whose
// number is still unknown.
func (d *Reach) number(ctx context.Context, all []tpu.Slice) bool {
	by, ok := provision.As[provision.Numberer](d.Cloud)
	if !ok || d.ReadOnly {
		return false
	}
	var vms tpu.Selection // each VM is a slice here, because it has no number yet
	var scripts []string
	for _, s := range all {
		for _, w := range s.Untold {
			vm := s
			vm.Index, vm.Name, vm.UID, vm.Workers = len(vms.Slices), w.Name, s.UID+"/"+w.Name, []tpu.Worker{w}
			vms.Slices, scripts = append(vms.Slices, vm), append(scripts, by.Number(s))
		}
	}
	if len(scripts) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, numberLimit)
	defer cancel()
	t, err := d.DialAll(ctx, vms, nil, true, min(d.Access.RetryFor, numberLimit))
	if err != nil {
		event.Notef(d.Sink, event.Warn, gcp.Hint(err), "VMs cannot be asked which worker each is: %v", err)
		return false
	}
	defer t.Close()
	names, texts := make([]string, len(scripts)), make([]string, len(scripts))
	hint, failed := "", false
	for i, err := range t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		if t.IsAway(i) {
			return t.Away[i]
		}
		status, err := t.Conns[i].Run(ctx, remote.Cmd{Line: "bash -s", Stdin: strings.NewReader(scripts[i])})
		if err == nil && status.Code != 0 {
			return numberless{}
		}
		return err
	}) {
		if names[i] = vms.Slices[i].Name; err != nil {
			texts[i], hint, failed = err.Error(), cmp.Or(hint, gcp.Hint(err)), true
		}
	}
	if failed {
		event.Notef(d.Sink, event.Warn, hint, "VMs have not told which worker each is: %s", tpu.FoldTexts(names, texts))
	}
	return true
}
