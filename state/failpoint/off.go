//go:build !failpoints

package failpoint

// Hit does nothing in a build without the tag failpoints; the compiler removes
// the call.
func Hit(string) {}
