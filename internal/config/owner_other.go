//go:build !unix

package config

import "io/fs"

// writtenByOthers always returns nil, because it does not know the access lists of these
// systems. There, only the list of flags that a project file may set protects the user.
func writtenByOthers(fs.FileInfo) error { return nil }
