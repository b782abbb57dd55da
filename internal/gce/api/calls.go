package api

import (
	"context"
	"fmt"
	"net/url"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"multihost/internal/gcp"
)

// Groups returns all managed instance groups of the zone.
func (c *Client) Groups(ctx context.Context) ([]*computepb.InstanceGroupManager, error) {
	return list(ctx, c, "list groups", func(ctx context.Context, of clients) *compute.InstanceGroupManagerIterator {
		return of.groups.List(ctx, &computepb.ListInstanceGroupManagersRequest{Project: c.project(), Zone: c.zone()}, gcp.NoRetry())
	})
}

// Managed returns the present and future VMs of a group.
func (c *Client) Managed(ctx context.Context, group string) ([]*computepb.ManagedInstance, error) {
	return list(ctx, c, fmt.Sprintf("list VMs of group %q", group), func(ctx context.Context, of clients) *compute.ManagedInstanceIterator {
		return of.groups.ListManagedInstances(ctx, &computepb.ListManagedInstancesInstanceGroupManagersRequest{
			Project: c.project(), Zone: c.zone(), InstanceGroupManager: group,
		}, gcp.NoRetry())
	})
}

// Instances returns all VMs of the zone.
func (c *Client) Instances(ctx context.Context) ([]*computepb.Instance, error) {
	return list(ctx, c, "list VMs", func(ctx context.Context, of clients) *compute.InstanceIterator {
		return of.instances.List(ctx, &computepb.ListInstancesRequest{Project: c.project(), Zone: c.zone()}, gcp.NoRetry())
	})
}

// Templates returns all instance templates of the region.
func (c *Client) Templates(ctx context.Context) ([]*computepb.InstanceTemplate, error) {
	return list(ctx, c, "list instance templates", func(ctx context.Context, of clients) *compute.InstanceTemplateIterator {
		return of.templates.List(ctx, &computepb.ListRegionInstanceTemplatesRequest{Project: c.project(), Region: c.region()}, gcp.NoRetry())
	})
}

// Policies returns all resource policies of the region.
func (c *Client) Policies(ctx context.Context) ([]*computepb.ResourcePolicy, error) {
	return list(ctx, c, "list resource policies", func(ctx context.Context, of clients) *compute.ResourcePolicyIterator {
		return of.policies.List(ctx, &computepb.ListResourcePoliciesRequest{Project: c.project(), Region: c.region()}, gcp.NoRetry())
	})
}

// Group returns one group. If it does not exist, the error is of class gcp.NotFound.
func (c *Client) Group(ctx context.Context, name string) (*computepb.InstanceGroupManager, error) {
	return get(ctx, c, fmt.Sprintf("read group %q", name), func(ctx context.Context, of clients) (*computepb.InstanceGroupManager, error) {
		return of.groups.Get(ctx, &computepb.GetInstanceGroupManagerRequest{Project: c.project(), Zone: c.zone(), InstanceGroupManager: name}, gcp.NoRetry())
	})
}

// Template returns one instance template of the region. If it does not exist, the error is
// of class gcp.NotFound.
func (c *Client) Template(ctx context.Context, name string) (*computepb.InstanceTemplate, error) {
	return get(ctx, c, fmt.Sprintf("read instance template %q", name), func(ctx context.Context, of clients) (*computepb.InstanceTemplate, error) {
		return of.templates.Get(ctx, &computepb.GetRegionInstanceTemplateRequest{Project: c.project(), Region: c.region(), InstanceTemplate: name}, gcp.NoRetry())
	})
}

// Policy returns one resource policy of the region. If it does not exist, the error is of
// class gcp.NotFound.
func (c *Client) Policy(ctx context.Context, name string) (*computepb.ResourcePolicy, error) {
	return get(ctx, c, fmt.Sprintf("read workload policy %q", name), func(ctx context.Context, of clients) (*computepb.ResourcePolicy, error) {
		return of.policies.Get(ctx, &computepb.GetResourcePolicyRequest{Project: c.project(), Region: c.region(), ResourcePolicy: name}, gcp.NoRetry())
	})
}

// Instance returns one VM.
func (c *Client) Instance(ctx context.Context, name string) (*computepb.Instance, error) {
	return get(ctx, c, fmt.Sprintf("read VM %q", name), func(ctx context.Context, of clients) (*computepb.Instance, error) {
		return of.instances.Get(ctx, &computepb.GetInstanceRequest{Project: c.project(), Zone: c.zone(), Instance: name}, gcp.NoRetry())
	})
}

// Machine returns one machine type of the zone. If the zone does not have it, the error is
// of class gcp.NotFound.
func (c *Client) Machine(ctx context.Context, name string) (*computepb.MachineType, error) {
	return get(ctx, c, fmt.Sprintf("read machine type %q", name), func(ctx context.Context, of clients) (*computepb.MachineType, error) {
		return of.machines.Get(ctx, &computepb.GetMachineTypeRequest{Project: c.project(), Zone: c.zone(), MachineType: name}, gcp.NoRetry())
	})
}

// Reservation returns one reservation of the zone, which may belong to another project. If
// it does not exist, the error is of class gcp.NotFound.
func (c *Client) Reservation(ctx context.Context, project, name string) (*computepb.Reservation, error) {
	r := new(computepb.Reservation)
	return r, c.gcp.ReadCompute(ctx, fmt.Sprintf("read reservation %q", name), fmt.Sprintf("projects/%s/zones/%s/reservations/%s", url.PathEscape(project), c.zone(), name), r)
}

// Block returns one block of a reservation. Its errors are those of Reservation.
func (c *Client) Block(ctx context.Context, project, reservation, name string) (*computepb.ReservationBlock, error) {
	answer := new(computepb.ReservationBlocksGetResponse)
	err := c.gcp.ReadCompute(ctx, fmt.Sprintf("read block %q of reservation %q", name, reservation),
		fmt.Sprintf("projects/%s/zones/%s/reservations/%s/reservationBlocks/%s", url.PathEscape(project), c.zone(), reservation, url.PathEscape(name)), answer)
	return answer.GetResource(), err
}

// Newest returns the newest image of a family, without deprecated ones.
func (c *Client) Newest(ctx context.Context, project, family string) (*computepb.Image, error) {
	return get(ctx, c, fmt.Sprintf("find image of family %q", family), func(ctx context.Context, of clients) (*computepb.Image, error) {
		return of.images.GetFromFamily(ctx, &computepb.GetFromFamilyImageRequest{Project: project, Family: family}, gcp.NoRetry())
	})
}

// Attributes returns the guest attributes of a VM below a path, for example "hostkeys/".
func (c *Client) Attributes(ctx context.Context, vm, path string) ([]*computepb.GuestAttributesEntry, error) {
	answer, err := get(ctx, c, fmt.Sprintf("read guest attributes of VM %q", vm), func(ctx context.Context, of clients) (*computepb.GuestAttributes, error) {
		return of.instances.GetGuestAttributes(ctx, &computepb.GetGuestAttributesInstanceRequest{Project: c.project(), Zone: c.zone(), Instance: vm, QueryPath: &path}, gcp.NoRetry())
	})
	return answer.GetQueryValue().GetItems(), err
}

// Console returns at most the last n bytes that a VM has written to its first serial port.
func (c *Client) Console(ctx context.Context, vm string, n int64) (string, error) {
	answer, err := get(ctx, c, fmt.Sprintf("read serial console of VM %q", vm), func(ctx context.Context, of clients) (*computepb.SerialPortOutput, error) {
		start := -n // counted from the end
		return of.instances.GetSerialPortOutput(ctx, &computepb.GetSerialPortOutputInstanceRequest{Project: c.project(), Zone: c.zone(), Instance: vm, Start: &start}, gcp.NoRetry())
	})
	return answer.GetContents(), err
}

// InsertPolicy makes a resource policy.
func (c *Client) InsertPolicy(ctx context.Context, p *computepb.ResourcePolicy) error {
	return c.change(ctx, fmt.Sprintf("create workload policy %q", p.GetName()), func(ctx context.Context, of clients, request *string) (*compute.Operation, error) {
		return of.policies.Insert(ctx, &computepb.InsertResourcePolicyRequest{Project: c.project(), Region: c.region(), RequestId: request, ResourcePolicyResource: p})
	})
}

// InsertTemplate makes an instance template.
func (c *Client) InsertTemplate(ctx context.Context, t *computepb.InstanceTemplate) error {
	return c.change(ctx, fmt.Sprintf("create instance template %q", t.GetName()), func(ctx context.Context, of clients, request *string) (*compute.Operation, error) {
		return of.templates.Insert(ctx, &computepb.InsertRegionInstanceTemplateRequest{Project: c.project(), Region: c.region(), RequestId: request, InstanceTemplateResource: t})
	})
}

// InsertGroup makes a group. Its VMs may come much later.
func (c *Client) InsertGroup(ctx context.Context, g *computepb.InstanceGroupManager) error {
	return c.change(ctx, fmt.Sprintf("create group %q", g.GetName()), func(ctx context.Context, of clients, request *string) (*compute.Operation, error) {
		return of.groups.Insert(ctx, &computepb.InsertInstanceGroupManagerRequest{Project: c.project(), Zone: c.zone(), RequestId: request, InstanceGroupManagerResource: g})
	})
}

// DeletePolicy deletes a resource policy.
func (c *Client) DeletePolicy(ctx context.Context, name string) error {
	return c.change(ctx, fmt.Sprintf("delete workload policy %q", name), func(ctx context.Context, of clients, request *string) (*compute.Operation, error) {
		return of.policies.Delete(ctx, &computepb.DeleteResourcePolicyRequest{Project: c.project(), Region: c.region(), RequestId: request, ResourcePolicy: name})
	})
}

// DeleteTemplate deletes an instance template.
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	return c.change(ctx, fmt.Sprintf("delete instance template %q", name), func(ctx context.Context, of clients, request *string) (*compute.Operation, error) {
		return of.templates.Delete(ctx, &computepb.DeleteRegionInstanceTemplateRequest{Project: c.project(), Region: c.region(), RequestId: request, InstanceTemplate: name})
	})
}

// DeleteGroup requests the deletion of a group with its VMs, and does not wait for it.
func (c *Client) DeleteGroup(ctx context.Context, name string) error {
	_, err := c.send(ctx, fmt.Sprintf("delete group %q", name), func(ctx context.Context, of clients, request *string) (*compute.Operation, error) {
		return of.groups.Delete(ctx, &computepb.DeleteInstanceGroupManagerRequest{Project: c.project(), Zone: c.zone(), RequestId: request, InstanceGroupManager: name})
	})
	return err
}

// SetMetadata replaces the metadata of a VM. m has the fingerprint of the old metadata. If
// somebody has changed the metadata meanwhile, the error is of class gcp.Conflict.
func (c *Client) SetMetadata(ctx context.Context, vm string, m *computepb.Metadata) error {
	return c.change(ctx, fmt.Sprintf("change metadata of VM %q", vm), func(ctx context.Context, of clients, request *string) (*compute.Operation, error) {
		return of.instances.SetMetadata(ctx, &computepb.SetMetadataInstanceRequest{Project: c.project(), Zone: c.zone(), RequestId: request, Instance: vm, MetadataResource: m})
	})
}

// Reset reboots a VM at once.
func (c *Client) Reset(ctx context.Context, vm string) error {
	return c.change(ctx, fmt.Sprintf("reboot VM %q", vm), func(ctx context.Context, of clients, request *string) (*compute.Operation, error) {
		return of.instances.Reset(ctx, &computepb.ResetInstanceRequest{Project: c.project(), Zone: c.zone(), RequestId: request, Instance: vm})
	})
}
