package ingress

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// openAPIPath is the path of the OpenAPI document.
const openAPIPath = "/openapi.json"

// document is the part of an OpenAPI document (spec.openapis.org/oas/v3.1.0)
// that this package uses.
type document struct {
	OpenAPI    string              `json:"openapi"`
	Info       documentInfo        `json:"info"`
	Paths      map[string]pathItem `json:"paths"`
	Components components          `json:"components"`
}

type documentInfo struct {
	Title       string `json:"title"`
	Version     string `json:"version"` // of the API that the document describes, not of the program
	Description string `json:"description"`
}

type components struct {
	Schemas         map[string]schema          `json:"schemas"`
	Headers         map[string]headerObject    `json:"headers"`
	Responses       map[string]*responseObject `json:"responses"`
	SecuritySchemes map[string]securityScheme  `json:"securitySchemes,omitempty"`
}

// pathItem has the operations of a path, by method in lower case.
type pathItem map[string]*operation

type operation struct {
	Summary     string                     `json:"summary"`
	Description string                     `json:"description,omitempty"`
	Parameters  []parameter                `json:"parameters,omitempty"`
	RequestBody *requestBody               `json:"requestBody,omitempty"`
	Responses   map[string]*responseObject `json:"responses"`
	Security    []map[string][]string      `json:"security,omitempty"`
}

type parameter struct {
	Name        string `json:"name"`
	In          string `json:"in"`
	Description string `json:"description,omitempty"`
	Required    bool   `json:"required,omitempty"`
	Schema      schema `json:"schema"`
}

type requestBody struct {
	Description string               `json:"description"`
	Required    bool                 `json:"required"`
	Content     map[string]mediaType `json:"content"`
}

type responseObject struct {
	Description string               `json:"description"`
	Headers     map[string]reference `json:"headers,omitempty"`
	Content     map[string]mediaType `json:"content,omitempty"`
}

type headerObject struct {
	Description string `json:"description"`
	Required    bool   `json:"required,omitempty"`
	Schema      schema `json:"schema"`
}

type mediaType struct {
	Schema schema `json:"schema"`
}

type securityScheme struct {
	Type        string `json:"type"`
	Scheme      string `json:"scheme,omitempty"`
	Name        string `json:"name,omitempty"`
	In          string `json:"in,omitempty"`
	Description string `json:"description"`
}

// schema is a JSON Schema (draft 2020-12).
type schema map[string]any

const documentText = `These endpoints receive events by HTTP and produce them to Kafka for deduplication. The response has the verdict.
After a 2xx Kafka has stored the event. Without a 2xx the client may retry: the retry is a duplicate. An event without a key may be emitted twice.

Errors are problem details (RFC 9457). Other paths get 404, other methods 405 (components.responses).
Every response but this document has the header Cache-Control: no-store, and every one has X-Content-Type-Options: nosniff, except a 431 over HTTP/2.
Every response to a well-formed request has X-Request-Id: that of the request, or a random one.`

// OpenAPI returns the OpenAPI 3.1 document of the routes' endpoints as JSON. Equal routes give equal bytes. The
// responses come from the code that sends them (eventSamples), so that the document and the server cannot
// differ.
func OpenAPI(routes *rules.Routes) ([]byte, error) {
	d := document{
		OpenAPI: "3.1.0",
		Info:    documentInfo{Title: "oncebus ingress", Version: "1", Description: documentText},
		Paths:   map[string]pathItem{openAPIPath: describeDescription()},
		Components: components{
			Schemas: map[string]schema{"Problem": problemSchema(), "Outcome": {"description": "The result that an executor produced: any content."}},
			Headers: headerComponents(),
			Responses: map[string]*responseObject{
				"NotFound":         describeSamples([]sample{{response: problemNotFound.respond("")}})["404"],
				"MethodNotAllowed": describeSamples([]sample{{response: wrongMethod(http.MethodPost)}})["405"],
			},
			SecuritySchemes: map[string]securityScheme{},
		},
	}
	byPath := map[string][]*rules.Route{}
	for _, r := range routes.Routes {
		if r.HTTP != nil {
			byPath[r.HTTP.Path] = append(byPath[r.HTTP.Path], r)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(byPath)) {
		if err := d.add(path, byPath[path], routes); err != nil {
			return nil, err
		}
	}
	for _, item := range d.Paths {
		if item["get"] != nil {
			item["head"] = item["get"]
		}
	}
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

// add describes the endpoint with this path and routes, and the endpoint of their outcomes.
func (d *document) add(path string, routes []*rules.Route, all *rules.Routes) error {
	h := routes[0].HTTP
	events := operation{
		Summary:     "Receives an event of " + names(routes),
		Description: describeEvents(routes),
		RequestBody: eventBody(routes),
		Responses:   describeSamples(eventSamples(routes, all)),
	}
	if h.Answer != nil {
		events.Parameters = append(events.Parameters, parameter{Name: headerPrefer, In: "header", Schema: schema{"type": "string"},
			Description: fmt.Sprintf("RFC 7240: wait=N waits N seconds for the outcome, at most %v; respond-async does not wait.", h.Answer.Timeout)})
	}
	for _, name := range slices.Concat(rules.CarriedHeaders[:], h.Headers) {
		if !strings.EqualFold(name, "content-type") { // OpenAPI describes it in requestBody
			events.Parameters = append(events.Parameters, carriedParameter(name, routes))
		}
	}
	events.Parameters = append(events.Parameters, eventParameters(routes)...)
	window := shortestWindow(path, all)
	if err := d.sign(&events, routes[0].Name, &h.Signature, window); err != nil {
		return err
	}
	d.Paths[path] = pathItem{}
	if h.Handshake.Kind == rules.MetaHandshake {
		d.Paths[path]["get"] = describeMeta(routes)
	}
	for _, method := range h.Methods {
		d.Paths[path][strings.ToLower(method)] = &events
	}
	if h.Answer != nil {
		if err := d.addLookups(path, routes, window); err != nil {
			return err
		}
	}
	if h.Events != nil {
		if err := d.addFollowers(path, routes, window); err != nil {
			return err
		}
	}
	routes = slices.DeleteFunc(slices.Clone(routes), func(r *rules.Route) bool { return r.HTTP.Outcomes == nil })
	if len(routes) == 0 {
		return nil
	}
	outcomes := operation{
		Summary:     "Receives the outcome of an event of " + names(routes),
		Description: "For executors, instead of a record in the outcomes topic.",
		Parameters:  outcomeParameters(),
		RequestBody: &requestBody{Description: fmt.Sprintf("The result, stored byte for byte, at most %d bytes; an empty body is null.", outcomeLimit(h)), Content: map[string]mediaType{"application/json": {schema{}}, "*/*": {schema{}}}},
		Responses:   describeSamples(outcomeSamples(routes[0].HTTP)),
	}
	if err := d.sign(&outcomes, routes[0].Name+".outcomes", routes[0].HTTP.Outcomes, window); err != nil {
		return err
	}
	d.Paths[path+rules.OutcomesSuffix] = pathItem{"post": &outcomes}
	return nil
}

// carriedParameter describes a header that becomes a record header. The header is required if every route
// requires a key and can read the key from this header only.
func carriedParameter(name string, routes []*rules.Route) parameter {
	p := parameter{Name: name, In: "header", Description: "Becomes a header of the record.", Schema: schema{"type": "string"}}
	if strings.EqualFold(name, headerIdempotency) && routes[0].HTTP.Idempotency != nil {
		p.Description += " A String of RFC 8941, not empty; at most once. See " + routes[0].HTTP.Idempotency.Docs
		p.Schema["pattern"] = idempotencyString
	} else if strings.EqualFold(name, headerIdempotency) {
		p.Description += " A string of RFC 9651, or its content without quotes; at most once."
		p.Schema["pattern"] = idempotencyPattern
	}
	p.Required = !slices.ContainsFunc(routes, func(r *rules.Route) bool { return !r.HTTP.RequireKey || r.KeyHeader() != name })
	if p.Required {
		p.Description, p.Schema["minLength"] = "The key. "+p.Description, 1
	}
	return p
}

// sign describes the signature of an operation: the header of the signature as a security scheme, the headers
// that the signature covers as parameters.
func (d *document) sign(o *operation, name string, s *rules.Signature, window time.Duration) error {
	v, err := newVerifier(s, window)
	if err != nil {
		return fmt.Errorf("signature of %s: %w", name, err)
	}
	headers := v.Headers()
	scheme := securityScheme{Type: "apiKey", In: "header", Description: describeScheme(s, window)}
	switch {
	case v.Query() != "":
		scheme.Name, scheme.In = v.Query(), "query"
	case len(headers) == 0: // the signature is in the body
		return nil
	case s.Scheme == rules.Bearer:
		scheme = securityScheme{Type: "http", Scheme: "bearer", Description: scheme.Description}
	default:
		scheme.Name = headers[0]
	}
	d.Components.SecuritySchemes[name] = scheme
	o.Security = []map[string][]string{{name: {}}}
	// If a header is also a record header, the document describes it once, here.
	o.Parameters = slices.DeleteFunc(o.Parameters, func(p parameter) bool {
		return slices.ContainsFunc(headers, func(h string) bool { return strings.EqualFold(h, p.Name) })
	})
	for _, header := range headers[min(1, len(headers)):] {
		meaning := "Covered by the signature."
		if !s.Covers(header) {
			meaning = "Says how the request is signed."
		}
		o.Parameters = append(o.Parameters, parameter{Name: header, In: "header", Description: meaning, Required: true, Schema: schema{"type": "string"}})
	}
	return nil
}

// schemeMeanings describes how a scheme signs.
var schemeMeanings = map[rules.SignatureScheme]string{
	rules.StandardWebhooks: "Standard Webhooks (standardwebhooks.com), v1.",
	rules.Svix:             "As Svix signs: Standard Webhooks with svix- headers.",
	rules.GitHub:           "As GitHub signs: sha256= and the HMAC-SHA-256 of the body in hex.",
	rules.Stripe:           "As Stripe signs: t, and v1 = the HMAC-SHA-256 of t, a dot and the body in hex.",
	rules.Paddle:           "As Paddle signs: ts, and h1 = the HMAC-SHA-256 of ts, a colon and the body in hex.",
	rules.Slack:            "As Slack signs: v0= and the HMAC-SHA-256 of v0, the timestamp and the body in hex, with colons between.",
	rules.Zoom:             "As Zoom signs: v0= and the HMAC-SHA-256 of v0, the timestamp and the body in hex, with colons between.",
	rules.Square:           "As Square signs: the HMAC-SHA-256 of the URL and the body in base64.",
	rules.Twilio:           "As Twilio signs: the HMAC-SHA-1 of the URL and the sorted fields of the form in base64.",
	rules.Adyen:            "As Adyen signs: hmacSignature in the body, the HMAC-SHA-256 of eight of its fields in base64.",
	rules.Discord:          "As Discord signs: Ed25519 over the timestamp and the body, in hex.",
	rules.SendGrid:         "As SendGrid signs: ECDSA P-256 over the timestamp and the body, in base64.",
	rules.PayPal:           "As PayPal signs: RSA over the transmission's id and time, the webhook's id and the CRC-32 of the body.",
	rules.Hook0:            "As Hook0 signs for Coinbase: t, h, and v1 = the HMAC-SHA-256 of t, h, the headers that h names and the body in hex, with dots between.",
	rules.Token:            "The secret itself.",
	rules.Bearer:           "The secret itself.",
}

func describeScheme(s *rules.Signature, window time.Duration) string {
	text := schemeMeanings[s.Scheme]
	if s.Scheme == rules.HMAC {
		text = describeHMAC(s)
	}
	if s.URL != "" {
		text += " The URL is " + s.URL + "."
	}
	if s.Tolerance > 0 {
		text += fmt.Sprintf(" The timestamp is at most %v from the server's clock", s.Tolerance)
		if ahead := aheadOf(s, window); ahead < s.Tolerance {
			text += fmt.Sprintf(", and at most %v ahead of it", ahead)
		}
		text += "."
	}
	return text
}

func describeHMAC(s *rules.Signature) string {
	signed := "the body"
	if s.TimestampHeader != "" {
		signed = fmt.Sprintf("%s (Unix seconds), %q and the body", http.CanonicalHeaderKey(s.TimestampHeader), s.Separator)
	}
	text := fmt.Sprintf("HMAC with %s over %s, in %s", s.Algorithm, signed, s.Encoding)
	if s.Prefix != "" {
		text += fmt.Sprintf(", after %q", s.Prefix)
	}
	return text + "."
}

// outcomeParameters describes the headers that readOutcomeHeaders reads.
func outcomeParameters() []parameter {
	kinds := make([]string, len(dedup.OutcomeKinds))
	for i, k := range dedup.OutcomeKinds {
		kinds[i] = k.String()
	}
	return []parameter{
		{Name: headerClaimToken, In: "header", Description: "The claim token of the dispatched event. Required, but for an event without a claim.", Schema: schema{"type": "string"}},
		{Name: headerReplyTo, In: "header", Description: "In place of the token, for an event without a claim that has it.", Schema: schema{"type": "string"}},
		{Name: headerOutcome, In: "header", Required: true, Description: "The kind of the outcome.", Schema: schema{"type": "string", "enum": kinds}},
		{Name: headerStartID, In: "header", Description: "Names the process that asks: required for start, and for renew of a started attempt.",
			Schema: schema{"type": "string", "minLength": 1, "maxLength": dedup.StartIDMax}},
		{Name: headerResultStatus, In: "header", Description: "The status of the response to duplicates. Default: 200, or 204 for a null result.",
			Schema: schema{"type": "integer", "minimum": statusMin, "maximum": statusMax}},
		{Name: headerEmpty, In: "header", Description: "Makes an empty body an empty result instead of null.", Schema: schema{"type": "string", "const": "true"}},
	}
}

// describeMeta describes Meta's handshake.
func describeMeta(routes []*rules.Route) *operation {
	o := &operation{Summary: "The handshake of Meta for " + names(routes), Description: "It is no event.", Responses: describeSamples(append(malformed(),
		sample{response: handshakeText("challenge"), open: true}, sample{response: problemHandshake.respond("")}, sample{response: busy("")}, sample{response: tooFast("", time.Second)}))}
	for _, name := range []string{metaMode, metaTokenName, metaChallenge} {
		o.Parameters = append(o.Parameters, parameter{Name: name, In: "query", Required: true, Schema: schema{"type": "string"}})
	}
	return o
}

func describeDescription() pathItem {
	s := sample{response: &response{status: http.StatusOK, name: "this document", contentType: jsonType}, open: true}
	o := &operation{Summary: "This document", Responses: describeSamples(append(malformed(), s, sample{response: problemNotFound.respond("")}))}
	return pathItem{"get": o}
}

func names(routes []*rules.Route) string {
	all := make([]string, len(routes))
	for i, r := range routes {
		all[i] = r.Name
	}
	return strings.Join(all, " or ")
}

// describe responds with the OpenAPI document.
func (s *Server) describe(r *http.Request) *response {
	if !asks(r) {
		return wrongMethod(allowAsking)
	}
	d := &response{status: http.StatusOK, name: "openapi", contentType: jsonType, body: s.openAPI.plain}
	if acceptsGzip(r.Header) {
		d.with("Content-Encoding", codingGzip).body = s.openAPI.compressed
	}
	return d.with("Cache-Control", "max-age=300").with("Vary", "Accept-Encoding")
}

// acceptsGzip reports whether the client accepts a response in gzip. A weight of 0 means that it does not (RFC
// 9110, section 12.5.3).
func acceptsGzip(in http.Header) bool {
	for coding := range strings.SplitSeq(strings.Join(in.Values("Accept-Encoding"), ","), ",") {
		name, weight, _ := strings.Cut(strings.ReplaceAll(coding, " ", ""), ";")
		if strings.EqualFold(name, codingGzip) {
			return strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != "" || weight == ""
		}
	}
	return false
}

func gzipped(plain []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // a level that exists
	_, _ = w.Write(plain)                                 // into memory
	_ = w.Close()
	return b.Bytes()
}
