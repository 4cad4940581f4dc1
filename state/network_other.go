//go:build !linux

package state

// NetworkFS returns "": only Linux reports the type of a file system.
func NetworkFS(string) (string, error) { return "", nil }
