package rules

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// CarriedHeaders are the request headers that the ingress always writes as record headers. It leaves their
// values unchanged, except that idempotency-key loses its quotes. It also carries the attributes of
// CloudEvents (EventRequestPrefix).
var CarriedHeaders = [...]string{"content-type", "idempotency-key", "traceparent", "tracestate"}

// credentialHeaders are refused as record headers, because they would write secrets into Kafka.
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
		case name == PrincipalHeader:
			d.fail(n, at, "%s is written by the ingress, with the name that it has authenticated: leave it out", written)
		case slices.Contains(credentialHeaders, name):
			d.fail(n, at, "%s holds credentials, which must not get into Kafka", written)
		case eventAttribute(name, EventRequestPrefix) != "":
			d.fail(n, at, "%s is an attribute of CloudEvents, always carried as %s%s: leave it out", written, EventRecordPrefix, name[len(EventRequestPrefix):])
		case eventAttribute(name, EventRecordPrefix) != "":
			d.fail(n, at, "%s is the record header of the CloudEvents attribute in %s%s, which is always carried: leave it out",
				written, EventRequestPrefix, name[len(EventRecordPrefix):])
		case slices.Contains(names, name):
			d.fail(n, at, "%s is listed twice", written)
		}
		names = append(names, name)
	})
	slices.Sort(names) // the order of the list has no meaning
	return names
}

// validateCarried refuses key sources for which no HTTP request has a value: a header that the ingress does not
// write into the record, and the record key.
func (d *decoder) validateCarried(r *draft) {
	isRecordKey := func(s Source) bool { return kinds[s.kind].carried == partRecordKey || s.readsPart(ofRecordKey) }
	switch {
	case r.Prepartitioned && slices.ContainsFunc(r.Keys, isRecordKey):
		d.failAt(r, "http", "an HTTP request has no record key, which selects the partition of a prepartitioned route: "+
			"take record_key out of key, or leave prepartitioned out")
	case len(r.Keys) > 0 && !slices.ContainsFunc(r.Keys, func(s Source) bool { return !isRecordKey(s) }):
		d.failAt(r, "http", "an HTTP request has no record key: add a source that yields a key")
	}
	keys := r.nodes["key"]
	for i, s := range r.Keys {
		at := keys
		if len(keys.Content) == len(r.Keys) { // otherwise d.sources left out entries with mistakes, and the indexes would differ
			at = keys.Content[i]
		}
		for _, name := range s.headers() {
			d.requireCarried(r, at, join(r.at, "key"), name)
		}
	}
	if r.Match != nil && r.Match.Header != "" {
		d.requireCarried(r, r.nodes["match"], join(r.at, "match"), r.Match.Header)
	}
	if x := r.Claim.Request; x != nil && x.Header != "" {
		d.requireCarried(r, r.nodes["request"], join(r.at, "request"), x.Header)
	}
}

// ReadsHeaders returns the names of the record headers on which the verdict on an event of the route depends,
// or from which its tenant, sender or request id is read.
func (r *Route) ReadsHeaders() (names []string) {
	sources := r.Keys
	if r.Shadow != nil {
		sources = slices.Concat(r.Keys, r.Shadow.Keys)
	}
	for i := range sources {
		names = append(names, sources[i].headers()...)
	}
	if m := r.Match; m != nil && m.Header != "" {
		names = append(names, m.Header)
	}
	if x := r.Tenant; x != nil && x.Kind == TenantHeader {
		names = append(names, x.Header)
	}
	if x := r.Sender; x != nil && x.Kind == SenderHeader {
		names = append(names, x.Header)
	}
	if x := r.Claim.Request; x != nil && x.Header != "" {
		names = append(names, x.Header)
	}
	return names
}

// requireCarried reports a mistake unless the ingress writes this request header into the record, and unless
// the name is in lower case: names of record headers are case-sensitive, and the ingress writes them in lower
// case.
func (d *decoder) requireCarried(r *draft, n *yaml.Node, at, header string) {
	name := strings.ToLower(header)
	if attribute := eventAttribute(name, EventRequestPrefix); attribute != "" {
		d.fail(n, at, "the CloudEvents attribute in an HTTP request's header %s is carried as %s%s: write that", header, EventRecordPrefix, attribute)
		return
	}
	carried := eventAttribute(name, EventRecordPrefix) != "" || slices.Contains(CarriedHeaders[:], name) || slices.Contains(r.HTTP.Headers, name)
	if !carried {
		d.fail(n, at, "an HTTP request's header %s is not carried: add it to http.headers", header)
	}
	if name != header {
		d.fail(n, at, "an HTTP request's headers are carried under names in lower case: write %s", name)
	}
}

// ownHeaderPrefix begins the names of the headers that oncebus sets. The ingress and the router remove
// incoming headers with such a name, so no route may read such a header.
const ownHeaderPrefix = "oncebus-"

func (d *decoder) refuseOwnHeader(n *yaml.Node, at, name string) {
	if strings.HasPrefix(strings.ToLower(name), ownHeaderPrefix) {
		d.fail(n, at, "oncebus removes %s* headers from incoming records: name another header", ownHeaderPrefix)
	}
}

// transportHeaders are the headers that the HTTP server removes from a request.
var transportHeaders = []string{"host", "transfer-encoding", "trailer"}

// headerName reads the name of an HTTP request header (RFC 9110, section 5.6.2: a
// token).
func (d *decoder) headerName(n *yaml.Node, at string) string {
	name, ok := d.text(n, at)
	switch {
	case !ok:
	case slices.Contains(transportHeaders, strings.ToLower(name)):
		d.fail(n, at, "%s belongs to the connection and is removed from the headers: name another header", name)
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
