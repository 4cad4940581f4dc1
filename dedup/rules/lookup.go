package rules

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"oncebus/dedup"
)

// OfKey returns what Derive returns for an event of the route with this dedup key: one
// result for each kind of its sources, because the state digest depends on it. Digest
// and Key are set. Routing is zero where it depends on more than the key, as for an
// order.
func (r *Route) OfKey(key [32]byte) []Derived {
	var all []Derived
	seen := map[keyKind]bool{}
	for i := range r.Keys {
		makes := kinds[r.Keys[i].kind].makes
		if seen[makes] {
			continue
		}
		seen[makes] = true
		out := Derived{Route: r, Key: key, Digest: r.Keys[i].digest(&key), Source: r.Keys[i].text}
		if makes != kindOrder {
			out.Routing = out.Digest
		}
		all = append(all, out)
	}
	return all
}

// OfID returns what Derive returns for an event of the route with this id: one result
// for each source that yields an id, and for its spelling as a number. The error says
// why the route has no key of one id.
func (d *Deriver) OfID(r *Route, id string) ([]Derived, error) {
	if len(id) > r.MaxKeyBytes {
		return nil, fmt.Errorf("the id: %s", reasonKeyLimit(len(id), r.MaxKeyBytes))
	}
	var all []Derived
	var sources []string
	seen := map[dedup.Digest]bool{}
	for i := range r.Keys {
		s := &r.Keys[i]
		sources = append(sources, s.text)
		if kinds[s.kind].makes != kindID {
			continue
		}
		for _, number := range []bool{false, true} {
			if number && (s.kind != sourceField || !isNumber(id)) {
				continue
			}
			d.begin(&Input{Topic: r.Topics[0]})
			text, st := d.finish(&s.fields[0], scalar{text: []byte(id), number: number})
			if st != found {
				continue
			}
			out := Derived{Route: r, Key: d.key(r.Secret, text.text), Source: s.text}
			out.Digest = s.digest(&out.Key)
			if out.Routing = out.Digest; !seen[out.Digest] {
				seen[out.Digest] = true
				all = append(all, out)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("route %s has no key of that one id: its sources are %s; pass the event, or its key of 64 hexadecimal digits",
			r.Name, strings.Join(sources, "; "))
	}
	return all, nil
}

// isNumber reports whether s is a JSON number.
func isNumber(s string) bool {
	v := jsontext.Value(s)
	return v.Kind() == '0' && v.IsValid()
}
