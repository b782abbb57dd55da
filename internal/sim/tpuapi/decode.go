package tpuapi

import (
	"encoding/json"

	"multihost/internal/sim/wire"

	tpuv2 "google.golang.org/api/tpu/v2"

	tpualpha "google.golang.org/api/tpu/v2alpha1"
)

// decodeQueued decodes the body of a queued resource of either version.
func decodeQueued(version string, body []byte) (*tpualpha.QueuedResource, error) {
	q := new(tpualpha.QueuedResource)
	if version == "v2alpha1" {
		return q, wire.DecodeStrict(body, q, "queued_resource")
	}
	if err := wire.DecodeStrict(body, new(tpuv2.QueuedResource), "queued_resource"); err != nil {
		return nil, err
	}
	return q, json.Unmarshal(wire.RenameParams(body, "multisliceParams", "multiNodeParams"), q)
}

// decodeNode decodes the body of a node of either version.
func decodeNode(version string, body []byte) (*tpualpha.Node, error) {
	n := new(tpualpha.Node)
	if version == "v2alpha1" {
		return n, wire.DecodeStrict(body, n, "node")
	}
	if err := wire.DecodeStrict(body, new(tpuv2.Node), "node"); err != nil {
		return nil, err
	}
	return n, json.Unmarshal(body, n)
}
