package complete

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"multihost/internal/config"
	"multihost/internal/gcp"
	"multihost/internal/tpu"
)

// fresh is how long names from the API are kept.
const fresh = time.Minute

// Names has the API's names. Ask keeps them in a file in this form.
type Names struct {
	Place  string         `json:"place"` // project, zone and endpoint
	Read   time.Time      `json:"read"`
	Slices map[string]int `json:"slices"` // number of workers
	Queued []string       `json:"queued_resources"`
}

// Asking says how to ask the API for names, and where to keep them.
type Asking struct {
	Place    string        // place of the names; kept names of another place are not used
	StateDir string        // directory of the kept file
	Limit    time.Duration // time limit of all API calls together
	Slices   func(ctx context.Context) ([]tpu.Slice, error)
	Queued   func(ctx context.Context) ([]string, error) // names of requests for slices
}

// Ask returns the names in the kept file if it is fresh. Otherwise it asks the API and keeps
// the names.
func Ask(ctx context.Context, a Asking) (Names, error) {
	path := filepath.Join(a.StateDir, "completion.json")
	var kept Names
	if data, err := os.ReadFile(path); err == nil && json.Unmarshal(data, &kept) == nil && kept.holds(a.Place, time.Now()) {
		return kept, nil
	}
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), a.Limit)
	defer cancel()
	names := Names{Place: a.Place, Read: time.Now(), Slices: map[string]int{}}
	all, err := a.Slices(ctx)
	if err != nil {
		return names, err
	}
	for _, slice := range all {
		names.Slices[slice.Name] = len(slice.Workers)
	}
	if names.Queued, err = a.Queued(ctx); err != nil {
		return names, err
	}
	if data, err := json.Marshal(names); err == nil && os.MkdirAll(a.StateDir, 0o700) == nil {
		_ = config.WriteWhole(path, data) // without the file, the next key stroke asks the API again
	}
	return names, nil
}

// holds reports whether kept names belong to the place and are younger than fresh.
func (n Names) holds(place string, now time.Time) bool {
	age := now.Sub(n.Read)
	return n.Place == place && age >= 0 && age < fresh
}
