package main

import (
	"encoding/json"
	"net/http"
	"path"
	"strings"
	"time"

	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/qr"
)

// A lifeProvider makes the slices of a story.
type lifeProvider struct {
	open func(c *gcp.Client, root string) provision.Provider
	asks func(s lifeStory) provision.Request
	does func(req *http.Request, body []byte) lifeEffect
	read func(w *lifeWorld) (exists bool, state string)
}

// A lifeEffect is the effect of a call of the API on slices.
type lifeEffect int

const (
	doesNothing lifeEffect = iota
	makesSlices            // the first call that makes slices
	makesMore              // another call that makes slices
	rebootsSlices
	deletesSlices
	deletesParts // deletes parts of the run without slices
	deletesOther // deletes something that belongs to no run
)

// provider returns the provider that makes the slices of the story.
func (s lifeStory) provider() *lifeProvider {
	if s.onGCE {
		return lifeGCE
	}
	return lifeTPU
}

var lifeTPU = &lifeProvider{
	open: func(c *gcp.Client, root string) provision.Provider { return qr.New(c).Provider(root) },
	asks: func(s lifeStory) provision.Request {
		return qr.Request{ID: "m", NodeCount: lifeSlices, NodePrefix: "m", Type: parseType([]string{"v5litepod-4", "v4-16"}[s.perSlice()-1]), Tier: qr.Spot}.Neutral()
	},
	does: func(req *http.Request, _ []byte) lifeEffect {
		switch {
		case req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/queuedResources"):
			return makesSlices
		case req.Method == http.MethodPost && req.URL.Path == lifeQR+":reset":
			return rebootsSlices
		case req.Method != http.MethodDelete:
			return doesNothing
		case req.URL.Path == lifeQR:
			return deletesSlices
		}
		return deletesOther
	},
	read: func(w *lifeWorld) (exists bool, state string) {
		answer := w.ask(http.MethodGet, lifeQR)
		if answer.Code != http.StatusOK {
			return false, ""
		}
		var qr struct {
			State struct {
				State string `json:"state"`
			} `json:"state"`
		}
		if err := json.Unmarshal(answer.Body.Bytes(), &qr); err != nil {
			return true, err.Error()
		}
		return true, qr.State.State
	},
}

// lifeQR is the API's path of the queued resource of the stories. Each story has one job,
// which is called m.
var lifeQR = inTPU + "queuedResources/m"

// longestRun is the maximum run duration of slices that Compute Engine makes in a story.
const longestRun = 6 * time.Hour

var lifeGCE = &lifeProvider{
	open: func(c *gcp.Client, root string) provision.Provider { return gce.New(c, root) },
	asks: func(s lifeStory) provision.Request {
		r := qr.Request{ID: "m", NodeCount: lifeSlices, NodePrefix: "m", Type: parseType([]string{"tpu7x-8", "tpu7x-16"}[s.perSlice()-1]), Tier: qr.Spot, MaxRunDuration: longestRun}
		if s.bound {
			r.Tier = qr.OnDemand
		}
		return onCompute(r)
	},
	does: func(req *http.Request, body []byte) lifeEffect {
		dir, name := path.Split(strings.TrimSuffix(req.URL.Path, "/reset"))
		mine := strings.HasPrefix(name, "m-")
		switch {
		case req.Method == http.MethodPost && req.URL.Path == inZone+"instanceGroupManagers":
			var g struct{ Name string }
			if json.Unmarshal(body, &g) == nil && g.Name == "m-0" {
				return makesSlices
			}
			return makesMore
		case req.Method == http.MethodPost && dir == inZone+"instances/" && mine:
			return rebootsSlices
		case req.Method != http.MethodDelete:
			return doesNothing
		case dir == inZone+"instanceGroupManagers/" && mine:
			return deletesSlices
		case (dir == inRegion+"instanceTemplates/" || dir == inRegion+"resourcePolicies/") && mine:
			return deletesParts
		}
		return deletesOther
	},
	read: func(w *lifeWorld) (exists bool, state string) {
		var all struct {
			Items []struct {
				CurrentActions struct{ Deleting int }
			}
		}
		if err := json.Unmarshal(w.ask(http.MethodGet, inZone+"instanceGroupManagers").Body.Bytes(), &all); err != nil {
			return true, err.Error()
		}
		state = "DELETING"
		for _, g := range all.Items {
			if g.CurrentActions.Deleting == 0 {
				state = "ACTIVE"
			}
		}
		return len(all.Items) > 0, state
	},
}

// deletedBy deletes the run's slices with a call of the API. It notes that the given actor
// has deleted them, and returns the HTTP status.
func (w *lifeWorld) deletedBy(who, method, path string) int {
	w.mu.Lock()
	if w.deletes == "" {
		w.deletes = who
	}
	w.mu.Unlock()
	answer := w.ask(method, path)
	if answer.Code == http.StatusOK {
		w.note(lifeFact{kind: factDeleted, who: who})
	}
	return answer.Code
}
