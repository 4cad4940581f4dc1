package rules

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Shadow is a key rule that is tried out on the events of a route. It emits nothing and drops nothing: it
// counts the events for which its verdict differs. An operator can promote a shadow that looks at all events:
// its rule then replaces the rule of the route.
type Shadow struct {
	Name   string // distinguishes the shadows of a route; a digest of the rule unless set
	Keys   []Source
	Window time.Duration
	Grace  time.Duration
	// Sample is the share of keys that the shadow looks at, above 0 and up to 1.
	Sample float64

	// Route is the route with the shadow's rule: with the shadow's keys and a separate namespace. Its name
	// joins the names of the route and of the shadow. No list Routes.Routes of a file contains it.
	Route  *Route
	routes *Routes // with Route alone
}

// ShadowMark separates the name of a shadow from the name of its route or namespace, as in orders~next. No
// other name in the file may contain it.
const ShadowMark = "~"

// DefaultSample is the share of keys for a shadow that names no share. The shadow's rows for a hundredth of the
// keys need little space in comparison with the rows of the route.
const DefaultSample = 0.01

// IsFull reports whether the shadow looks at all events.
func (s *Shadow) IsFull() bool { return s.Sample == 1 }

// Samples reports whether the shadow looks at a key. It compares eight bytes of the key's digest with Sample.
// The partition of a key is a hash of the whole digest with a secret, which is independent of these eight
// bytes, so the sampled keys spread over all partitions.
func (s *Shadow) Samples(digest *dedup.Digest) bool {
	return s.IsFull() || float64(binary.LittleEndian.Uint64(digest[8:])) < s.Sample*math.MaxUint64
}

// NewDeriver returns a deriver of the new key. It derives records of the route's topics.
func (s *Shadow) NewDeriver(secret []byte) *Deriver { return s.routes.NewDeriver(secret) }

// WireName returns the name of the route in envelopes. The wire name of a route whose key rule was promoted
// includes the name of the shadow, because an envelope contains the key of one rule only: the name tells which
// rule made it.
func (r *Route) WireName() string {
	if _, shadow, promoted := strings.Cut(r.Namespace, ShadowMark); promoted && r.shadowOf == "" {
		return r.Name + ShadowMark + shadow
	}
	return r.Name
}

// ShadowOf returns the name of the route of which r is the shadow's route; "" for any other.
func (r *Route) ShadowOf() string { return r.shadowOf }

// IsPromotionOf reports whether r is the promotion of old's shadow: r has the name of old and the namespace
// of that shadow.
func (r *Route) IsPromotionOf(old *Route) bool {
	return old != nil && old.Shadow != nil && r.Name == old.Name && r.Namespace == old.Shadow.Route.Namespace && old.Namespace != r.Namespace
}

var shadowFields = []fieldOf[Shadow]{
	{"key", func(d *decoder, s *Shadow, n *yaml.Node, at string) { s.Keys = d.sources(n, at) }},
	{"window", func(d *decoder, s *Shadow, n *yaml.Node, at string) { s.Window = d.duration(n, at, shortestWindow) }},
	{"grace", func(d *decoder, s *Shadow, n *yaml.Node, at string) { s.Grace = d.duration(n, at, 0) }},
	{"sample", func(d *decoder, s *Shadow, n *yaml.Node, at string) { s.Sample = d.share(n, at) }},
	{"name", func(d *decoder, s *Shadow, n *yaml.Node, at string) {
		if s.Name, _ = d.text(n, at); s.Name != "" && (!validName(s.Name) || len(s.Name) > shadowNameMax) {
			d.fail(n, at, "%q: want 1 to %d of a-z, 0-9, dot, dash and underscore", s.Name, shadowNameMax)
		}
	}},
}

// shadowNameMax is the longest name of a shadow, in bytes.
const shadowNameMax = 16

// shadow reads the shadow of a route.
func (d *decoder) shadow(n *yaml.Node, at string) *Shadow {
	s := &Shadow{Sample: DefaultSample, Window: -1, Grace: -1}
	nodes := decodeObject(d, n, at, s, shadowFields)
	if nodes == nil {
		return nil
	}
	d.require(n, at, nodes, "key")
	return s
}

// share reads a share such as 1% or 0.5%.
func (d *decoder) share(n *yaml.Node, at string) float64 {
	number, isPercent := strings.CutSuffix(n.Value, "%")
	v, err := strconv.ParseFloat(number, 64)
	if n.Kind != yaml.ScalarNode || !isPercent || err != nil || !(v >= 0.001 && v <= 100) {
		d.fail(n, at, "want a share from 0.001%% to 100%%, such as 1%%, found %s", describe(n))
		return DefaultSample
	}
	return v / 100
}

// validateShadow refuses a shadow on a route on which the shadow's rows would be incomplete, or would have
// another meaning than the rows of the route.
func (d *decoder) validateShadow(r *draft, drafts []*draft) {
	if r.Shadow == nil {
		return
	}
	for _, c := range []struct {
		refused bool
		problem string
	}{
		{r.Prepartitioned, "is not possible with prepartitioned: a copy by the new key may be in another partition of the topic, which another task reads; leave prepartitioned out, with another name, namespace and topics"},
		{r.Mode == ClaimMode, "is not possible in claim mode: a claim has one key; try the new key on a plain route with the same topics in another app"},
		{r.RejectsAfterWindow, "is not possible with on_after_window: reject: the shadow would let through what the route refuses"},
		{(&Route{Keys: r.Shadow.Keys}).AdjacentStep() > 0, "is not possible with adjacent_buckets: leave them out of the key of the shadow"},
		{r.AdjacentStep() > 0, "is not possible on a route with adjacent_buckets: leave them out of its key, with another namespace"},
	} {
		if c.refused {
			d.failAt(r, "shadow", "%s", c.problem)
		}
	}
	for _, other := range drafts {
		if other != r && other.Namespace == r.Namespace {
			d.failAt(r, "shadow", "namespace %q is shared with the route in line %d, whose events the shadow would not see: give both a namespace of their own", r.Namespace, other.node.Line)
		}
	}
}

// completeShadows makes the routes of all shadows, if the file has no mistakes.
func (d *decoder) completeShadows(drafts []*draft) {
	if len(d.mistakes) > 0 {
		return
	}
	for _, r := range drafts {
		if r.Shadow == nil {
			continue
		}
		d.completeShadow(r)
		for _, other := range drafts {
			if other.Namespace == r.Shadow.Route.Namespace {
				d.failAt(r, "shadow", "its namespace %s is that of the route in line %d: give the shadow another name, such as {name: next, key: ...}", other.Namespace, other.node.Line)
			}
		}
		if n := len(r.Shadow.Route.Namespace); n > nameBytesMax {
			d.failAt(r, "shadow", "its namespace %s has %d bytes, at most %d: give the route a shorter namespace", r.Shadow.Route.Namespace, n, nameBytesMax)
		}
	}
}

// completeShadow makes the route of a shadow. It reads the route's node again instead of copying the route,
// because Routes.index stores slots and masks in the routes, and the copy belongs to another Routes value.
func (d *decoder) completeShadow(r *draft) {
	s := r.Shadow
	again := (&decoder{file: d.file, data: d.data}).route(r.node, r.at)
	p := &again.Route
	p.Keys, p.Window, p.Grace = p.Shadow.Keys, r.Window, r.Grace
	if s.Window >= 0 {
		p.Window = s.Window
	}
	if s.Grace >= 0 {
		p.Grace = s.Grace
	}
	s.Window, s.Grace = p.Window, p.Grace
	p.Skew = min(r.Skew, p.Window+p.Grace)
	p.Match, p.HTTP, p.Quota, p.Sender, p.Shadow, p.Limits, p.FailOpen, p.shadowOf = nil, nil, nil, nil, nil, Limits{}, false, r.Name
	base, _, _ := strings.Cut(r.Namespace, ShadowMark)
	p.Namespace = base
	if s.Name == "" {
		rule := p.KeyRule() + " window=" + p.Window.String() + " grace=" + p.Grace.String() + " sample=" + strconv.FormatFloat(s.Sample, 'g', -1, 64)
		sum := sha256.Sum256([]byte(rule))
		s.Name = hex.EncodeToString(sum[:4])
	}
	p.Namespace, p.Name = base+ShadowMark+s.Name, r.Name+ShadowMark+s.Name
	s.Route, s.routes = p, &Routes{Routes: []*Route{p}}
	s.routes.index()
}

// RefuseShadows returns an error if a route has a shadow. The error gives the reason why, and says what the
// operator can do.
func (rs *Routes) RefuseShadows(why string) error {
	for _, r := range rs.Routes {
		if r.Shadow != nil {
			return fmt.Errorf("route %s has a shadow, and %s: promote it by 'oncebus promote', or remove it and run 'oncebus apply'", r.Name, why)
		}
	}
	return nil
}
