package provision

// A Permission is a right in the project that commands need.
type Permission struct {
	Name     string // "compute.instances.list"
	Use      string // the commands that need it, or what they need it for
	Required bool   // without it, no command works on slices of the provider
}

// A Permitted is a Provider that names the rights which its calls need.
type Permitted interface {
	// Permissions returns the rights. A name may occur several times, with another use.
	Permissions() []Permission
}
