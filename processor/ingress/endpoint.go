package ingress

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// endpoint is a path that receives the events of one topic. All its routes have equal HTTP settings, except for
// the settings that the server uses only after it has found the route of an event.
type endpoint struct {
	*rules.HTTP // of the first route

	routes  []*rules.Route
	allow   string // value of the header Allow
	carried []carriedHeader
	once    map[string]bool // names of the carried headers that a rule reads, and that may therefore come only once
	body    bodyRules
	lookup  bodyRules      // of a GET for an outcome
	follow  bodyRules      // of a GET for all outcomes
	token   *authenticator // verifies Meta's handshake; nil for an endpoint without it
	rate    *rateLimiter
	sources sourceLimiters
	tenants *rateLimiters[[2]string] // by route name and tenant
}

// carriedHeader is a request header that becomes a record header.
type carriedHeader struct {
	from string // canonical, as net/http spells it
	to   string // lower case
}

// carriedHeaders returns the headers that requests with these settings carry into the record.
func carriedHeaders(h *rules.HTTP) []carriedHeader {
	names := slices.Concat(rules.CarriedHeaders[:], h.Headers)
	all := make([]carriedHeader, 0, len(names))
	for _, name := range names {
		all = append(all, carriedHeader{http.CanonicalHeaderKey(name), name})
	}
	return all
}

// allowed returns the methods of the endpoint: the methods of events, and GET and HEAD where a handshake or a
// request for an outcome uses them.
func allowed(h *rules.HTTP) []string {
	if h.Handshake.Kind == rules.MetaHandshake || h.Answer != nil {
		return append([]string{allowAsking}, h.Methods...)
	}
	return h.Methods
}

// outcomeEndpoint is a path that receives the outcomes of an endpoint's routes.
type outcomeEndpoint struct {
	routes []*rules.Route
	http   *rules.HTTP // of the first route
	body   bodyRules
}

// bodyRules says which bodies a path accepts.
type bodyRules struct {
	auth       authenticator
	maxBytes   int
	tooLarge   string // tells the sender what to do about a body that is too large; "" for nothing
	decompress rules.Decompress
	usage      endpointUsage
}

// outcomeMaxBytes is the lowest limit of the body of an outcome, however small the events are. It is larger
// than every result_limit: a result over result_limit is not stored, but the server must still accept the
// outcome itself.
const outcomeMaxBytes = 1 << 20

func outcomeLimit(h *rules.HTTP) int { return max(h.MaxBody, outcomeMaxBytes) }

// endpoints has all paths that the routes name.
type endpoints struct {
	events   map[string]*endpoint
	outcomes map[string]*outcomeEndpoint
	followed map[string]*endpoint // by the path that serves their server-sent events
	keyrings map[string]*keyring  // by the secret's name
}

// newEndpoints builds the endpoints of the routes and reads the secrets. The error contains every mistake, each
// with the names of the routes that it concerns.
func newEndpoints(cfg Config, routes *rules.Routes) (*endpoints, error) {
	es := &endpoints{events: map[string]*endpoint{}, outcomes: map[string]*outcomeEndpoint{}, followed: map[string]*endpoint{}, keyrings: map[string]*keyring{}}
	var errs []error
	users := map[string][]string{} // names of the routes by secret
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
		if name := h.Handshake.VerifyToken; name != "" && !slices.Contains(users[name], r.Name) {
			users[name] = append(users[name], r.Name)
		}
		if err := es.add(cfg, r, shortestWindow(h.Path, routes)); err != nil {
			errs = append(errs, fmt.Errorf("route %s: http.signature: %w", r.Name, err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(es.keyrings)) {
		if err := es.keyrings[name].load(); err != nil {
			errs = append(errs, fmt.Errorf("route %s: secret %s: %w", strings.Join(users[name], ", "), name, err))
		}
	}
	return es, errors.Join(errs...)
}

// add adds a route to its endpoints and creates the endpoints that are missing. window is the shortest window
// of all routes with the path of r.
func (es *endpoints) add(cfg Config, r *rules.Route, window time.Duration) error {
	var errs []error
	h := r.HTTP
	e := es.events[h.Path]
	if e == nil {
		auth, err := es.authenticator(cfg, &h.Signature, window)
		errs = append(errs, err)
		e = &endpoint{
			HTTP: h, allow: strings.Join(allowed(h), ", "), carried: carriedHeaders(h), once: map[string]bool{},
			body: bodyRules{auth: auth, maxBytes: h.MaxBody, decompress: h.Decompress, usage: endpointUsage{max: int64(h.MaxRequests)}},
			rate: newRateLimiter(h.Rate), sources: sourceLimiters{h.SourceRate, newRateLimiters[netip.Addr]()}, tenants: newRateLimiters[[2]string](),
		}
		if (h.Answer != nil || h.Events != nil) && auth.signs && auth.keys != nil {
			auth.keys.asked = append(auth.keys.asked, h.Path)
		}
		e.lookup = bodyRules{auth: auth, usage: endpointUsage{max: int64(h.MaxRequests)}}
		if h.Events != nil {
			e.follow = bodyRules{auth: auth, usage: endpointUsage{max: int64(h.Events.MaxConnections)}}
			es.followed[h.Path+rules.EventsSuffix] = e
		}
		if h.Handshake.Kind == rules.MetaHandshake {
			token, err := es.authenticator(cfg, metaToken(h), window)
			errs, e.token = append(errs, err), &token
		}
		es.events[h.Path] = e
	}
	for _, name := range r.ReadsHeaders() {
		e.once[name] = true
	}
	e.routes = append(e.routes, r)
	if h.Outcomes == nil {
		return errors.Join(errs...)
	}
	path := h.Path + rules.OutcomesSuffix
	o := es.outcomes[path]
	if o == nil {
		auth, err := es.authenticator(cfg, h.Outcomes, window)
		errs = append(errs, err)
		o = &outcomeEndpoint{http: h, body: bodyRules{auth: auth, maxBytes: outcomeLimit(h), tooLarge: sendShorterResult, usage: endpointUsage{max: int64(h.MaxRequests)}}}
		es.outcomes[path] = o
	}
	o.routes = append(o.routes, r)
	return errors.Join(errs...)
}

// authenticator builds the authenticator of a signature. Signatures that name the same secret share a keyring,
// so that the files of the secret are read once.
func (es *endpoints) authenticator(cfg Config, s *rules.Signature, window time.Duration) (authenticator, error) {
	v, err := newVerifier(s, window)
	auth := authenticator{verifier: v, challenge: challenge(s), signs: s.Signs()}
	if err != nil || s.Scheme == rules.NoSignature {
		return auth, err
	}
	auth.keys = es.keyrings[s.Secret]
	if auth.keys == nil {
		auth.keys = newKeyring(cfg.Secrets, s.Secret)
		es.keyrings[s.Secret] = auth.keys
	}
	auth.keys.checks = append(auth.keys.checks, v.CheckSecret)
	return auth, nil
}

// shortestWindow returns the shortest window of all routes with this path.
func shortestWindow(path string, routes *rules.Routes) time.Duration {
	shortest := time.Duration(math.MaxInt64)
	for _, r := range routes.Routes {
		if r.HTTP != nil && r.HTTP.Path == path {
			shortest = min(shortest, r.Window)
		}
	}
	return shortest
}

// routeOf returns r if this endpoint serves it. Otherwise it returns false and the first route of the endpoint,
// whose settings then apply to the request.
func (e *endpoint) routeOf(r *rules.Route) (*rules.Route, bool) {
	if r != nil && r.HTTP != nil && r.HTTP.Path == e.Path {
		return r, true
	}
	return e.routes[0], false
}

// recordHeaders returns the headers of the Kafka record for the headers of a request. The error is the detail
// of the problem.
func (e *endpoint) recordHeaders(in http.Header) ([]dedup.Header, error) {
	var headers []dedup.Header
	for _, c := range e.carried {
		values := in[c.from]
		if len(values) == 0 {
			continue
		}
		value := strings.Join(values, ", ")
		if c.from != headerIdempotency && e.once[c.to] && len(values) > 1 {
			return nil, fmt.Errorf("header %s: it came %d times, want one", c.from, len(values))
		}
		if c.from == headerIdempotency {
			read := readIdempotencyKey
			if e.Idempotency != nil {
				read = readStringKey
			}
			var err error
			if value, err = read(values); err != nil {
				return nil, err
			}
			if value == "" {
				continue // all requests with an empty header would share one key
			}
		}
		headers = append(headers, dedup.Header{Key: c.to, Value: []byte(value)})
	}
	return appendEventAttributes(headers, in)
}
