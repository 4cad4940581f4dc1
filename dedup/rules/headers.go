package rules

import (
	"slices"

	"go.yaml.in/yaml/v4"
)

// Headers says which oncebus headers a unique event of a plain route gets. Every other output record has all
// three headers.
type Headers struct{ Route, Key, Verdict bool }

var headerNames = [...]string{"route", "key", "verdict"}

// Names returns the names of the headers, as in the routes file.
func (h Headers) Names() (names []string) {
	for i, has := range [...]bool{h.Route, h.Key, h.Verdict} {
		if has {
			names = append(names, headerNames[i])
		}
	}
	return names
}

// headers reads the route's field headers: a list of some of these names, each at most once.
func (d *decoder) headers(n *yaml.Node, at string) (h Headers) {
	var seen []int
	d.list(n, at, func(n *yaml.Node, at string) {
		name := d.choice(n, at, headerNames[:]...)
		if name >= 0 && slices.Contains(seen, name) {
			d.fail(n, at, "%s is named twice", headerNames[name])
		}
		seen = append(seen, name)
	})
	return Headers{Route: slices.Contains(seen, 0), Key: slices.Contains(seen, 1), Verdict: slices.Contains(seen, 2)}
}
