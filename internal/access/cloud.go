// Package access makes clients of Google's APIs and of clusters with the user's credentials. It
// also reads the user's SSH key.
package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/gcp"
)

type Options struct {
	ReadOnly  bool // refuse every call that changes something
	Lookup    config.Lookup
	UserAgent string
	Sink      event.Sink
}

// Cloud returns a client of Google's APIs for the project, zone, endpoints and credentials
// of a configuration. It calls no API. The caller closes the client.
func Cloud(g config.Gcloud, o Options) *gcp.Client {
	// Google's own clients read these variables.
	quota, _ := o.Lookup("GOOGLE_CLOUD_QUOTA_PROJECT")
	credentials, _ := o.Lookup("GOOGLE_APPLICATION_CREDENTIALS")
	return gcp.New(gcp.Config{
		Project: g.Project, Zone: g.Zone, ReadOnly: o.ReadOnly,
		TPUEndpoint: g.TPUEndpoint, ComputeEndpoint: g.ComputeEndpoint, OSLoginEndpoint: g.OSLoginEndpoint,
		StorageEndpoint: g.StorageEndpoint, SecretManagerEndpoint: g.SecretManagerEndpoint, ContainerEndpoint: g.ContainerEndpoint,
		ServiceUsageEndpoint: g.ServiceUsageEndpoint, ResourceManagerEndpoint: g.ResourceManagerEndpoint, QuotasEndpoint: g.QuotasEndpoint,
		DisableAuth: g.DisableAuth, AccessTokenFile: g.AccessTokenFile, Impersonate: g.Impersonate,
		QuotaProject: quota, GcloudToken: gcloudToken, UserAgent: o.UserAgent, Sink: o.Sink,
		CredentialsFile: credentials, LoginWait: LoginWait,
	})
}

// Roots returns the addresses of the APIs that workers call.
func Roots(g config.Gcloud) (gcp.Roots, error) {
	return (gcp.Config{TPUEndpoint: g.TPUEndpoint, ComputeEndpoint: g.ComputeEndpoint, StorageEndpoint: g.StorageEndpoint, SecretManagerEndpoint: g.SecretManagerEndpoint}).Roots()
}

// LoginWait is how long a call waits for the user to log in again. If a login expires on
// Friday evening, the user renews it on Monday.
const LoginWait = 4 * 24 * time.Hour

// gcloudToken asks an installed gcloud for a token. Users who typed only gcloud auth login have
// no other credentials.
func gcloudToken(ctx context.Context) (string, error) {
	path, err := exec.LookPath("gcloud")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, "auth", "print-access-token", "--quiet")
	cmd.WaitDelay = time.Second // gcloud is a script: its Python can outlive it
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) { // the first line on standard error says why
		why, _, _ := strings.Cut(strings.TrimSpace(string(failed.Stderr)), "\n")
		err = fmt.Errorf("%s (%w)", cmp.Or(why, "no reason given"), err)
	}
	if err != nil {
		return "", fmt.Errorf("gcloud auth print-access-token: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
