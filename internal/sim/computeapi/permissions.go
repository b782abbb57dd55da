package computeapi

import (
	"net/http"
	"strings"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"
)

// checkCompute refuses a caller of the Compute API without the permission. The caller
// holds s.Mu.
func checkCompute(who cloud.Caller, s *cloud.Cloud, c *computeCall) error {
	resource, verb := c.collection, map[string]string{
		http.MethodGet: "get", http.MethodPost: "create", http.MethodDelete: "delete", http.MethodPatch: "update",
	}[c.r.Method]
	switch {
	case resource == "":
		resource = "projects"
	case resource == "setCommonInstanceMetadata":
		resource, verb = "projects", resource
	case resource == "operations":
		resource, verb = "globalOperations", "get"
		if strings.HasPrefix(c.scope, "regions/") {
			resource = "regionOperations"
		}
	case c.id == "" && verb == "get":
		verb = "list"
	}
	permission := "compute." + resource + "." + verb
	if who.May(s, permission) {
		return nil
	}
	name := "projects/" + s.Config.Project
	if c.id != "" {
		name = c.name()
	}
	return wire.Errorf(http.StatusForbidden, "Required '%s' permission for '%s'", permission, name)
}
