package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Scenario is the script of a run: what the kit does with an executor.
type Scenario struct {
	// Lease is the lease of the route. The executor must renew an event that takes longer.
	Lease time.Duration
	// Start says that the executor asks before it works on an event. It must do so if its work must never run
	// twice.
	Start bool
	// Transaction says that the executor writes the outcome and commits the offset in one transaction. If it is
	// false, the executor commits the offset after the outcome.
	Transaction bool
	// Wait is how long the kit waits for an outcome or an offset before it ends the run.
	Wait time.Duration
	// Gateway is what the gateway does with a charge that is sent again.
	Gateway GatewayKind
	Events  map[string]*Event
	Steps   []Step
}

// Event is an event of a scenario, with the outcome that the executor should send.
type Event struct {
	Name    string
	Value   []byte
	Headers []dedup.Header // sorted by name
	Outcome string         // completed, failed, rejected or submitted
	// Result is the expected value of the outcome; nil if any value will do.
	Result *string
}

// StepKind is what a step of a scenario does.
type StepKind string

// The kinds of steps. Every step has an event.
const (
	StepDispatch  StepKind = "dispatch"      // dispatches Count events, each with its own key
	StepAttempts  StepKind = "attempts"      // dispatches Count attempts of one key, each after the outcome of the previous attempt
	StepAbort     StepKind = "abort"         // dispatches in a transaction that is aborted, then in one that is committed
	StepUnclaimed StepKind = "unclaimed"     // dispatches without a claim token, as a policy forwards events
	StepReply     StepKind = "reply"         // dispatches without a claim token, while an HTTP request waits for the outcome
	StepRenew     StepKind = "renew"         // the event takes longer than the lease
	StepSupersede StepKind = "supersede"     // the attempt is superseded while the executor works on it
	StepRefuse    StepKind = "refuse"        // the attempt is superseded when the executor asks to start it
	StepCrash     StepKind = "crash"         // dispatches Count events, and kills the executor while it works on them
	StepInWork    StepKind = "crash-in-work" // dispatches two events, and kills the executor while it charges for each of them
	StepIdle      StepKind = "idle"          // dispatches nothing for a time, then an event
)

var stepKinds = []StepKind{StepDispatch, StepAttempts, StepAbort, StepUnclaimed, StepReply, StepRenew, StepSupersede, StepRefuse, StepCrash, StepInWork, StepIdle}

// Step is a step of a scenario.
type Step struct {
	Kind  StepKind
	Event *Event
	Count int           // for dispatch, attempts and crash
	For   time.Duration // for idle
	// Next is the event of the attempt that takes over; nil if the attempt is erased.
	Next *Event
}

// ScenarioBytesMax is the largest scenario file, in bytes.
const ScenarioBytesMax = 1 << 20

// Defaults and bounds of a scenario.
const (
	waitDefault = time.Minute
	countMax    = 10_000
)

// The scenario file as YAML.
type (
	scenarioFile struct {
		Lease       time.Duration        `yaml:"lease"`
		Start       bool                 `yaml:"start"`
		Transaction *bool                `yaml:"transaction"`
		Wait        time.Duration        `yaml:"wait"`
		Gateway     GatewayKind          `yaml:"gateway"`
		Events      map[string]eventFile `yaml:"events"`
		Steps       []stepFile           `yaml:"steps"`
	}
	eventFile struct {
		Value   string            `yaml:"value"`
		Headers map[string]string `yaml:"headers"`
		Outcome string            `yaml:"outcome"`
		Result  *string           `yaml:"result"`
	}
	stepFile struct {
		Do    string        `yaml:"do"`
		Event string        `yaml:"event"`
		Count int           `yaml:"count"`
		For   time.Duration `yaml:"for"`
		Next  string        `yaml:"next"`
	}
)

// ParseScenario parses a scenario file; name is the name of the file for errors. Unknown and repeated keys are
// errors. The error joins every mistake.
func ParseScenario(name string, data []byte) (*Scenario, error) {
	if len(data) > ScenarioBytesMax {
		return nil, fmt.Errorf("%s: %d bytes, want at most %d", name, len(data), ScenarioBytesMax)
	}
	var file scenarioFile
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s := &Scenario{Lease: file.Lease, Start: file.Start, Transaction: file.Transaction == nil || *file.Transaction, Wait: file.Wait, Gateway: file.Gateway, Events: map[string]*Event{}}
	if s.Wait == 0 {
		s.Wait = waitDefault
	}
	if s.Gateway == "" {
		s.Gateway = GatewayKeys
	}
	var mistakes []error
	fail := func(format string, args ...any) { mistakes = append(mistakes, fmt.Errorf(name+": "+format, args...)) }
	if s.Lease <= 0 {
		fail("lease: want the lease of the route, such as 5s")
	}
	if s.Wait <= s.Lease {
		fail("wait: %v, want more than the lease of %v", s.Wait, s.Lease)
	}
	if !slices.Contains(gatewayKinds, s.Gateway) {
		fail("gateway: %q, want one of %v", s.Gateway, gatewayKinds)
	}
	for event, read := range file.Events {
		if e := s.addEvent(event, &read); !slices.Contains(outcomesOfWork, e.Outcome) {
			fail("events.%s.outcome: %q, want one of %s", event, e.Outcome, strings.Join(outcomesOfWork, ", "))
		}
	}
	if len(file.Steps) == 0 {
		fail("steps: want at least one")
	}
	for i := range file.Steps {
		if err := s.addStep(&file.Steps[i]); err != nil {
			fail("steps[%d]: %w", i, err)
		}
	}
	slices.SortFunc(mistakes, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return s, errors.Join(mistakes...)
}

// outcomesOfWork are the outcomes that an event of a scenario may expect.
var outcomesOfWork = []string{"completed", "failed", "rejected", "submitted"}

func (s *Scenario) addEvent(name string, read *eventFile) *Event {
	e := &Event{Name: name, Value: []byte(read.Value), Outcome: read.Outcome, Result: read.Result}
	for key, value := range read.Headers {
		e.Headers = append(e.Headers, dedup.Header{Key: key, Value: []byte(value)})
	}
	slices.SortFunc(e.Headers, func(a, b dedup.Header) int { return strings.Compare(a.Key, b.Key) })
	s.Events[name] = e
	return e
}

func (s *Scenario) addStep(read *stepFile) error {
	step := Step{Kind: StepKind(read.Do), Event: s.Events[read.Event], Count: read.Count, For: read.For}
	counts := step.Kind == StepDispatch || step.Kind == StepAttempts || step.Kind == StepCrash
	switch {
	case !slices.Contains(stepKinds, step.Kind):
		return fmt.Errorf("do: %q, want one of %v", read.Do, stepKinds)
	case step.Event == nil:
		return fmt.Errorf("event: %q is not one of events", read.Event)
	case read.Count != 0 && !counts:
		return fmt.Errorf("count: step %s has no count", step.Kind)
	case read.Count < 0 || read.Count > countMax:
		return fmt.Errorf("count: %d, want 1 to %d", read.Count, countMax)
	case (read.For > 0) != (step.Kind == StepIdle):
		return errors.New("for: want a duration in step idle, and only there")
	case read.Next != "" && step.Kind != StepSupersede:
		return errors.New("next: only step supersede has a next attempt")
	case read.Next != "" && s.Events[read.Next] == nil:
		return fmt.Errorf("next: %q is not one of events", read.Next)
	case step.Kind == StepRefuse && !s.Start:
		return errors.New("do: refuse needs `start: true`, because only an executor that asks can be refused")
	}
	step.Next = s.Events[read.Next]
	step.Count = max(step.Count, 1)
	s.Steps = append(s.Steps, step)
	return nil
}

// has reports whether the scenario has a step of this kind.
func (s *Scenario) has(kind StepKind) bool {
	return slices.ContainsFunc(s.Steps, func(step Step) bool { return step.Kind == kind })
}
