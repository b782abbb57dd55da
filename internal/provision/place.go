package provision

// A Place is where slices are.
type Place struct{ Project, Zone string }
