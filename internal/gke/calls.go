package gke

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/event"
	"multihost/internal/gcp"
)

const (
	clusterLimit = 45 * time.Minute // limit of making or deleting a cluster
	poolLimit    = time.Hour        // limit of node pools; GKE itself gives up earlier
	// While a change is in progress, GKE refuses another one. lockedPause is the pause
	// before the refused one is sent again.
	lockedPause = 10 * time.Second
)

// calls makes the calls of GKE's API.
type calls struct {
	gcp *gcp.Client

	once sync.Once
	svc  *container.Service
	err  error
}

func (c *calls) region() string { return gcp.Region(c.gcp.Zone()) }

func (c *calls) parent() string { return gcp.Location(c.gcp.Project(), c.region()) }

func (c *calls) path(cluster string) string { return c.parent() + "/clusters/" + cluster }

func (c *calls) service(ctx context.Context) (*container.Service, error) {
	c.once.Do(func() {
		opts, err := c.gcp.ContainerOptions()
		if err != nil {
			c.err = err
			return
		}
		c.svc, c.err = container.NewService(context.WithoutCancel(ctx), opts...) // the service lives as long as c
	})
	return c.svc, c.err
}

// call makes one call, and repeats it after temporary failures.
func call[T any](ctx context.Context, c *calls, what string, do func(context.Context, *container.Service) (T, error)) (answer T, err error) {
	svc, err := c.service(ctx)
	if err != nil {
		return answer, err
	}
	err = c.gcp.Do(ctx, what, func(ctx context.Context) error {
		answer, err = do(ctx, svc)
		return err
	})
	return answer, err
}

// cluster returns a cluster with its node pools, or nil if it does not exist.
func (c *calls) cluster(ctx context.Context, name string) (*container.Cluster, error) {
	k, err := call(ctx, c, fmt.Sprintf("show cluster %q", name), func(ctx context.Context, svc *container.Service) (*container.Cluster, error) {
		return svc.Projects.Locations.Clusters.Get(c.path(name)).Context(ctx).Do()
	})
	if gcp.ClassOf(err) == gcp.NotFound {
		return nil, nil
	}
	return k, err
}

// clusters returns all clusters of the project.
func (c *calls) clusters(ctx context.Context) ([]*container.Cluster, error) {
	list, err := call(ctx, c, "list clusters", func(ctx context.Context, svc *container.Service) (*container.ListClustersResponse, error) {
		return svc.Projects.Locations.Clusters.List(gcp.Location(c.gcp.Project(), "-")).Context(ctx).Do()
	})
	if err != nil {
		return nil, err
	}
	if len(list.MissingZones) > 0 {
		err = fmt.Errorf("list clusters: %w", gcp.Partial(list.MissingZones))
	}
	return list.Clusters, err
}

// version returns the version of a new cluster: the wanted one, or the recommendation of
// the channel RAPID.
func (c *calls) version(ctx context.Context, want string) (string, error) {
	config, err := call(ctx, c, "read versions of GKE in region "+c.region(), func(ctx context.Context, svc *container.Service) (*container.ServerConfig, error) {
		return svc.Projects.Locations.GetServerConfig(c.parent()).Context(ctx).Do()
	})
	if err != nil {
		return "", err
	}
	if want != "" {
		for _, v := range config.ValidMasterVersions {
			if v == want || strings.HasPrefix(v, want+".") || strings.HasPrefix(v, want+"-") {
				return v, nil
			}
		}
		return "", &VersionError{Version: want, Region: c.region(), Valid: config.ValidMasterVersions}
	}
	for _, channel := range config.Channels {
		if channel.Channel == "RAPID" {
			return channel.DefaultVersion, nil
		}
	}
	return config.DefaultClusterVersion, nil
}

// change sends a request that changes something, and returns the name of its operation. An error
// of the class given by reached means that the resource is already in the wanted state, or on the
// way there. change then returns "", and the caller waits for the state of the resource.
func (c *calls) change(ctx context.Context, what string, reached gcp.Class, limit time.Duration, do func(context.Context, *container.Service) (*container.Operation, error)) (operation string, err error) {
	start := c.gcp.Clock().Now()
	err = gcp.Poll(ctx, c.gcp.Clock(), gcp.Backoff{First: lockedPause, Max: lockedPause}, func(ctx context.Context) (bool, error) {
		op, err := call(ctx, c, what, do)
		switch {
		case err == nil:
			operation = op.Name
			return true, nil
		case gcp.ClassOf(err) == reached:
			return true, nil
		case locked(err) && c.gcp.Clock().Now().Sub(start) < limit:
			event.Notef(c.gcp.Sink(), event.Debug, "", "%s: GKE is still busy with another change: %v", what, err)
			return false, nil
		}
		return true, err
	})
	return operation, err
}

// locked reports whether GKE refused a change because another change of the cluster is in
// progress.
func locked(err error) bool {
	var e *gcp.Error
	return errors.As(err, &e) && (strings.Contains(e.Message, "incompatible operation") || strings.Contains(e.Message, "is currently being") || strings.Contains(e.Message, "Please wait and try again"))
}

// failed reports whether an operation is done, and returns its error. An operation that no
// longer exists is done without error. If the operation cannot be read, done is false and
// err says why.
func (c *calls) failed(ctx context.Context, what, operation string) (done bool, err error) {
	op, err := call(ctx, c, what, func(ctx context.Context, svc *container.Service) (*container.Operation, error) {
		return svc.Projects.Locations.Operations.Get(c.parent() + "/operations/" + operation).Context(ctx).Do()
	})
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		return true, nil
	case err != nil || op.Status != "DONE":
		return false, err
	case op.Error != nil:
		return true, &gcp.OperationError{Code: int(op.Error.Code), Message: op.Error.Message, Target: gcp.BaseName(op.TargetLink)}
	case op.StatusMessage != "":
		return true, &gcp.OperationError{Message: op.StatusMessage, Target: gcp.BaseName(op.TargetLink)}
	}
	return true, nil
}
