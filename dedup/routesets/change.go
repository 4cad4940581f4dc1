package routesets

import "oncebus/dedup/rules"

// Kind says what it takes to put a change into force.
type Kind uint8

// The kinds, from the one that takes the least to the one that takes the most.
const (
	// Harmless: no event is judged in another way, except by a policy of its route.
	Harmless Kind = iota
	// Confirm: some events are judged in another way than before. An operator confirms the change with --yes.
	Confirm
	// Refused: a task would no longer find keys that are stored. Steps makes the change instead.
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
	// What says what differs, Why what the difference means for events, and Steps what makes the change if
	// apply refuses it.
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

// History is what an app had before the route set that is in force.
type History struct {
	// Former are the older sets, the newest first.
	Former []*rules.Routes
	// Namespaces are all namespaces in which the app ever stored rows, by name.
	Namespaces map[string]Namespace
}

// Namespace is what the app has pinned for the rows of a namespace.
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
