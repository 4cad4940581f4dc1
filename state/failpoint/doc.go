// Package failpoint names the points at which a test can kill the process, to show that a kill there loses no
// row and no event. A build with the tag failpoints reads the setting ONCEBUS_FAILPOINT (name:hits) and sends
// itself SIGKILL at that hit of the point. To the wall clock that it reads for verdicts, such a build also adds
// a step, which it reads from the file that the variable WallStepVariable names. In all other builds Hit
// compiles to nothing. The package imports nothing of this module.
package failpoint
