package provision

// A Place is a project and a zone for slices.
type Place struct{ Project, Zone string }
