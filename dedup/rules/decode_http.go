package rules

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Bounds of an http part's numbers.
const (
	maxBodyMax = 64 << 20 // bytes; no broker takes larger records unless somebody changed that
	rateMax    = 1_000_000
)

// Choices of the http part that have no type of their own.
var (
	httpMethods           = [...]string{"POST", "PUT", "PATCH"}
	answerNames           = [...]string{"verdict", "async"}
	kafkaUnavailableNames = [...]string{"reject", "wait"}
	timeoutNames          = [...]string{"504", "202"}
	algorithmNames        = [...]string{"sha256", "sha1", "sha512"}
	encodingNames         = [...]string{"hex", "base64"}
)

// The format of a route's http part.
var (
	httpFields = []fieldOf[HTTP]{
		{"path", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Path, _ = d.text(n, at) }},
		{"methods", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Methods = d.methods(n, at) }},
		{"topic", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Topic, _ = d.text(n, at) }},
		{"headers", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Headers = d.carried(n, at) }},
		{"signature", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Signature = d.signature(n, at) }},
		{"answer", func(d *decoder, h *HTTP, n *yaml.Node, at string) {
			h.Verdict = d.choice(n, at, answerNames[:]...) == 0
		}},
		{"timeout", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Timeout = d.duration(n, at, time.Millisecond) }},
		{"on_timeout", func(d *decoder, h *HTTP, n *yaml.Node, at string) {
			h.AcceptOnTimeout = d.choice(n, at, timeoutNames[:]...) == 1
		}},
		{"on_kafka_unavailable", func(d *decoder, h *HTTP, n *yaml.Node, at string) {
			h.WaitForKafka = d.choice(n, at, kafkaUnavailableNames[:]...) == 1
		}},
		{"max_body", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.MaxBody = d.integer(n, at, 1, maxBodyMax) }},
		{"rate", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Rate = d.rate(n, at) }},
		{"rate_per_source", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.SourceRate = d.rate(n, at) }},
		{"require_key", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.RequireKey, _ = d.boolean(n, at) }},
		{"outcomes", func(d *decoder, h *HTTP, n *yaml.Node, at string) { h.Outcomes = d.httpOutcomes(n, at) }},
		{"responses", func(d *decoder, h *HTTP, n *yaml.Node, at string) {
			h.Responses = map[dedup.Verdict]Response{}
			decodeObject(d, n, at, &h.Responses, responsesFields)
		}},
	}
	outcomesFields = []fieldOf[Signature]{
		{"signature", func(d *decoder, s *Signature, n *yaml.Node, at string) { *s = d.signature(n, at) }},
	}
	signatureFields = []fieldOf[signatureDraft]{
		{"scheme", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) {
			i := d.choice(n, at, schemeNames[:]...)
			s.Scheme, s.known = SignatureScheme(max(0, i)), i >= 0
		}},
		{"secret", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.Secret = d.secretName(n, at) }},
		{"tolerance", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) {
			s.Tolerance = d.duration(n, at, time.Second) // the timestamps are in seconds
		}},
		{"header", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.Header = d.headerName(n, at) }},
		{"algorithm", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) {
			s.Algorithm = algorithmNames[max(0, d.choice(n, at, algorithmNames[:]...))]
		}},
		{"encoding", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) {
			s.Encoding = encodingNames[max(0, d.choice(n, at, encodingNames[:]...))]
		}},
		{"prefix", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.Prefix = d.signatureText(n, at) }},
		{"timestamp_header", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.TimestampHeader = d.headerName(n, at) }},
		{"separator", func(d *decoder, s *signatureDraft, n *yaml.Node, at string) { s.Separator = d.signatureText(n, at) }},
	}
	rateFields = []fieldOf[Rate]{
		{"per_second", func(d *decoder, r *Rate, n *yaml.Node, at string) { r.PerSecond = d.perSecond(n, at) }},
		{"burst", func(d *decoder, r *Rate, n *yaml.Node, at string) { r.Burst = d.integer(n, at, 1, rateMax) }},
	}
	responsesFields = makeResponsesFields()
	responseFields  = []fieldOf[Response]{
		{"status", func(d *decoder, r *Response, n *yaml.Node, at string) { r.Status = d.status(n, at) }},
		{"body", func(d *decoder, r *Response, n *yaml.Node, at string) { r.Body, _ = d.text(n, at) }},
		{"content_type", func(d *decoder, r *Response, n *yaml.Node, at string) { r.ContentType = d.contentType(n, at) }},
	}
)

// makeResponsesFields has a field for every verdict but Replayed, whose answer
// is the recorded outcome.
func makeResponsesFields() []fieldOf[map[dedup.Verdict]Response] {
	var fields []fieldOf[map[dedup.Verdict]Response]
	for _, v := range dedup.Verdicts {
		if v == dedup.Replayed {
			continue
		}
		fields = append(fields, fieldOf[map[dedup.Verdict]Response]{v.String(),
			func(d *decoder, all *map[dedup.Verdict]Response, n *yaml.Node, at string) {
				(*all)[v] = d.response(n, at)
			}})
	}
	return fields
}

// http reads a route's http part; nil if it is none.
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
	return h
}

// completeHTTP fills in what follows from other fields of the route.
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

// valueAt returns what a mapping has under the name, or nil.
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
	slices.Sort(methods) // their order means nothing
	return methods
}

// credentialHeaders would put secrets on the bus.
var credentialHeaders = []string{"authorization", "proxy-authorization", "cookie"}

// carried reads the list of request headers that become record headers.
func (d *decoder) carried(n *yaml.Node, at string) []string {
	var names []string
	d.list(n, at, func(n *yaml.Node, at string) {
		before := len(d.mistakes)
		written := d.headerName(n, at)
		if len(d.mistakes) > before {
			return
		}
		d.refuseOwnHeader(n, at, written)
		name := strings.ToLower(written)
		switch {
		case slices.Contains(CarriedHeaders[:], name):
			d.fail(n, at, "%s is always carried: leave it out", written)
		case slices.Contains(credentialHeaders, name):
			d.fail(n, at, "%s holds credentials, which stay off the bus", written)
		case slices.Contains(names, name):
			d.fail(n, at, "%s is listed twice", written)
		}
		names = append(names, name)
	})
	slices.Sort(names) // their order means nothing
	return names
}

// transportHeaders are what an HTTP server takes out of a request's headers
// before anybody reads them.
var transportHeaders = []string{"host", "transfer-encoding", "trailer"}

// headerName reads the name of an HTTP header (RFC 9110, section 5.6.2: a
// token) that a request can bring.
func (d *decoder) headerName(n *yaml.Node, at string) string {
	name, ok := d.text(n, at)
	switch {
	case !ok:
	case slices.Contains(transportHeaders, strings.ToLower(name)):
		d.fail(n, at, "%s is the connection's and never arrives as a header: name one of the sender's own", name)
	case strings.ContainsFunc(name, func(c rune) bool { return !isAlphanumeric(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", c) }):
		d.fail(n, at, "%.80q is no name of an HTTP header: want letters, digits, dash and underscore", name)
	}
	return name
}

func isAlphanumeric(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// headerText reads printable ASCII, which may be empty.
func (d *decoder) headerText(n *yaml.Node, at string) string {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" && n.Value == "" {
		return ""
	}
	text, ok := d.text(n, at)
	if ok && strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) {
		d.fail(n, at, "%.80q: want printable ASCII", text)
	}
	return text
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
	if !number || err != nil || !(v > 0 && v <= rateMax) { // so that NaN is refused too
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
