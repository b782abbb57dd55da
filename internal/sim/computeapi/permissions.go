package computeapi

import (
	"net/http"
	"strings"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/groups"
	"multihost/internal/sim/wire"
)

// checkCompute returns an error for a caller of the Compute API without the permission. The
// caller of checkCompute holds s.Mu.
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
		kind, _, placed := strings.Cut(c.scope, "s/")
		if !placed {
			kind = "global"
		}
		resource, verb = kind+"Operations", "get"
	case c.id == "" && verb == "get":
		verb = "list"
	case resource == "instanceGroupManagers" && c.verb != "":
		verb = "update"
		if strings.HasPrefix(c.verb, "list") {
			verb = "get"
		}
	case c.verb == "reservationBlocks":
		resource, verb = "reservationBlocks", "get"
		if c.below == "" {
			verb = "list"
		}
	case c.verb == "serialPort":
		verb = "getSerialPortOutput"
	case c.verb != "":
		verb = c.verb // instances.setMetadata and the like
	}
	if c.project == groups.ImageProject {
		return nil // everybody may read these images
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
