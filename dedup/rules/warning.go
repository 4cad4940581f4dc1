package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// warn adds a warning. A warning is about a valid file: the routes run, but something about them is at risk.
// ParseRoutes returns the texts in Routes.Warnings.
func (d *decoder) warn(n *yaml.Node, at, format string, args ...any) {
	text := fmt.Sprintf("%s:%d: %s: ", d.file, n.Line, at) + fmt.Sprintf(format, args...)
	d.warnings = append(d.warnings, warning{n.Line, text})
}

// warning is a text with its line, by which warningTexts sorts.
type warning struct {
	line int
	text string
}

// warningTexts returns the warnings in the file's order.
func (d *decoder) warningTexts() []string {
	slices.SortStableFunc(d.warnings, func(a, b warning) int { return cmp.Compare(a.line, b.line) })
	var texts []string
	for _, w := range d.warnings {
		texts = append(texts, w.text)
	}
	return texts
}

// Signs reports whether the signature covers anything. Token, Bearer and NoSignature sign nothing.
func (s *Signature) Signs() bool {
	return s.Scheme != Token && s.Scheme != Bearer && s.Scheme != NoSignature
}

// Covers reports whether the signature covers a request header. Whoever captures a request can replace a header
// that the signature does not cover. If the scheme signs nothing, a header is no easier to replace than the
// body, so Covers returns true.
func (s *Signature) Covers(header string) bool {
	var covered []string
	switch s.Scheme {
	case StandardWebhooks:
		covered = []string{"Webhook-Id", "Webhook-Timestamp"}
	case Svix:
		covered = []string{"Svix-Id", "Svix-Timestamp"}
	case Slack:
		covered = []string{"X-Slack-Request-Timestamp"}
	case Zoom:
		covered = []string{"X-Zm-Request-Timestamp"}
	case Discord:
		covered = []string{"X-Signature-Timestamp"}
	case SendGrid:
		covered = []string{"X-Twilio-Email-Event-Webhook-Timestamp"}
	case PayPal:
		covered = []string{"Paypal-Transmission-Id", "Paypal-Transmission-Time"}
	case HMAC:
		covered = []string{s.TimestampHeader}
	case GitHub, Stripe, Paddle, Square, Twilio, Adyen:
	case Hook0: // the sender chooses which headers it signs
	case Token, Bearer, NoSignature:
		return true
	}
	return slices.ContainsFunc(covered, func(name string) bool { return strings.EqualFold(name, header) })
}

// warnUnsigned warns of routes whose signature covers the body, but not a header on which the key depends.
// Somebody who captures a request can change the value of that header: the signature stays valid, and the
// request becomes a new event.
func (d *decoder) warnUnsigned(drafts []*draft) {
	namespaces := map[string][]string{} // namespaces of the routes of a path
	for _, r := range drafts {
		if r.HTTP != nil && !slices.Contains(namespaces[r.HTTP.Path], r.Namespace) {
			namespaces[r.HTTP.Path] = append(namespaces[r.HTTP.Path], r.Namespace)
		}
	}
	for _, r := range drafts {
		if r.HTTP == nil {
			continue
		}
		d.warnUnsignedKey(r)
		if x := r.Tenant; x != nil && x.Kind == TenantHeader && !r.HTTP.Signature.Covers(x.Header) {
			d.warn(r.nodes["tenant"], join(r.at, "tenant"), "header %s is not covered by the signature, scheme: %v: a captured request with another value there is an event of another tenant; use a field of the body, or principal",
				x.Header, r.HTTP.Signature.Scheme)
		}
		if m := r.Match; m != nil && m.Header != "" && len(namespaces[r.HTTP.Path]) > 1 && !r.HTTP.Signature.Covers(m.Header) {
			d.warn(r.nodes["match"], join(r.at, "match"), "header %s selects the namespace (of %s) and is not covered by the signature, scheme: %v: "+
				"a captured request with another value there is a new event; match a payload field, or give the routes of %s one namespace",
				m.Header, strings.Join(namespaces[r.HTTP.Path], ", "), r.HTTP.Signature.Scheme, r.HTTP.Path)
		}
	}
}

func (d *decoder) warnUnsignedKey(r *draft) {
	s := &r.HTTP.Signature
	for i, source := range r.Keys {
		n, at := r.nodes["key"].Content[i], fmt.Sprintf("%s[%d]", join(r.at, "key"), i)
		for _, name := range source.headers() {
			if !s.Covers(name) {
				d.warn(n, at, "header %s is not covered by the signature, scheme: %v: a captured request with another value there is a new event; %s",
					name, s.Scheme, s.signedKey())
			}
		}
		switch {
		case s.Scheme == Adyen && !source.readsOnly(adyenSigned):
			d.warn(n, at, "%s reads what Adyen does not sign: a captured request with another value there is a new event; use pspReference, eventCode and success", source.text)
		case s.Scheme == Twilio && i == 0 && source.kind != sourceForm:
			d.warn(n, at, "Twilio signs the fields of a form joined, not its bytes and borders: a captured request with another form of the same text is a new event; put form first")
		case source.kind == sourceForm && s.Scheme != Twilio && !s.Covers(headerContentType):
			d.warn(n, at, "form needs the header content-type, which is not covered by the signature, scheme: %v: "+
				"a captured request with another value there is a new event; form is for scheme: twilio; %s", s.Scheme, s.signedKey())
		case source.kind == sourceCloudEvent && !s.Covers(headerCEID):
			d.warn(n, at, "in binary mode source and id are headers, which are not covered by the signature, scheme: %v: "+
				"a captured request with another id is a new event; %s", s.Scheme, s.signedKey())
		}
	}
}

// adyenSigned are the paths of the fields that Adyen signs.
var adyenSigned = adyenPaths("pspReference", "originalReference", "merchantAccountCode", "merchantReference", "amount.value", "amount.currency", "eventCode", "success")

func adyenPaths(fields ...string) []string {
	for i := range fields {
		fields[i] = "notificationItems.0.NotificationRequestItem." + fields[i]
	}
	return fields
}

// readsOnly reports whether the source reads some of the paths and nothing else.
func (s *Source) readsOnly(paths []string) bool {
	fields := s.Reads()
	return len(fields) > 0 && !slices.ContainsFunc(fields, func(f Field) bool { return !slices.Contains(paths, f.Path.Text) })
}

// signedKey returns a text that advises a key source that the signature covers.
func (s *Signature) signedKey() string {
	if s.Scheme == StandardWebhooks {
		return "use header: webhook-id, which is signed, or a field of the body"
	}
	if s.Scheme == Svix {
		return "use header: svix-id, which is signed, or a field of the body"
	}
	return "use a field of the body, or raw for the whole body"
}

// warnSources warns of key sources that are never tried, of normalisers that refuse every event, and of
// settings with which different orders get the same key.
func (d *decoder) warnSources(drafts []*draft) {
	for _, r := range drafts {
		for i := range r.Keys {
			source := &r.Keys[i]
			n, at := r.nodes["key"].Content[i], fmt.Sprintf("%s[%d]", join(r.at, "key"), i)
			if j := slices.IndexFunc(r.Keys[:i], func(earlier Source) bool { return earlier.leavesNothingTo(source) }); j >= 0 {
				d.warn(n, at, "%s is never tried: %s before it makes a key of every such event; move it up, or leave it out", source.text, r.Keys[j].text)
			}
			if o := source.order; o != nil && r.Fingerprint == nil {
				d.warn(n, at, "an order with a %[1]s and one with a %[2]s of the same amount have one key, since the key has the amount alone: add fingerprint: [%[1]s, %[2]s]",
					o.Limit.Path.Text, o.Stop.Path.Text)
			}
			for _, f := range source.fields {
				if first, second, ok := clash(f.Normalise); ok {
					d.warn(n, at, "%s never has a key: no result of %v is a time for %v; leave one of them out", f.label, first, second)
				}
			}
		}
	}
}

// warnDetails warns of a field that the key normalises but the details do not: two spellings of one value then
// have the same key but different details. It ignores the normaliser decimals of an order, because details
// compare numbers by value.
func (d *decoder) warnDetails(drafts []*draft) {
	for _, r := range drafts {
		for i := range r.Fingerprint {
			for k := range r.Fingerprint[i].Fields {
				f := &r.Fingerprint[i].Fields[k]
				steps := r.stepsInKey(f.Path.Text)
				if len(steps) == 0 || slices.Equal(steps, f.Normalise) {
					continue
				}
				compared := "as it is"
				if len(f.Normalise) > 0 {
					compared = "with " + StepsText(f.Normalise)
				}
				d.warn(r.nodes["fingerprint"], join(r.at, "fingerprint"), "field %[1]s is compared %[2]s, and the key reads it with %[3]s: two spellings with one key are a collision; "+
					"write fingerprint: {fields: [...], normalise: {%[1]s: ...}} with the same, or leave %[1]s out", f.Path.Text, compared, StepsText(steps))
			}
		}
	}
}

// stepsInKey returns the normalisers of a payload field in the first source that has normalisers for that
// field.
func (r *Route) stepsInKey(path string) []Normaliser {
	for i := range r.Keys {
		s := &r.Keys[i]
		if o := s.order; o != nil && (path == o.Symbol.Path.Text || path == o.Side.Path.Text || path == o.Type.Path.Text) {
			return []Normaliser{{kind: upper}}
		}
		for _, f := range s.payloadFields() {
			if f.Path.Text == path && len(f.Normalise) > 0 {
				return f.Normalise
			}
		}
	}
	return nil
}

// leavesNothingTo reports whether every event for which the source later would yield a key already gets a key
// from s, or gets no key at all.
func (s *Source) leavesNothingTo(later *Source) bool {
	switch {
	case s.kind == sourcePayload && (s.project == nil || !s.project.include):
		return later.kind != sourceRaw // a payload without a key of s is invalid, or a text
	case s.kind == sourceRaw && !s.ofText: // s yields a key for every payload that is not empty
		return later.kind == sourceForm || later.kind != sourceCloudEvent && len(later.payloadFields()) > 0
	}
	return false
}

// clash returns two normalisers of which the second refuses every result of the first.
func clash(steps []Normaliser) (first, second Normaliser, ok bool) {
	for i, x := range steps {
		if x.kind != decimals && x.kind != step {
			continue
		}
		for _, y := range steps[i+1:] {
			text := x.kind == decimals
			if y.kind == step && (y.format == RFC3339 || y.auto && text) {
				return x, y, true
			}
			if y.kind == decimals || y.kind == step {
				break // the normalisers after y work on the result of y
			}
		}
	}
	return Normaliser{}, Normaliser{}, false
}
