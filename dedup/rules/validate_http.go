package rules

import (
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// failHTTP notes a mistake at a field of a route's http part ("signature.header"
// is a field within one), or at the innermost part that is there.
func (d *decoder) failHTTP(r *draft, field, format string, args ...any) {
	n := r.nodes["http"]
	for name := range strings.SplitSeq(field, ".") {
		inner := valueAt(n, name)
		if inner == nil {
			break
		}
		n = inner
	}
	d.fail(n, join(join(r.at, "http"), field), format, args...)
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
	d.validateCarried(r)
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

// ingressPaths are what the ingress itself answers at.
var ingressPaths = []string{"/openapi.json", "/healthz", "/readyz"}

// pathMistake says what is wrong with a path, or "".
func pathMistake(p string) string {
	const others = "/-._~!$&'()+,;=:@" // RFC 3986, section 3.3, but for the star, which like { and } looks like a pattern
	switch {
	case !strings.HasPrefix(p, "/"):
		return "does not begin with a slash"
	case strings.ContainsFunc(p, func(c rune) bool { return !isAlphanumeric(c) && !strings.ContainsRune(others, c) }):
		return "has something other than letters, digits and " + others
	case strings.HasSuffix(p, "/"):
		return "ends with a slash"
	case path.Clean(p) != p:
		return "is not clean: write " + path.Clean(p)
	case strings.HasSuffix(p, OutcomesSuffix):
		return "ends with " + OutcomesSuffix + ", where outcomes come in"
	case slices.Contains(ingressPaths, p):
		return "is a path of the ingress itself"
	}
	return ""
}

// validateCarried finds what the route reads of a record that an HTTP request
// does not bring: a header that is not carried, or a record key.
func (d *decoder) validateCarried(r *draft) {
	isRecordKey := func(s Source) bool { return kinds[s.kind].carried == partRecordKey }
	switch {
	case r.Prepartitioned && slices.ContainsFunc(r.Keys, isRecordKey):
		d.failAt(r, "http", "an HTTP request has no record key, which places the events of a prepartitioned route: "+
			"take record_key out of key, or leave prepartitioned out")
	case len(r.Keys) > 0 && !slices.ContainsFunc(r.Keys, func(s Source) bool { return !isRecordKey(s) }):
		d.failAt(r, "http", "an HTTP request has no record key: add a source that yields a key")
	}
	keys := r.nodes["key"]
	for i, s := range r.Keys {
		if kinds[s.kind].carried != partHeader {
			continue
		}
		at := keys
		if len(keys.Content) == len(r.Keys) { // otherwise entries with mistakes were left out
			at = keys.Content[i]
		}
		d.requireCarried(r, at, join(r.at, "key"), s.header)
	}
	if r.Match != nil && r.Match.Header != "" {
		d.requireCarried(r, r.nodes["match"], join(r.at, "match"), r.Match.Header)
	}
	if x := r.Claim.Request; x != nil && x.Header != "" {
		d.requireCarried(r, r.nodes["request"], join(r.at, "request"), x.Header)
	}
}

// requireCarried: names of record headers are compared as they are, and those
// that come from a request are in lower case.
func (d *decoder) requireCarried(r *draft, n *yaml.Node, at, header string) {
	name := strings.ToLower(header)
	if !slices.Contains(CarriedHeaders[:], name) && !slices.Contains(r.HTTP.Headers, name) {
		d.fail(n, at, "an HTTP request's header %s is not carried: add it to http.headers", header)
	}
	if name != header {
		d.fail(n, at, "an HTTP request's headers are carried under names in lower case: write %s", name)
	}
}

// validateTolerance: a signed request that is sent again while its timestamp is
// good must find the claim of the first. Its timestamp is good from before it
// to Tolerance after it; how far before is the ingress's, which allows no more
// than what of the window is left.
func (d *decoder) validateTolerance(r *draft, at string, s *Signature) {
	if r.Window > 0 && s.Tolerance >= r.Window {
		d.failHTTP(r, at+".tolerance", "%v is not shorter than the window of %v: a signed request could be sent again when it is no copy any more",
			s.Tolerance, r.Window)
	}
}

// validatePaths finds routes that fight over a path. Routes of one topic may
// share it, and then are one door: which of them takes a request is known only
// when it is in.
func (d *decoder) validatePaths(drafts []*draft) {
	first := map[string]*draft{}
	for _, r := range drafts {
		if r.HTTP == nil || r.HTTP.Path == "" {
			continue
		}
		other, ok := first[r.HTTP.Path]
		if !ok {
			first[r.HTTP.Path] = r
			continue
		}
		line := other.node.Line
		if r.HTTP.Topic != other.HTTP.Topic {
			d.failHTTP(r, "path", "%s is the path of the route in line %d, whose events go to another topic: give the route a path of its own",
				r.HTTP.Path, line)
			continue
		}
		if fields := r.HTTP.differs(other.HTTP); len(fields) > 0 {
			d.failHTTP(r, "path", "%s is shared with the route in line %d, which has another %s: write the same in both",
				r.HTTP.Path, line, strings.Join(fields, ", "))
		}
		if a, b := r.HTTP.Outcomes, other.HTTP.Outcomes; a != nil && b != nil && *a != *b {
			d.failHTTP(r, "outcomes", "%s is shared with the route in line %d, whose outcomes are signed in another way: write the same in both",
				r.HTTP.Path+OutcomesSuffix, line)
		}
	}
}

// differs returns the fields in which two routes of one path may not differ, but
// do.
func (h *HTTP) differs(other *HTTP) []string {
	var fields []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"methods", slices.Equal(h.Methods, other.Methods)},
		{"headers", slices.Equal(h.Headers, other.Headers)},
		{"signature", h.Signature == other.Signature},
		{"answer", h.Verdict == other.Verdict},
		{"timeout", h.Timeout == other.Timeout},
		{"on_timeout", h.AcceptOnTimeout == other.AcceptOnTimeout},
		{"on_kafka_unavailable", h.WaitForKafka == other.WaitForKafka},
		{"max_body", h.MaxBody == other.MaxBody},
		{"rate", h.Rate == other.Rate},
		{"rate_per_source", h.SourceRate == other.SourceRate},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}
