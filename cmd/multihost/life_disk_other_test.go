//go:build !linux

package main

// smallDisk returns "": there are no small file systems here.
func (w *lifeWorld) smallDisk() string { return "" }

func hasSmallDisk() bool { return false }
