package rules

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"oncebus/dedup"
)

// OfKey returns what Derive would return for an event of the route with this dedup key. There is one result for
// each kind of the route's sources, because the state digest depends on the kind. Digest and Key are set.
// Routing is zero if it depends on more than the key, which is so for the source order.
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

// OfID returns what Derive would return for an event of the route with this id, or with these parts of a
// composite id, in the order of the fields. There is one result for each source that can yield such an id, and
// for each spelling of a part as a number. On a route with a tenant the first id is the name of the tenant. If
// the tenant is also a part of the key, no further id is given for that part. The error says why the route has
// no such key.
func (d *Deriver) OfID(r *Route, ids ...string) ([]Derived, error) {
	size := 0
	for _, id := range ids {
		if size += len(id); size > r.MaxKeyBytes {
			return nil, fmt.Errorf("the id: %s", reasonKeyLimit(size, r.MaxKeyBytes))
		}
	}
	var all []Derived
	var sources []string
	seen := map[dedup.Digest]bool{}
	tenant, rest := "", ids
	if r.Tenant != nil && len(ids) > 0 {
		tenant, rest = ids[0], ids[1:]
	}
	for i := range r.Keys {
		s := &r.Keys[i]
		sources = append(sources, s.text)
		makes := kinds[s.kind].makes
		parts := s.idsOf(tenant, rest)
		if makes != kindID && makes != kindComposite || len(s.fields) != len(parts) {
			continue
		}
		for numbers := range 1 << len(parts) { // one bit for each id that is a number
			text, ok := d.idText(r, s, tenant, parts, numbers)
			if !ok {
				continue
			}
			out := Derived{Route: r, Key: d.key(r.Secret, text), Source: s.text, Tenant: tenant}
			out.Digest = s.digest(&out.Key)
			if out.Routing = out.Digest; !seen[out.Digest] {
				seen[out.Digest] = true
				all = append(all, out)
			}
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, noKeyOf(r, len(ids), sources)
}

// noKeyOf returns the error of OfID if no source of the route makes a key of that many ids.
func noKeyOf(r *Route, ids int, sources []string) error {
	what := "that one id"
	if ids != 1 {
		what = fmt.Sprintf("these %d ids", ids)
	}
	if r.Tenant != nil {
		what += ", of which the first is the tenant"
	}
	return fmt.Errorf("route %s has no key of %s: its sources are %s; pass the event, or its key of 64 hexadecimal digits", r.Name, what, strings.Join(sources, "; "))
}

// idsOf returns the ids for all fields of a source: the given ids, with the tenant where a field is the
// tenant.
func (s *Source) idsOf(tenant string, given []string) (ids []string) {
	if !s.readsPart(ofTenant) {
		return given
	}
	for i := range s.fields {
		switch {
		case s.fields[i].part == ofTenant:
			ids = append(ids, tenant)
		case len(given) > 0:
			ids, given = append(ids, given[0]), given[1:]
		}
	}
	return append(ids, given...)
}

// idText returns the bytes that a source hashes for these ids; false if the source cannot have them. The bits
// of numbers say which ids are JSON numbers.
func (d *Deriver) idText(r *Route, s *Source, tenant string, ids []string, numbers int) ([]byte, bool) {
	d.begin(&Input{Topic: r.Topics[0]})
	d.tenant = []byte(tenant)
	for n, id := range ids {
		number := numbers>>n&1 == 1
		if number && (s.fields[n].part != ofPayload || s.kind != sourceField && s.kind != sourceComposite && s.kind != sourceCloudEvent || !isNumber(id)) {
			return nil, false
		}
		text, st := d.finish(&s.fields[n], scalar{text: []byte(id), number: number})
		switch {
		case st != found:
			return nil, false
		case kinds[s.kind].makes == kindID:
			return d.scoped(r, text.text), true
		}
		d.buf = s.appendID(d.buf, n, text.text)
	}
	return d.scoped(r, d.buf), true
}

// isNumber reports whether s is a JSON number.
func isNumber(s string) bool {
	v := jsontext.Value(s)
	return v.Kind() == '0' && v.IsValid()
}
