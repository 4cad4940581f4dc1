package routesets

import "oncebus/dedup/rules"

// Kind says what an operator must do to put a change into force.
type Kind uint8

// The kinds, from the kind that demands the least of the operator to the kind that demands the most.
const (
	// Harmless: no verdict on an event changes, except where a policy of its route says so.
	Harmless Kind = iota
	// Confirm: the verdicts on some events change. An operator confirms the change with --yes.
	Confirm
	// Refused: a task would no longer find keys that are stored. The operator takes the steps in Change.Steps
	// instead.
	Refused
)

var kindNames = [...]string{"harmless", "confirm", "refused"}

// String returns the kind's name in the output of 'oncebus plan'.
func (k Kind) String() string { return kindNames[k] }

// MarshalText implements encoding.TextMarshaler.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Kind) UnmarshalText(text []byte) error {
	for i, name := range kindNames {
		if name == string(text) {
			*k = Kind(i)
		}
	}
	return nil
}

// A Change is one difference between two route sets.
type Change struct {
	Kind  Kind   `json:"kind"`
	Route string `json:"route"`
	Field string `json:"field,omitempty"` // "" for a change of the whole route
	// What says what differs, Why what the difference means for events, and Steps which steps an operator takes
	// instead if apply refuses the change.
	What  string   `json:"what"`
	Why   string   `json:"why,omitempty"`
	Steps []string `json:"steps,omitempty"`
	// Promotes is the shadow's namespace if the change puts a shadow into force. Only the command promote
	// makes such a change.
	Promotes string `json:"promotes,omitempty"`
}

// Worst returns the highest kind of the changes; Harmless for none.
func Worst(changes []Change) (worst Kind) {
	for _, c := range changes {
		worst = max(worst, c.Kind)
	}
	return worst
}

// History has the route sets and namespaces that an app had before the route set that is in force.
type History struct {
	// Former are the older sets, the newest first.
	Former []*rules.Routes
	// Namespaces are all namespaces in which the app ever stored rows, by name.
	Namespaces map[string]Namespace
}

// Namespace has the settings that are fixed for a namespace because its rows are stored with them.
type Namespace struct{ KeyRule, Mode string }

// former returns the newest route with that name in an older set; nil for none.
func (h *History) former(name string) *rules.Route {
	for _, set := range h.Former {
		if r := set.Route(name); r != nil {
			return r
		}
	}
	return nil
}

// wasInput reports whether an older set read a topic.
func (h *History) wasInput(topic string) bool {
	for _, set := range h.Former {
		if inputsOf(set)[topic] {
			return true
		}
	}
	return false
}

// inputsOf returns the topics that a set reads.
func inputsOf(set *rules.Routes) map[string]bool {
	routed, prepartitioned := set.Inputs()
	all := map[string]bool{}
	for _, topic := range append(routed, prepartitioned...) {
		all[topic] = true
	}
	return all
}
