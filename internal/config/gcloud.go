// Package config reads gcloud's configuration files, files of defaults, the environment and
// flags in text form, and returns checked values. It makes no API call and reads the
// environment only through a Lookup.
//
// # Decisions
//
//   - A project's file of defaults comes with a directory, so it is trusted less than the
//     user's own file. Other users must not be able to write it. It may name only files in
//     its directory. It may not set flags that run a program here, name an identity, open a
//     network, end other users' runs, or delete.
//   - launch.EnvVar is a type of its own, although it looks like EnvVar here: launch
//     must not know how the runner reads its files.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sort"
	"strings"

	"gopkg.in/ini.v1"

	"multihost/internal/fault"
)

// A Lookup finds an environment variable, like os.LookupEnv.
type Lookup func(key string) (string, bool)

// Gcloud has the settings that multihost takes from gcloud's configuration. A field that is
// not set is empty.
type Gcloud struct {
	Account string
	Project string
	Zone    string
	Region  string // only to explain a missing zone

	TPUEndpoint           string
	ComputeEndpoint       string
	StorageEndpoint       string
	OSLoginEndpoint       string
	SecretManagerEndpoint string
	ContainerEndpoint     string // Google Kubernetes Engine

	ServiceUsageEndpoint    string
	ResourceManagerEndpoint string
	QuotasEndpoint          string

	AccessTokenFile string
	DisableAuth     bool
	Impersonate     string

	// Configuration is the name of the active configuration, or "NONE".
	Configuration string
	// Source maps the Go name of each non-empty field to the place of its value:
	// "CLOUDSDK_CORE_PROJECT", a file and section, or a flag.
	Source map[string]string
}

type property struct {
	field         string // Go name in Gcloud
	section, name string // in gcloud's files; CLOUDSDK_<SECTION>_<NAME> in the environment
}

func properties() []property {
	return []property{
		{"Account", "core", "account"},
		{"Project", "core", "project"},
		{"Zone", "compute", "zone"},
		{"Region", "compute", "region"},
		{"TPUEndpoint", "api_endpoint_overrides", "tpu"},
		{"ComputeEndpoint", "api_endpoint_overrides", "compute"},
		{"StorageEndpoint", "api_endpoint_overrides", "storage"},
		{"OSLoginEndpoint", "api_endpoint_overrides", "oslogin"},
		{"SecretManagerEndpoint", "api_endpoint_overrides", "secretmanager"},
		{"ContainerEndpoint", "api_endpoint_overrides", "container"},
		{"ServiceUsageEndpoint", "api_endpoint_overrides", "serviceusage"},
		{"ResourceManagerEndpoint", "api_endpoint_overrides", "cloudresourcemanager"},
		{"QuotasEndpoint", "api_endpoint_overrides", "cloudquotas"},
		{"AccessTokenFile", "auth", "access_token_file"},
		{"DisableAuth", "auth", "disable_credentials"},
		{"Impersonate", "auth", "impersonate_service_account"},
	}
}

// env returns the name of the environment variable that overrides p.
func (p property) env() string {
	return "CLOUDSDK_" + strings.ToUpper(p.section) + "_" + strings.ToUpper(p.name)
}

// LoadGcloud reads gcloud's configuration like gcloud. The order of precedence is: an
// environment variable CLOUDSDK_<SECTION>_<NAME>, the active configuration, the file
// properties in gcloud's directory, and the file properties of the installation
// (CLOUDSDK_ROOT_DIR). configurationFlag names the active configuration. If it is empty,
// CLOUDSDK_ACTIVE_CONFIG_NAME names it, then the file active_config. "NONE" means no
// configuration.
//
// gcloud need not be installed. Without its directory, nothing is set. It is an error if a
// named configuration does not exist, or if a file cannot be read or parsed. Empty values
// count as not set.
func LoadGcloud(lookup Lookup, home, configurationFlag string) (Gcloud, error) {
	g := Gcloud{Source: map[string]string{}}
	dir := gcloudDir(lookup, home)
	name, named, err := activeName(lookup, dir, configurationFlag)
	if err != nil {
		return g, err
	}
	g.Configuration = name

	files, err := readConfigurations(lookup, dir, name, named)
	if err != nil {
		return g, err
	}
	for _, p := range properties() {
		value, source := p.find(lookup, files)
		if value == "" {
			continue
		}
		if err := g.set(p.field, value, source); err != nil {
			return g, err
		}
	}
	return g, nil
}

// Override sets the field with this Go name from a flag. An empty value changes nothing.
func (g *Gcloud) Override(field, flag, value string) error {
	if value == "" {
		return nil
	}
	return g.set(field, value, flag)
}

func (g *Gcloud) set(field, value, source string) error {
	text := g.text(field)
	switch {
	case text != nil:
		*text = value
	case field == "DisableAuth":
		on, err := gcloudBool(value)
		if err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		g.DisableAuth = on
	default:
		return fmt.Errorf("set %q: no such setting", field)
	}
	if g.Source == nil {
		g.Source = map[string]string{}
	}
	g.Source[field] = source
	return nil
}

// text returns a pointer to the field if it is a string, else nil.
func (g *Gcloud) text(field string) *string {
	return map[string]*string{
		"Account":                 &g.Account,
		"Project":                 &g.Project,
		"Zone":                    &g.Zone,
		"Region":                  &g.Region,
		"TPUEndpoint":             &g.TPUEndpoint,
		"ComputeEndpoint":         &g.ComputeEndpoint,
		"StorageEndpoint":         &g.StorageEndpoint,
		"ContainerEndpoint":       &g.ContainerEndpoint,
		"OSLoginEndpoint":         &g.OSLoginEndpoint,
		"SecretManagerEndpoint":   &g.SecretManagerEndpoint,
		"ServiceUsageEndpoint":    &g.ServiceUsageEndpoint,
		"ResourceManagerEndpoint": &g.ResourceManagerEndpoint,
		"QuotasEndpoint":          &g.QuotasEndpoint,
		"AccessTokenFile":         &g.AccessTokenFile,
		"Impersonate":             &g.Impersonate,
	}[field]
}

// gcloudBool parses the forms that gcloud accepts. Our flags accept fewer.
func gcloudBool(value string) (bool, error) {
	switch strings.ToLower(value) {
	case "true", "1", "on", "yes", "y":
		return true, nil
	case "false", "0", "off", "no", "n", "none", "":
		return false, nil
	}
	return false, fmt.Errorf("value %q is neither true nor false", value)
}

func gcloudDir(lookup Lookup, home string) string {
	if dir := get(lookup, "CLOUDSDK_CONFIG"); dir != "" {
		return dir
	}
	if dir := get(lookup, "APPDATA"); runtime.GOOS == "windows" && dir != "" {
		return filepath.Join(dir, "gcloud")
	}
	return filepath.Join(home, ".config", "gcloud")
}

// get returns the value of an environment variable, or "".
func get(lookup Lookup, key string) string {
	v, _ := lookup(key)
	return v
}

var configurationName = regexp.MustCompile(`^[a-z][-a-z0-9]*$`)

// activeName returns the name of the configuration to read. The result named says that a
// flag or variable names it. The configuration must then exist.
func activeName(lookup Lookup, dir, flag string) (name string, named bool, err error) {
	asked, by := flag, "--configuration"
	if asked == "" {
		asked, by = get(lookup, "CLOUDSDK_ACTIVE_CONFIG_NAME"), "CLOUDSDK_ACTIVE_CONFIG_NAME"
	}
	if asked == "NONE" {
		return asked, true, nil
	}
	if asked != "" {
		if !configurationName.MatchString(asked) {
			return "", false, fmt.Errorf("%s %q: not a legal configuration name (lower-case letters, digits, dashes)", by, asked)
		}
		return asked, true, nil
	}
	data, err := os.ReadFile(filepath.Join(dir, "active_config"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", false, fileError(filepath.Join(dir, "active_config"), err)
	}
	// gcloud uses "default" if the file has no legal name.
	if name := strings.TrimSpace(string(data)); name == "NONE" || configurationName.MatchString(name) {
		return name, false, nil
	}
	return "default", false, nil
}

// configFile is one parsed file. In a list, earlier files take precedence.
type configFile struct {
	path string
	ini  *ini.File
}

func readConfigurations(lookup Lookup, dir, name string, named bool) ([]configFile, error) {
	var paths []string
	if name != "NONE" {
		path := filepath.Join(dir, "configurations", "config_"+name)
		// gcloud uses the configuration "default" even without its file.
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && named && name != "default" {
			return nil, &ConfigurationError{Name: name, Known: knownConfigurations(dir)}
		}
		paths = append(paths, path)
	}
	paths = append(paths, filepath.Join(dir, "properties"))
	if root := get(lookup, "CLOUDSDK_ROOT_DIR"); root != "" {
		paths = append(paths, filepath.Join(root, "properties"))
	}
	var files []configFile
	for _, path := range paths {
		f, err := parseFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fileError(path, err)
		}
		files = append(files, configFile{path, f})
	}
	return files, nil
}

// parseFile reads a file like Python's configparser, which gcloud uses. Quotes and # are
// part of a value. A line that begins with blanks continues the last line.
func parseFile(path string) (*ini.File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := ini.LoadSources(ini.LoadOptions{
		IgnoreInlineComment:        true,
		PreserveSurroundedQuote:    true,
		AllowPythonMultilineValues: true,
		InsensitiveKeys:            true,
		SkipUnrecognizableLines:    false,
	}, data)
	if err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	return f, nil
}

func (p property) find(lookup Lookup, files []configFile) (value, source string) {
	if v := get(lookup, p.env()); v != "" {
		return v, p.env()
	}
	for _, f := range files {
		section, err := f.ini.GetSection(p.section)
		if err != nil || !section.HasKey(p.name) {
			continue
		}
		// gcloud's configparser writes % as %%.
		v := strings.TrimSpace(strings.ReplaceAll(section.Key(p.name).Value(), "%%", "%"))
		if v != "" {
			return v, fmt.Sprintf("%s [%s] %s", f.path, p.section, p.name)
		}
	}
	return "", ""
}

// GcloudConfigurations returns the names of gcloud's configurations, sorted.
func GcloudConfigurations(lookup Lookup, home string) []string {
	return knownConfigurations(gcloudDir(lookup, home))
}

func knownConfigurations(dir string) []string {
	matches, _ := filepath.Glob(filepath.Join(dir, "configurations", "config_*"))
	var names []string
	for _, m := range matches {
		names = append(names, strings.TrimPrefix(filepath.Base(m), "config_"))
	}
	sort.Strings(names)
	return names
}

// A FileError says that a file cannot be read or has a fault.
type FileError struct {
	Path string
	Line int // from 1; 0: none
	// Column is the place in the line, from 1; 0: not known.
	Column int
	Err    error
	Advice string // what to type, or ""
}

// fileError returns the *FileError for a failure to read path.
func fileError(path string, err error) *FileError {
	var perr *fs.PathError
	if errors.As(err, &perr) {
		err = perr.Err // FileError has the path already
	}
	return &FileError{Path: path, Err: err}
}

func (e *FileError) Error() string {
	switch {
	case e.Column > 0:
		return fmt.Sprintf("%s:%d:%d: %v", e.Path, e.Line, e.Column, e.Err)
	case e.Line > 0:
		return fmt.Sprintf("%s:%d: %v", e.Path, e.Line, e.Err)
	}
	return fmt.Sprintf("read %q: %v", e.Path, e.Err)
}

// Fault returns fault.Configuration.
func (e *FileError) Fault() fault.Kind { return fault.Configuration }

// Hint returns what to type, or "".
func (e *FileError) Hint() string { return e.Advice }

func (e *FileError) Unwrap() error { return e.Err }

// A ConfigurationError says that a gcloud configuration does not exist.
type ConfigurationError struct {
	Name  string
	Known []string // existing ones, sorted
}

func (e *ConfigurationError) Error() string {
	return fmt.Sprintf("gcloud configuration %q: does not exist", e.Name)
}

// Fault returns fault.Configuration.
func (e *ConfigurationError) Fault() fault.Kind { return fault.Configuration }

// Hint names the existing configurations.
func (e *ConfigurationError) Hint() string {
	if len(e.Known) == 0 {
		return "make one with: gcloud config configurations create " + e.Name + " (or use --project and --zone)"
	}
	return "use one of: " + strings.Join(e.Known, ", ")
}
