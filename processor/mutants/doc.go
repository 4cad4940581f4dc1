// Package mutants shows that the tests see what they are there to see. It
// holds no code but tests: a list of planted defects, each of which would
// break exactly-once, and a runner that plants one at a time, compiles the
// packages with it and expects a test to fail. Run it with make mutants, or
// one mutant with
//
//	go test -tags mutants -count=1 -v -run 'TestMutants/name' ./processor/mutants
//
// The working tree is not changed: a planted file replaces the real one by
// go build's -overlay.
package mutants
