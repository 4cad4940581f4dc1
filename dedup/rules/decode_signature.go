package rules

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// signatureDraft is a signature being read.
type signatureDraft struct {
	Signature
	known bool // the scheme is one
}

// hmacOnly are the fields that scheme: hmac alone has.
var hmacOnly = []string{"header", "algorithm", "encoding", "prefix", "timestamp_header", "separator"}

// signature reads how requests are signed and refuses what the scheme does not
// use: a field that is read by nobody looks like protection.
func (d *decoder) signature(n *yaml.Node, at string) Signature {
	s := &signatureDraft{}
	nodes := decodeObject(d, n, at, s, signatureFields)
	if nodes == nil {
		return s.Signature
	}
	d.require(n, at, nodes, "scheme")
	if !s.known {
		return s.Signature
	}
	if s.Scheme != NoSignature {
		d.require(n, at, nodes, "secret")
	} else if node := nodes["secret"]; node != nil {
		d.fail(node, join(at, "secret"), "scheme: none checks nothing: leave secret out")
	}
	if s.Scheme == HMAC {
		d.hmac(s, n, at, nodes)
	} else {
		for _, field := range hmacOnly {
			if node := nodes[field]; node != nil {
				d.fail(node, join(at, field), "belongs to scheme: hmac")
			}
		}
	}
	node := nodes["tolerance"]
	switch {
	case s.timestamped() && node == nil:
		s.Tolerance = DefaultTolerance
	case !s.timestamped() && node != nil && s.Scheme == HMAC:
		d.fail(node, join(at, "tolerance"), "no timestamp is signed: name its header in timestamp_header, or leave tolerance out")
	case !s.timestamped() && node != nil:
		d.fail(node, join(at, "tolerance"), "scheme: %v signs no timestamp: leave tolerance out", s.Scheme)
	}
	return s.Signature
}

// timestamped tells whether a timestamp is signed with the body.
func (s *Signature) timestamped() bool {
	switch s.Scheme {
	case StandardWebhooks, Stripe, Slack:
		return true
	case HMAC:
		return s.TimestampHeader != ""
	default:
		return false
	}
}

// hmac fills in the defaults of scheme: hmac.
func (d *decoder) hmac(s *signatureDraft, n *yaml.Node, at string, nodes map[string]*yaml.Node) {
	d.require(n, at, nodes, "header")
	if nodes["algorithm"] == nil {
		s.Algorithm = algorithmNames[0]
	}
	if nodes["encoding"] == nil {
		s.Encoding = encodingNames[0]
	}
	separator := nodes["separator"]
	switch {
	case nodes["timestamp_header"] != nil && separator == nil:
		s.Separator = "."
	case nodes["timestamp_header"] == nil && separator != nil:
		d.fail(separator, join(at, "separator"), "stands between timestamp and body, but no timestamp is signed: "+
			"name its header in timestamp_header, or leave separator out")
	case separator != nil && (s.Separator == "" || s.Separator[0] >= '0' && s.Separator[0] <= '9'):
		d.fail(separator, join(at, "separator"), "%q does not tell where the timestamp ends and the body begins: want one that begins with no digit", s.Separator)
	}
	if strings.HasPrefix(s.Prefix, " ") {
		d.fail(nodes["prefix"], join(at, "prefix"), "%q begins with a space, and no header's value does: leave it out", s.Prefix)
	}
	if s.Header != "" && strings.EqualFold(s.Header, s.TimestampHeader) {
		d.fail(nodes["timestamp_header"], join(at, "timestamp_header"), "%s holds the signature already", s.Header)
	}
}

// signatureTextMax is the longest prefix and separator, in bytes.
const signatureTextMax = 64

// signatureText reads what stands before a signature or after a timestamp.
func (d *decoder) signatureText(n *yaml.Node, at string) string {
	text := d.headerText(n, at)
	if len(text) > signatureTextMax {
		d.fail(n, at, "%d bytes are too many: at most %d", len(text), signatureTextMax)
	}
	return text
}

// secretName reads what names the setting of a secret. The endings are those of
// the settings that belong to it.
func (d *decoder) secretName(n *yaml.Node, at string) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" || !validSecretName(n.Value) {
		// The value is not shown: it may be a secret.
		d.fail(n, at, "want a name of 1 to %d of A-Z, 0-9 and underscore, not ending in _NEXT or _FILE: the secret itself comes from "+
			"ONCEBUS_INGRESS_SECRET_ and that name, never from the file", nameBytesMax)
		return ""
	}
	return n.Value
}

func validSecretName(s string) bool {
	illegal := func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' }
	return s != "" && len(s) <= nameBytesMax && !strings.ContainsFunc(s, illegal) &&
		!slices.ContainsFunc([]string{"_NEXT", "_FILE"}, func(end string) bool { return strings.HasSuffix(s, end) })
}
