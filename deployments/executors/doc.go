// Package executors has no code: it tests the executors in its directories, each with oncebus conformance, and shows that the kit finds
// planted mistakes.
//
// It owns scenario.yaml, which the tests and README.md use. Only its tests import other packages: processor/conformance, the test
// harness and franz-go.
package executors
