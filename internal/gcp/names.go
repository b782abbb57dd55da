package gcp

import "strings"

// PageSize is the largest page of the Cloud TPU API's lists.
const PageSize = 1000

// Location returns the name of a zone in the APIs: projects/P/locations/Z.
func Location(project, zone string) string { return "projects/" + project + "/locations/" + zone }

// Region returns the region of a zone: us-central2 for us-central2-b. It returns "" for a
// text that is no zone.
func Region(zone string) string { return zone[:max(0, strings.LastIndexByte(zone, '-'))] }

// BaseName returns the part of a resource's name or URL after the last slash.
func BaseName(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
