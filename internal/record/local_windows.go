package record

// mayWrite always returns nil: only creating a file shows whether a directory allows
// it.
func mayWrite(string) error { return nil }
