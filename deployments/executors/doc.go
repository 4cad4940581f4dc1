// Package executors has only tests. They test the executors in its directories with oncebus conformance, and show
// that this kit finds planted mistakes.
//
// It owns scenario.yaml, which the tests and README.md use. Only its tests import other packages:
// processor/conformance, the test harness and franz-go.
package executors
