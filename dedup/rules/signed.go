package rules

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// httpNode returns the node of a field of an http part, such as "signature.header", or, if the file lacks the
// field, the innermost part around it that the file has.
func httpNode(r *draft, field string) *yaml.Node {
	n := r.nodes["http"]
	for name := range strings.SplitSeq(field, ".") {
		inner := valueAt(n, name)
		if inner == nil {
			break
		}
		n = inner
	}
	return n
}

// warnHTTP adds a warning at a field of a route's http part.
func (d *decoder) warnHTTP(r *draft, field, format string, args ...any) {
	d.warn(httpNode(r, field), join(join(r.at, "http"), field), format, args...)
}

// warnSecrets warns of a secret that several paths use, so that its owner can do more than send events to one
// path.
func (d *decoder) warnSecrets(drafts []*draft) {
	withHTTP := slices.DeleteFunc(slices.Clone(drafts), func(r *draft) bool { return r.HTTP == nil })
	for i, r := range withHTTP {
		if r.HTTP.Outcomes != nil {
			d.warnOutcomes(r, withHTTP)
		}
		s := &r.HTTP.Signature
		first := slices.IndexFunc(withHTTP[:i], func(other *draft) bool {
			o := other.HTTP
			return o.Path != r.HTTP.Path && o.Signature.Secret == s.Secret && other.Namespace != r.Namespace && o.Signature.coversNoPath()
		})
		if s.coversNoPath() && first >= 0 {
			d.warnHTTP(r, "signature.secret", "%s also signs the requests of %s: a captured one of either path is genuine at the other, and a new event there; give each path a secret",
				s.Secret, withHTTP[first].HTTP.Path)
		}
	}
}

// coversNoPath reports whether a signature with this secret is valid for every path that uses the secret.
func (s *Signature) coversNoPath() bool {
	return s.Signs() && s.Scheme != Square && s.Scheme != Twilio
}

// warnOutcomes warns of outcome paths to which clients that are not executors can send.
func (d *decoder) warnOutcomes(r *draft, drafts []*draft) {
	const at = "outcomes.signature"
	s := r.HTTP.Outcomes
	if s.Scheme == NoSignature {
		d.warnHTTP(r, at+".scheme", "none lets anybody who reaches the port end, free or erase a key: use bearer or token")
		return
	}
	if i := slices.IndexFunc(drafts, func(other *draft) bool { return other.HTTP.Signature.Secret == s.Secret }); i >= 0 {
		d.warnHTTP(r, at+".secret", "%s is the secret of the senders of %s, who could end, free or erase a key with it: give the executors one of their own",
			s.Secret, drafts[i].HTTP.Path)
	}
	if s.Signs() {
		d.warnHTTP(r, at+".scheme", "%v does not cover the headers of an outcome: a captured one with another Oncebus-Claim-Token or Oncebus-Outcome is genuine; use bearer or token", s.Scheme)
	}
}
