// Command manifests writes the objects of JobSet and Kueue that package
// internal/gke/controllers installs. It reads them from the Go modules of both projects. The
// result is what kustomize renders from config/default, with the images of the releases:
//
//	go generate ./internal/gke/controllers
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"multihost/internal/gke/controllers"
)

const kustomize = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"

func main() {
	for _, c := range controllers.All() {
		if err := write(c); err != nil {
			fmt.Fprintf(os.Stderr, "manifests: %s: %v\n", c.Name, err)
			os.Exit(1)
		}
	}
}

func write(c controllers.Controller) error {
	out, err := exec.Command("go", "mod", "download", "-json", c.Module+"@"+c.Version).Output()
	if err != nil {
		return fmt.Errorf("download module: %w", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	rendered, err := exec.Command("go", "run", kustomize, "build", filepath.Join(module.Dir, "config", "default")).Output()
	if err != nil {
		return fmt.Errorf("render: %w", err)
	}
	objects := []map[string]any{}
	for d := yaml.NewDecoder(bytes.NewReader(rendered)); ; {
		var o map[string]any
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if o["kind"] == "Deployment" {
			setImage(o, c.Image+":"+c.Version)
		}
		objects = append(objects, o)
	}
	text, err := json.Marshal(objects)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(c.File(), packed.Bytes(), 0o644)
}

// setImage sets the image of the only container of a deployment.
func setImage(o map[string]any, image string) {
	spec := o["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	spec["containers"].([]any)[0].(map[string]any)["image"] = image
}
