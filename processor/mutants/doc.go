// Package mutants shows that the tests find defects. It contains only tests: a
// list of planted defects, each of which would break exactly-once, and a runner.
// The runner plants one at a time, compiles the packages and expects a test to fail. Run it with make mutants, or
// one mutant with
//
//	go test -tags mutants -count=1 -v -run 'TestMutants/name' ./processor/mutants
//
// The working tree does not change: go build's -overlay replaces a file by the
// planted one.
package mutants
