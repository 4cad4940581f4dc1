package explore

import (
	"fmt"
	"strings"
)

// Model is a protocol, together with the bounds within which it is explored.
type Model[S comparable] struct {
	Name  string
	Start []S
	// Next appends to steps everything that may happen in a state. The order must depend on the state only, because
	// traces are computed by calling Next again.
	Next func(s S, steps []Step[S]) []Step[S]
	// Check returns what is wrong with a state, or nil. A nil Check checks nothing.
	Check func(s S) error
	// Final returns what is wrong with a state in which nothing more can happen, or nil. A nil Final checks nothing.
	Final func(s S) error
	// Goal reports whether the protocol has arrived or is at rest. Such a state must be reachable from every state;
	// otherwise the protocol can be stuck for ever. A nil Goal checks nothing.
	Goal func(s S) bool
	// Show describes a state in words, for the trace of a violation. With a nil Show the trace has only the steps.
	Show func(s S) string
	// Limit is how many states may be visited at most; 0 means LimitDefault.
	Limit int
}

// LimitDefault is the limit of a model that sets no Limit.
const LimitDefault = 5_000_000

// Step is one thing that may happen in a state.
type Step[S comparable] struct {
	To S
	// Err says that the step itself is wrong, whatever state it leads to; nil if it is right.
	Err error

	name string
	args [argsMax]int
}

// argsMax is the maximal number of numbers in the name of a step.
const argsMax = 4

// To returns a step to the state s. name is a format that has a %d, %c or %x for each number in args. It is formatted
// only for the trace of a violation.
func To[S comparable](s S, name string, args ...int) Step[S] {
	step := Step[S]{To: s, name: name}
	copy(step.args[:], args)
	return step
}

// String returns the name of the step.
func (s *Step[S]) String() string {
	n := min(strings.Count(s.name, "%"), argsMax)
	args := make([]any, n)
	for i := range args {
		args[i] = s.args[i]
	}
	return fmt.Sprintf(s.name, args...)
}

// Result says what an exploration has visited.
type Result struct {
	Model       string
	States      int
	Transitions int
	// Depth is the number of steps on a shortest way to the farthest state.
	Depth int
}

// String returns the result in one line.
func (r Result) String() string {
	return fmt.Sprintf("%s: %d states, %d transitions, at most %d steps from the start", r.Model, r.States, r.Transitions, r.Depth)
}

// ViolationError is a wrong state or a wrong step, with a shortest way to it.
type ViolationError struct {
	Model string
	// Trace has one line for each step from the start.
	Trace []string
	Err   error
}

// Error returns the trace and what is wrong at its end.
func (v *ViolationError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v, after %d steps:", v.Model, v.Err, len(v.Trace))
	for i, line := range v.Trace {
		fmt.Fprintf(&b, "\n%4d. %s", i+1, line)
	}
	return b.String()
}

// Unwrap returns what is wrong at the end of the trace.
func (v *ViolationError) Unwrap() error { return v.Err }
