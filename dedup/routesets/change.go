package routesets

import "oncebus/dedup/rules"

// Kind says what it takes to make a change.
type Kind uint8

// The kinds, from the least to the most.
const (
	// Harmless: no event is judged otherwise because of it but by a policy of its route.
	Harmless Kind = iota
	// Confirm: some events are judged otherwise than before. An operator says so with --yes.
	Confirm
	// Refused: keys that are stored would no longer be found. Other steps do it.
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
	Field string `json:"field,omitempty"` // "" for a whole route
	// What says what differs, Why what that means for events, and Steps what does it if
	// apply refuses.
	What  string   `json:"what"`
	Why   string   `json:"why,omitempty"`
	Steps []string `json:"steps,omitempty"`
	// Promotes is the shadow's namespace if the change puts a shadow in force. Only the
	// command promote makes it.
	Promotes string `json:"promotes,omitempty"`
}

// Worst returns the highest kind of changes; Harmless for none.
func Worst(changes []Change) (worst Kind) {
	for _, c := range changes {
		worst = max(worst, c.Kind)
	}
	return worst
}

// History is what an app had before the set in force.
type History struct {
	// Former are the older sets, the newest first.
	Former []*rules.Routes
	// Namespaces are those that rows were ever stored in, by name.
	Namespaces map[string]Namespace
}

// Namespace is what is pinned for the rows of a namespace.
type Namespace struct{ KeyRule, Mode string }

// former returns the newest former route of a name; nil for none.
func (h *History) former(name string) *rules.Route {
	for _, set := range h.Former {
		if r := set.Route(name); r != nil {
			return r
		}
	}
	return nil
}

// wasInput reports whether a former set read a topic.
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
