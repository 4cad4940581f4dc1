package rules

import (
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Defaults of an http part's optional fields.
const (
	DefaultTolerance = 5 * time.Minute
	DefaultTimeout   = 10 * time.Second
	DefaultMaxBody   = 1 << 20
)

// HTTP is the endpoint of a route at the ingress.
type HTTP struct {
	Path     string   // clean, without a slash at its end
	Provider string   // the preset from which the route takes the fields that it leaves out; "" for none
	Methods  []string // of POST, PUT and PATCH
	Topic    string   // the input topic of the route to which the ingress writes the events
	// Headers are the request headers that become record headers in addition to
	// CarriedHeaders, in lower case.
	Headers []string

	Signature Signature
	Handshake Handshake
	// AllowedSources are the networks of the senders; nil: any.
	AllowedSources []netip.Prefix
	Decompress     Decompress
	// Form: if the media type of a record says that it is a form, paths can read the record as a JSON object of
	// the form's fields.
	Form bool
	// Outcomes is the signature of the outcomes at Path + OutcomesSuffix; nil:
	// there is no such path.
	Outcomes *Signature

	Verdict         bool          // the response has the verdict; else it only confirms that the event is in Kafka
	Answer          *Answer       // the response has the outcome of the operation (Verdict is then true); nil: only a duplicate may get the outcome
	Events          *Events       // senders follow their outcomes at Path + EventsSuffix; nil: they cannot
	Idempotency     *Idempotency  // the ingress keeps to the draft of Idempotency-Key; nil: it reads the header leniently
	Timeout         time.Duration // time limit of a response
	AcceptOnTimeout bool          // if the verdict does not come in time, the response is 202 and not 504
	WaitForKafka    bool          // while Kafka is unavailable, requests wait up to Timeout
	Keep            bool          // while Kafka is unavailable, events wait on the ingress' disk, and their senders get 202

	MaxBody int // bytes
	// MaxRequests is how many requests with events may be in flight, and also how many requests with outcomes;
	// 0: the ingress divides its own limit among the paths.
	MaxRequests int
	Rate        Rate // requests of the route
	SourceRate  Rate // requests of one client address
	RequireKey  bool // the ingress rejects a request without a key

	// Responses are the responses that the file sets. For every other verdict the ingress has a default.
	Responses map[dedup.Verdict]Response

	answerTimeout time.Duration // as in the file; 0: the file has none
}

// KeyHeader returns the header from which the key of an HTTP request is made, if the key depends on that header
// alone; "" if the route reads several headers, or any other part of a request.
func (r *Route) KeyHeader() string {
	name := ""
	for i := range r.Keys {
		s := &r.Keys[i]
		switch carried := kinds[s.kind].carried; {
		case carried == partRecordKey: // no request has a record key
		case carried != partHeader || name != "":
			return ""
		default:
			name = s.header
		}
	}
	return name
}

// OutcomesSuffix is appended to the path of a route: to the resulting path executors send outcomes.
const OutcomesSuffix = "/outcomes"

// Rate is a limit of requests; the zero value is no limit.
type Rate struct {
	PerSecond float64
	Burst     int // how many requests may come at once after an idle time
}

// Bounds of an http part's numbers.
const (
	maxBodyMax = 64 << 20 // bytes; larger than any broker accepts by default
	rateMax    = 1_000_000
	// requestsMax is the highest ONCEBUS_INGRESS_MAX_REQUESTS.
	requestsMax = 1 << 20
)

// httpMethods are the choices of methods.
var httpMethods = [...]string{"POST", "PUT", "PATCH"}

var answerNames = [...]string{"verdict", "async", "outcome"}

var kafkaUnavailableNames = [...]string{"reject", "wait", "keep"}

var timeoutNames = [...]string{"504", "202"}

// httpFields is the format of a route's http part.
var httpFields = []fieldOf[HTTP]{
	{"path", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Path, _ = d.text(n, at) }},
	{"methods", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Methods = d.methods(n, at) }},
	{"topic", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Topic, _ = d.text(n, at) }},
	{"headers", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Headers = d.carried(n, at) }},
	{"provider", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Provider = d.providerName(n, at) }},
	{"signature", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Signature = d.signature(n, at) }},
	{"handshake", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Handshake = d.handshake(n, at) }},
	{"allowed_sources", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.AllowedSources = d.networks(n, at) }},
	{"decompress", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Decompress = d.decompress(n, at) }},
	{"form", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Form, _ = d.boolean(n, at) }},
	{"answer", func(d *decoder, h *HTTP, n *yaml.Node, at string) {
		choice := d.choice(n, at, answerNames[:]...)
		if h.Verdict = choice != 1; choice == 2 {
			h.Answer = &Answer{Timeout: DefaultAnswerTimeout}
		}
	}},
	{"answer_timeout", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.answerTimeout = d.duration(n, at, time.Second) }},
	{"idempotency_key", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Idempotency = d.idempotency(n, at) }},
	{"events", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Events = d.followers(n, at) }},
	{"timeout", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Timeout = d.duration(n, at, time.Millisecond) }},
	{"on_timeout", func(d *decoder, h *HTTP, n *yaml.Node, at string) {
		h.AcceptOnTimeout = d.choice(n, at, timeoutNames[:]...) == 1
	}},
	{"on_kafka_unavailable", func(d *decoder, h *HTTP, n *yaml.Node, at string) {
		choice := d.choice(n, at, kafkaUnavailableNames[:]...)
		h.WaitForKafka, h.Keep = choice == 1, choice == 2
	}},
	{"max_body", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.MaxBody = d.integer(n, at, 1, maxBodyMax) }},
	{"max_requests", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.MaxRequests = d.integer(n, at, 1, requestsMax) }},
	{"rate", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Rate = d.rate(n, at) }},
	{"rate_per_source", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.SourceRate = d.rate(n, at) }},
	{"require_key", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.RequireKey, _ = d.boolean(n, at) }},
	{"outcomes", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Outcomes = d.httpOutcomes(n, at) }},
	{"responses", func(d *decoder, h *HTTP, n *yaml.Node, at string) {
		h.Responses = map[dedup.Verdict]Response{}
		decodeObject(d, n, at, &h.Responses, responsesFields)
	}},
}

var outcomesFields = []fieldOf[Signature]{
	{"signature", func(d *decoder, s *Signature, n *yaml.Node, at string) { *s = d.signature(n, at) }},
}

var rateFields = []fieldOf[Rate]{
	{"per_second", func(d *decoder, r *Rate, n *yaml.Node, at string) { r.PerSecond = d.perSecond(n, at) }},
	{"burst", func(d *decoder, r *Rate, n *yaml.Node, at string) { r.Burst = d.integer(n, at, 1, rateMax) }},
}

// http reads a route's http part. It returns nil if the part is not an object.
func (d *decoder) http(n *yaml.Node, at string) *HTTP {
	h := &HTTP{Methods: []string{"POST"}, Verdict: true, Timeout: DefaultTimeout, MaxBody: DefaultMaxBody}
	nodes := decodeObject(d, n, at, h, httpFields)
	if nodes == nil {
		return nil
	}
	d.require(n, at, nodes, "path", "signature")
	if nodes["on_timeout"] != nil && !h.Verdict {
		d.fail(nodes["on_timeout"], join(at, "on_timeout"), "answer: async waits for no verdict: leave on_timeout out")
	}
	d.completeAnswer(h, at, nodes)
	return h
}

// completeHTTP sets the defaults that depend on other fields of the route.
func (r *draft) completeHTTP() {
	h := r.HTTP
	if h == nil {
		return
	}
	node := r.nodes["http"]
	if valueAt(node, "topic") == nil && len(r.Topics) == 1 {
		h.Topic = r.Topics[0]
	}
	if valueAt(node, "require_key") == nil {
		h.RequireKey = r.OnMissingKey == DeadLetter
	}
}

// valueAt returns the value of a mapping under the name, or nil.
func valueAt(n *yaml.Node, name string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

func (d *decoder) methods(n *yaml.Node, at string) []string {
	var methods []string
	d.list(n, at, func(n *yaml.Node, at string) {
		i := d.choice(n, at, httpMethods[:]...)
		if i < 0 {
			return
		}
		if slices.Contains(methods, httpMethods[i]) {
			d.fail(n, at, "%s is listed twice", httpMethods[i])
		}
		methods = append(methods, httpMethods[i])
	})
	slices.Sort(methods) // their order has no meaning
	return methods
}

func (d *decoder) rate(n *yaml.Node, at string) Rate {
	r := Rate{}
	if nodes := decodeObject(d, n, at, &r, rateFields); nodes != nil {
		d.require(n, at, nodes, "per_second", "burst")
	}
	return r
}

// perSecond reads a rate, which may be a fraction.
func (d *decoder) perSecond(n *yaml.Node, at string) float64 {
	v, err := strconv.ParseFloat(n.Value, 64)
	number := n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!int" || n.ShortTag() == "!!float")
	if !number || err != nil || !(v > 0 && v <= rateMax) { // refuses NaN too
		d.fail(n, at, "want a number above 0, at most %d, found %s", rateMax, describe(n))
		return 0
	}
	return v
}

func (d *decoder) httpOutcomes(n *yaml.Node, at string) *Signature {
	s := &Signature{}
	if nodes := decodeObject(d, n, at, s, outcomesFields); nodes != nil {
		d.require(n, at, nodes, "signature")
	}
	return s
}

// failHTTP adds a mistake at a field of a route's http part, such as "signature.header", or, if the file lacks
// the field, at the innermost part around it that the file has.
func (d *decoder) failHTTP(r *draft, field, format string, args ...any) {
	d.fail(httpNode(r, field), join(join(r.at, "http"), field), format, args...)
}

// validateHTTP checks the http part against the rest of its route.
func (d *decoder) validateHTTP(r *draft) {
	h := r.HTTP
	if h == nil {
		return
	}
	if reason := pathMistake(h.Path); h.Path != "" && reason != "" {
		d.failHTTP(r, "path", "%.260q %s", h.Path, reason)
	}
	switch {
	case h.Topic == "" && len(r.Topics) > 1 && valueAt(r.nodes["http"], "topic") == nil:
		d.failHTTP(r, "topic", "is required: the route takes %s, and an event goes to one of them", strings.Join(r.Topics, " and "))
	case h.Topic != "" && len(r.Topics) > 0 && !slices.Contains(r.Topics, h.Topic):
		d.failHTTP(r, "topic", "%s is no topic of the route: want %s", h.Topic, strings.Join(r.Topics, " or "))
	}
	if h.Keep && r.Prepartitioned {
		d.failHTTP(r, "on_kafka_unavailable", "keep is for routes that are not prepartitioned: an event that waited is in its partition behind later ones, and is late there")
	}
	if h.Keep && r.Grace == 0 {
		d.failHTTP(r, "on_kafka_unavailable", "keep needs a grace: without one an event that waited is late as soon as another one is judged")
	}
	d.validateCarried(r)
	d.validateBodies(r)
	d.validateAnswer(r)
	d.validateIdempotency(r)
	d.validateEvents(r)
	d.validateTolerance(r, "signature", &h.Signature)
	if h.Outcomes != nil {
		d.validateTolerance(r, "outcomes.signature", h.Outcomes)
	}
	if r.Mode != ClaimMode {
		if h.Outcomes != nil {
			d.failHTTP(r, "outcomes", "belongs to mode: claim")
		}
		if _, ok := h.Responses[dedup.InProgress]; ok {
			d.failHTTP(r, "responses."+dedup.InProgress.String(), "belongs to mode: claim")
		}
	}
}

// validateBodies refuses settings that contradict the way in which the route reads request bodies.
func (d *decoder) validateBodies(r *draft) {
	h := r.HTTP
	if h.Decompress.MaxBytes > 0 && slices.Contains(h.Headers, "content-encoding") {
		d.failHTTP(r, "headers", "content-encoding would be wrong: Kafka gets the decompressed body; leave it out")
	}
	if h.Handshake.Kind == MetaHandshake && h.Signature.Query == metaTokenParameter {
		d.failHTTP(r, "signature.query", "%s is the parameter of Meta's handshake: name another one", metaTokenParameter)
	}
	if h.Form && r.Sender != nil && r.Sender.Kind == SenderField {
		d.failAt(r, "sender", "a field of a form is not read as the sender: name a header")
	}
}

// metaTokenParameter is the URL's parameter with the token of Meta's handshake.
const metaTokenParameter = "hub.verify_token"

// ingressPaths are the paths that the ingress itself serves.
var ingressPaths = []string{"/openapi.json", "/healthz", "/readyz"}

// pathMistake returns what is wrong with a path; "" if nothing is.
func pathMistake(p string) string {
	const others = "/-._~!$&'()+,;=:@" // RFC 3986, section 3.3, without the star, which would look like a pattern
	switch {
	case !strings.HasPrefix(p, "/"):
		return "does not begin with a slash"
	case strings.ContainsFunc(p, func(c rune) bool { return !isAlphanumeric(c) && !strings.ContainsRune(others, c) }):
		return "has a character other than letters, digits and " + others
	case strings.HasSuffix(p, "/"):
		return "ends with a slash"
	case path.Clean(p) != p:
		return "is not clean: write " + path.Clean(p)
	case strings.HasSuffix(p, OutcomesSuffix):
		return "ends with " + OutcomesSuffix + ", which is for outcomes"
	case slices.Contains(ingressPaths, p):
		return "is a path that the ingress itself serves"
	}
	return ""
}

// differs returns the names of the fields in which two http parts differ. Routes that share a path may not
// differ in any field.
func (h *HTTP) differs(other *HTTP) []string {
	var fields []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"methods", slices.Equal(h.Methods, other.Methods)},
		{"headers", slices.Equal(h.Headers, other.Headers)},
		{"signature", h.Signature == other.Signature},
		{"handshake", h.Handshake == other.Handshake},
		{"allowed_sources", slices.Equal(h.AllowedSources, other.AllowedSources)},
		{"decompress", h.Decompress == other.Decompress},
		{"form", h.Form == other.Form},
		{"answer", h.Verdict == other.Verdict && (h.Answer == nil) == (other.Answer == nil)},
		{"answer_timeout", h.AnswerTimeout() == other.AnswerTimeout()},
		{"events", h.Events.equal(other.Events)},
		{"idempotency_key", h.Idempotency.equal(other.Idempotency)},
		{"timeout", h.Timeout == other.Timeout},
		{"on_timeout", h.AcceptOnTimeout == other.AcceptOnTimeout},
		{"on_kafka_unavailable", h.WaitForKafka == other.WaitForKafka && h.Keep == other.Keep},
		{"max_body", h.MaxBody == other.MaxBody},
		{"max_requests", h.MaxRequests == other.MaxRequests},
		{"rate", h.Rate == other.Rate},
		{"rate_per_source", h.SourceRate == other.SourceRate},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}
