package ingress

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/ingress/signature"
)

// door is a path where the events of a topic come in. Its routes differ only in
// what is known after one of them took the event.
type door struct {
	*rules.HTTP // the first route's

	routes  []*rules.Route
	allow   string // for the header Allow
	carried []carried
	intake  intake
	rate    *limiter
	sources *sources
}

// carried is a request header that becomes a record header.
type carried struct {
	from string // canonical, as requests have it
	to   string // lower case
}

func carriedOf(h *rules.HTTP) []carried {
	names := slices.Concat(rules.CarriedHeaders[:], h.Headers)
	all := make([]carried, 0, len(names))
	for _, name := range names {
		all = append(all, carried{http.CanonicalHeaderKey(name), name})
	}
	return all
}

// outcomeDoor is a path where the outcomes of a door's routes come in.
type outcomeDoor struct {
	routes []*rules.Route
	http   *rules.HTTP // the first route's
	intake intake
}

// intake is how bodies come in at a path.
type intake struct {
	gate   gate
	most   int    // bytes
	larger string // what to do about a larger one, in the problem's detail; "" for nothing
}

// outcomeBody is how large outcomes may be at least, in bytes, however small
// the events are: more than any result_limit. Longer results are not kept, but
// that the work was done must come in.
const outcomeBody = 1 << 20

func outcomeLimit(h *rules.HTTP) int { return max(h.MaxBody, outcomeBody) }

// gate checks signatures.
type gate struct {
	verifier  *signature.Verifier
	keys      *keyring // nil if nothing is signed
	challenge string   // for the header WWW-Authenticate
}

// doors is every path that the routes name.
type doors struct {
	events   map[string]*door
	outcomes map[string]*outcomeDoor
	keyrings map[string]*keyring
}

// newDoors makes the doors of the routes and reads the secrets. The error has
// every mistake, with the route's name.
func newDoors(cfg Config, routes *rules.Routes) (*doors, error) {
	ds := &doors{events: map[string]*door{}, outcomes: map[string]*outcomeDoor{}, keyrings: map[string]*keyring{}}
	var errs []error
	users := map[string][]string{} // of secrets: routes
	for _, r := range routes.Routes {
		h := r.HTTP
		if h == nil {
			continue
		}
		for _, s := range []*rules.Signature{&h.Signature, h.Outcomes} {
			if s != nil && s.Scheme != rules.NoSignature && !slices.Contains(users[s.Secret], r.Name) {
				users[s.Secret] = append(users[s.Secret], r.Name)
			}
		}
		errs = append(errs, ds.add(cfg, r, shortestWindow(h.Path, routes)))
	}
	for _, name := range slices.Sorted(maps.Keys(ds.keyrings)) {
		if err := ds.keyrings[name].load(); err != nil {
			errs = append(errs, fmt.Errorf("route %s: secret %s: %w", strings.Join(users[name], ", "), name, err))
		}
	}
	return ds, errors.Join(errs...)
}

// add makes the doors of a route, unless a route before has the same. window is
// the shortest of the routes there.
func (ds *doors) add(cfg Config, r *rules.Route, window time.Duration) error {
	var errs []error
	h := r.HTTP
	d := ds.events[h.Path]
	if d == nil {
		g, err := ds.gate(cfg, &h.Signature, window)
		errs = append(errs, err)
		d = &door{
			HTTP: h, allow: strings.Join(h.Methods, ", "), carried: carriedOf(h),
			intake: intake{gate: g, most: h.MaxBody}, rate: newLimiter(h.Rate), sources: newSources(h.SourceRate),
		}
		ds.events[h.Path] = d
	}
	d.routes = append(d.routes, r)
	if h.Outcomes != nil {
		path := h.Path + rules.OutcomesSuffix
		o := ds.outcomes[path]
		if o == nil {
			g, err := ds.gate(cfg, h.Outcomes, window)
			errs = append(errs, err)
			o = &outcomeDoor{http: h, intake: intake{gate: g, most: outcomeLimit(h), larger: shorterOutcome}}
			ds.outcomes[path] = o
		}
		o.routes = append(o.routes, r)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("route %s: http.signature: %w", r.Name, err)
	}
	return nil
}

// gate makes the gate of a signature. Gates with one secret share its files.
func (ds *doors) gate(cfg Config, s *rules.Signature, window time.Duration) (gate, error) {
	v, err := newVerifier(s, window)
	g := gate{verifier: v, challenge: challenge(s)}
	if err != nil || s.Scheme == rules.NoSignature {
		return g, err
	}
	g.keys = ds.keyrings[s.Secret]
	if g.keys == nil {
		g.keys = newKeyring(cfg.Secrets, s.Secret)
		ds.keyrings[s.Secret] = g.keys
	}
	g.keys.check = append(g.keys.check, v.CheckSecret)
	return g, nil
}

// shortestWindow is that of the routes with the path.
func shortestWindow(path string, routes *rules.Routes) time.Duration {
	shortest := time.Duration(math.MaxInt64)
	for _, r := range routes.Routes {
		if r.HTTP != nil && r.HTTP.Path == path {
			shortest = min(shortest, r.Window)
		}
	}
	return shortest
}

// aheadOf is how far a timestamp may be ahead of the clock: a request that is
// signed in the future is good for that much longer, and while it is good the
// first of its copies has to count.
func aheadOf(s *rules.Signature, window time.Duration) time.Duration {
	return min(s.Tolerance, window-s.Tolerance)
}

func newVerifier(s *rules.Signature, window time.Duration) (*signature.Verifier, error) {
	return signature.New(signature.Config{
		Scheme: signature.Scheme(s.Scheme.String()), Tolerance: s.Tolerance, Ahead: aheadOf(s, window),
		Header: s.Header, Algorithm: s.Algorithm, Encoding: s.Encoding, Prefix: s.Prefix, TimestampHeader: s.TimestampHeader, Separator: s.Separator,
	})
}

// challenge is what a refused request is told to bring (RFC 9110, section 11.6.1).
func challenge(s *rules.Signature) string {
	if s.Scheme == rules.Bearer {
		return "Bearer"
	}
	return fmt.Sprintf("Signature scheme=%q", s.Scheme)
}

// verify returns why a request must not come in.
func (g *gate) verify(header http.Header, body []byte, now time.Time) error {
	var secrets [][]byte
	if g.keys != nil {
		secrets = g.keys.secrets()
	}
	return g.verifier.Verify(secrets, header, body, now)
}

// refusals are why signatures are refused, for the operator: the sender learns
// no more than that it was.
var refusals = []struct {
	err    error
	reason string
}{
	{signature.ErrMissing, "missing"}, {signature.ErrMalformed, "malformed"}, {signature.ErrStale, "stale"}, {signature.ErrWrong, "wrong"},
}

func refusal(err error) string {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.reason
		}
	}
	return "secret" // ErrNoSecret, which no keyring lets happen
}

// of returns the route itself if the event came in at its door.
func (d *door) of(r *rules.Route) (*rules.Route, bool) {
	if r != nil && r.HTTP != nil && r.HTTP.Path == d.Path {
		return r, true
	}
	return d.routes[0], false
}

// headers are the record headers that a request brings. The error is for the
// sender.
func (d *door) headers(in http.Header) ([]dedup.Header, error) {
	var headers []dedup.Header
	for _, c := range d.carried {
		values := in[c.from]
		if len(values) == 0 {
			continue
		}
		value := strings.Join(values, ", ")
		if c.from == headerIdempotency {
			var err error
			if value, err = readIdempotencyKey(values); err != nil {
				return nil, err
			}
			if value == "" {
				continue // which is no key, and must not be one that all such requests share
			}
		}
		headers = append(headers, dedup.Header{Key: c.to, Value: []byte(value)})
	}
	return headers, nil
}
