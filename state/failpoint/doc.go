// Package failpoint names the points at which a test can kill the process, to
// show that a kill there loses no row and no event. Builds with the tag failpoints
// read the setting ONCEBUS_FAILPOINT (name:hits) and send themselves SIGKILL at
// that hit of the point. In all other builds Hit compiles to nothing. The
// package imports nothing of this module.
package failpoint
