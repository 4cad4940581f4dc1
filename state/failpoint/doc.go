// Package failpoint names the points at which a test can kill the process, to
// show that a kill there loses no row and no event. Builds with the tag failpoints
// read the setting ONCEBUS_FAILPOINT (name:hits) and send themselves SIGKILL at
// that hit of the point. In all other builds Hit compiles to nothing. The same
// builds add the step in the file of WallStepVariable to the wall clock where it is read
// for verdicts. The package imports nothing of this module.
package failpoint
