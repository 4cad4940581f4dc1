package rules

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Response is the HTTP response of the ingress to a request.
type Response struct {
	Status      int
	Body        string
	ContentType string // "" without a body
}

var responsesFields = makeResponsesFields()

// makeResponsesFields returns a field for every verdict except Replayed: the response to Replayed is the
// recorded outcome.
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

var responseFields = []fieldOf[Response]{
	{"status", func(d *decoder, r *Response, n *yaml.Node, at string) { r.Status = d.status(n, at) }},
	{"body", func(d *decoder, r *Response, n *yaml.Node, at string) { r.Body, _ = d.text(n, at) }},
	{"content_type", func(d *decoder, r *Response, n *yaml.Node, at string) { r.ContentType = d.contentType(n, at) }},
}

// jsonType is the default content type of a body.
const jsonType = "application/json"

// response reads the response for a verdict.
func (d *decoder) response(n *yaml.Node, at string) Response {
	r := Response{}
	before := len(d.mistakes)
	nodes := decodeObject(d, n, at, &r, responseFields)
	if nodes == nil {
		return r
	}
	d.require(n, at, nodes, "status")
	if len(d.mistakes) > before {
		return r
	}
	body, contentType := nodes["body"], nodes["content_type"]
	switch {
	case body == nil && contentType != nil:
		d.fail(contentType, join(at, "content_type"), "there is no body: leave content_type out")
	case body != nil && (r.Status == 204 || r.Status == 205 || r.Status == 304):
		d.fail(body, join(at, "body"), "a response with status %d has no body: leave body out", r.Status)
	case body != nil && contentType == nil:
		r.ContentType = jsonType
	}
	if body != nil && r.ContentType == jsonType && !jsontext.Value(r.Body).IsValid() {
		d.fail(body, join(at, "body"), "is not JSON: write content_type: text/plain if it is meant to be text")
	}
	return r
}

// status reads the status of a response. It refuses 500, because 500 reports a fault of the ingress.
func (d *decoder) status(n *yaml.Node, at string) int {
	v := d.integer(n, at, 200, 599)
	if v == 500 {
		d.fail(n, at, "500 means that the server failed, which is not a verdict: want another status from 200 to 599")
	}
	return v
}

// contentType reads a media type, with its parameters.
func (d *decoder) contentType(n *yaml.Node, at string) string {
	text := d.headerText(n, at)
	kind, _, slash := strings.Cut(text, "/")
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" && (!slash || kind == "" || strings.ContainsAny(kind, " ;")) {
		d.fail(n, at, "%.80q is no media type: want one such as application/json or text/plain; charset=utf-8", text)
	}
	return text
}
