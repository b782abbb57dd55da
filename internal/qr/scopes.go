package qr

import (
	"fmt"
	"slices"
	"strings"

	"multihost/internal/tpu"
)

const scopePrefix = "https://www.googleapis.com/auth/"

// scopeAliases returns gcloud's short names of OAuth scopes. The values are the ends of the
// scopes' URLs, after scopePrefix.
func scopeAliases() map[string][]string {
	return map[string][]string{
		"bigquery":              {"bigquery"},
		"cloud-platform":        {"cloud-platform"},
		"cloud-source-repos":    {"source.full_control"},
		"cloud-source-repos-ro": {"source.read_only"},
		"compute-ro":            {"compute.readonly"},
		"compute-rw":            {"compute"},
		"datastore":             {"datastore"},
		"default": {
			"devstorage.read_only", "logging.write", "monitoring.write", "pubsub",
			"service.management.readonly", "servicecontrol", "trace.append",
		},
		"logging-write":      {"logging.write"},
		"monitoring":         {"monitoring"},
		"monitoring-read":    {"monitoring.read"},
		"monitoring-write":   {"monitoring.write"},
		"pubsub":             {"pubsub"},
		"service-control":    {"servicecontrol"},
		"service-management": {"service.management.readonly"},
		"sql-admin":          {"sqlservice.admin"},
		"storage-full":       {"devstorage.full_control"},
		"storage-ro":         {"devstorage.read_only"},
		"storage-rw":         {"devstorage.read_write"},
		"taskqueue":          {"taskqueue"},
		"trace":              {"trace.append"},
		"userinfo-email":     {"userinfo.email"},
	}
}

// scopeURLs returns the URLs that one --scopes entry stands for.
func scopeURLs(s string) ([]string, error) {
	if strings.HasPrefix(s, "https://") {
		return []string{s}, nil
	}
	aliases := scopeAliases()
	names, ok := aliases[s]
	if !ok {
		if near := tpu.Suggest(s, sortedKeys(aliases)); near != "" {
			return nil, fmt.Errorf("scope %q is neither a URL nor an alias: did you mean %s?", s, near)
		}
		return nil, fmt.Errorf("scope %q is neither a URL nor an alias such as cloud-platform", s)
	}
	urls := make([]string, len(names))
	for i, name := range names {
		urls[i] = scopePrefix + name
	}
	return urls, nil
}

// MayCallTPU reports whether the scopes of the request let its VMs call the TPU API. A
// request without Scopes has the scope cloud-platform.
func (r Request) MayCallTPU() bool {
	scopes := ScopeURLs(r.Scopes)
	return len(scopes) == 0 || slices.Contains(scopes, scopePrefix+"cloud-platform") || slices.Contains(scopes, scopePrefix+"cloud.tpu")
}

// ScopeURLs returns the scopes as URLs, each once. Unknown scopes stay unchanged; Validate
// refuses them.
func ScopeURLs(scopes []string) []string {
	var urls []string
	for _, s := range scopes {
		expanded, err := scopeURLs(s)
		if err != nil {
			expanded = []string{s}
		}
		for _, u := range expanded {
			if !slices.Contains(urls, u) {
				urls = append(urls, u)
			}
		}
	}
	return urls
}
