package job

// mayWrite is nil: whether files can be made in a directory is found out by
// making one.
func mayWrite(string) error { return nil }
