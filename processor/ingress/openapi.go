package ingress

import (
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

// openAPIPath is where the description is.
const openAPIPath = "/openapi.json"

// document is an OpenAPI document (spec.openapis.org/oas/v3.1.0), as far as
// this one goes.
type document struct {
	OpenAPI    string              `json:"openapi"`
	Info       documentInfo        `json:"info"`
	Paths      map[string]pathItem `json:"paths"`
	Components components          `json:"components"`
}

type documentInfo struct {
	Title       string `json:"title"`
	Version     string `json:"version"` // of the paths and problems, not of the program
	Description string `json:"description"`
}

type components struct {
	Schemas         map[string]schema         `json:"schemas"`
	Headers         map[string]headerObject   `json:"headers"`
	Responses       map[string]*answerObject  `json:"responses"`
	SecuritySchemes map[string]securityScheme `json:"securitySchemes,omitempty"`
}

// pathItem is the operations of a path by method, in lower case.
type pathItem map[string]*operation

type operation struct {
	Summary     string                   `json:"summary"`
	Description string                   `json:"description,omitempty"`
	Parameters  []parameter              `json:"parameters,omitempty"`
	RequestBody *requestBody             `json:"requestBody,omitempty"`
	Responses   map[string]*answerObject `json:"responses"`
	Security    []map[string][]string    `json:"security,omitempty"`
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

type answerObject struct {
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

const documentText = `Events come in here by HTTP and are deduplicated on the bus; the answer is the verdict.
After a 2xx the event is on the bus; after anything else, or no answer at all, it is safe to send it again, unless it has no key.

Errors are problem details (RFC 9457). A path that is not listed is answered 404, a method that is not listed 405 (components.responses).
Every answer has the headers Cache-Control: no-store and X-Content-Type-Options: nosniff, but for those to malformed HTTP.`

// OpenAPI describes what comes in by HTTP with these routes, as an OpenAPI 3.1
// document in JSON. Equal routes give equal bytes. What a path answers is not
// written here: the code that answers is asked (see eventSamples).
func OpenAPI(routes *rules.Routes) ([]byte, error) {
	d := document{
		OpenAPI: "3.1.0",
		Info:    documentInfo{Title: "oncebus ingress", Version: "1", Description: documentText},
		Paths:   map[string]pathItem{openAPIPath: describeDescription()},
		Components: components{
			Schemas: map[string]schema{"Problem": problemSchema(), "Outcome": {"description": "What an executor wrote: anything."}},
			Headers: headerComponents(),
			Responses: map[string]*answerObject{
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
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

// add describes the path of some routes, and the one of their outcomes.
func (d *document) add(path string, routes []*rules.Route, all *rules.Routes) error {
	h := routes[0].HTTP
	events := operation{
		Summary:     "Takes in an event of " + names(routes),
		Description: describeEvents(routes),
		RequestBody: eventBody(routes),
		Responses:   describeSamples(eventSamples(routes, all)),
	}
	for _, name := range slices.Concat(rules.CarriedHeaders[:], h.Headers) {
		if !strings.EqualFold(name, "content-type") { // which OpenAPI says elsewhere
			events.Parameters = append(events.Parameters, carriedParameter(name, routes))
		}
	}
	window := shortestWindow(path, all)
	if err := d.sign(&events, routes[0].Name, &h.Signature, window); err != nil {
		return err
	}
	d.Paths[path] = pathItem{}
	for _, method := range h.Methods {
		d.Paths[path][strings.ToLower(method)] = &events
	}
	routes = slices.DeleteFunc(slices.Clone(routes), func(r *rules.Route) bool { return r.HTTP.Outcomes == nil })
	if len(routes) == 0 {
		return nil
	}
	outcomes := operation{
		Summary:     "Takes in what became of an event of " + names(routes),
		Description: "For executors, in place of a record in the topic of outcomes.",
		Parameters:  outcomeParameters(),
		RequestBody: &requestBody{Description: fmt.Sprintf("The result, byte for byte, of at most %d bytes; nothing is null.", outcomeLimit(h)), Content: map[string]mediaType{"application/json": {schema{}}, "*/*": {schema{}}}},
		Responses:   describeSamples(outcomeSamples(routes[0].HTTP)),
	}
	if err := d.sign(&outcomes, routes[0].Name+".outcomes", routes[0].HTTP.Outcomes, window); err != nil {
		return err
	}
	d.Paths[path+rules.OutcomesSuffix] = pathItem{"post": &outcomes}
	return nil
}

// carriedParameter describes a header that goes with the event. Where every
// route requires a key and finds it there alone, so must the request.
func carriedParameter(name string, routes []*rules.Route) parameter {
	p := parameter{Name: name, In: "header", Description: "Goes with the event.", Schema: schema{"type": "string"}}
	if strings.EqualFold(name, headerIdempotency) {
		p.Description += " A string of RFC 9651, or the same without quotes; at most once."
		p.Schema["pattern"] = idempotencyPattern
	}
	p.Required = !slices.ContainsFunc(routes, func(r *rules.Route) bool { return !r.HTTP.RequireKey || r.KeyHeader() != name })
	if p.Required {
		p.Description, p.Schema["minLength"] = "The key. "+p.Description, 1
	}
	return p
}

// sign describes how requests are signed: a security scheme for the header with
// the signature, parameters for those that it covers.
func (d *document) sign(o *operation, name string, s *rules.Signature, window time.Duration) error {
	v, err := newVerifier(s, window)
	if err != nil {
		return fmt.Errorf("signature of %s: %w", name, err)
	}
	headers := v.Headers()
	if len(headers) == 0 {
		return nil
	}
	scheme := securityScheme{Type: "apiKey", Name: headers[0], In: "header", Description: describeScheme(s, window)}
	if s.Scheme == rules.Bearer {
		scheme = securityScheme{Type: "http", Scheme: "bearer", Description: describeScheme(s, window)}
	}
	d.Components.SecuritySchemes[name] = scheme
	o.Security = []map[string][]string{{name: {}}}
	// A header that the event also carries is described once, as the signature's.
	o.Parameters = slices.DeleteFunc(o.Parameters, func(p parameter) bool {
		return slices.ContainsFunc(headers, func(h string) bool { return strings.EqualFold(h, p.Name) })
	})
	for _, header := range headers[1:] {
		o.Parameters = append(o.Parameters, parameter{Name: header, In: "header", Description: "Covered by the signature.", Required: true, Schema: schema{"type": "string"}})
	}
	return nil
}

func describeScheme(s *rules.Signature, window time.Duration) string {
	text := map[rules.SignatureScheme]string{
		rules.StandardWebhooks: "Standard Webhooks (standardwebhooks.com), v1.",
		rules.GitHub:           "As GitHub signs: sha256= and the HMAC-SHA-256 of the body in hex.",
		rules.Stripe:           "As Stripe signs: t, and v1 = the HMAC-SHA-256 of t, a dot and the body in hex.",
		rules.Slack:            "As Slack signs: v0= and the HMAC-SHA-256 of v0, the timestamp and the body in hex, with colons between.",
		rules.Bearer:           "The secret itself.",
	}[s.Scheme]
	if s.Scheme == rules.HMAC {
		signed := "the body"
		if s.TimestampHeader != "" {
			signed = fmt.Sprintf("%s (Unix seconds), %q and the body", http.CanonicalHeaderKey(s.TimestampHeader), s.Separator)
		}
		text = fmt.Sprintf("HMAC with %s over %s, in %s", s.Algorithm, signed, s.Encoding)
		if s.Prefix != "" {
			text += fmt.Sprintf(", after %q", s.Prefix)
		}
		text += "."
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

// outcomeParameters are the headers of an outcome, as readOutcomeHeaders reads them.
func outcomeParameters() []parameter {
	kinds := make([]string, len(dedup.OutcomeKinds))
	for i, k := range dedup.OutcomeKinds {
		kinds[i] = k.String()
	}
	return []parameter{
		{Name: headerClaimToken, In: "header", Required: true, Description: "The claim token that came with the event.", Schema: schema{"type": "string"}},
		{Name: headerOutcome, In: "header", Required: true, Description: "What became of it.", Schema: schema{"type": "string", "enum": kinds}},
		{Name: headerResultStatus, In: "header", Description: "The status that copies are answered with; else 200, or 204 without a result.",
			Schema: schema{"type": "integer", "minimum": statusMin, "maximum": statusMax}},
		{Name: headerEmpty, In: "header", Description: "Without a body: the result is empty, not null.", Schema: schema{"type": "string", "const": "true"}},
	}
}

func describeDescription() pathItem {
	s := sample{response: &response{status: http.StatusOK, name: "this document", contentType: jsonType}, open: true}
	o := &operation{Summary: "This document", Responses: describeSamples(append(malformed(), s))}
	return pathItem{"get": o, "head": o}
}

func names(routes []*rules.Route) string {
	all := make([]string, len(routes))
	for i, r := range routes {
		all[i] = r.Name
	}
	return strings.Join(all, " or ")
}

// describe answers with the description.
func (s *Server) describe(r *http.Request) *response {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return wrongMethod("GET, HEAD")
	}
	return &response{status: http.StatusOK, name: "openapi", contentType: jsonType, body: s.openAPI}
}
