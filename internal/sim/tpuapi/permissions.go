package tpuapi

import (
	"net/http"
	"strings"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"
)

// checkTPU returns an error for a caller of the TPU API without the permission. Permissions
// on nodes also apply to queued resources, which have none of their own. The caller of
// checkTPU holds s.Mu.
func checkTPU(who cloud.Caller, s *cloud.Cloud, c *call) error {
	verb := c.method()
	switch {
	case c.collection != "nodes" && c.collection != "queuedResources", verb == "":
		return nil
	case verb == "patch":
		verb = "update"
	case c.verb != "" && c.verb != "getGuestAttributes":
		verb = "update"
	case c.verb == "getGuestAttributes":
		verb = "get"
	}
	permission := "tpu.nodes." + verb
	if who.May(s, permission) {
		return nil
	}
	return wire.Errorf(http.StatusForbidden, "Permission '%s' denied on '%s'.", permission, strings.TrimSuffix(c.name(), "/")).WithDetails(map[string]any{
		"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "IAM_PERMISSION_DENIED", "domain": "tpu.googleapis.com",
		"metadata": map[string]string{"permission": permission, "resource": c.name()},
	})
}
