package rules

import (
	"strings"
	"testing"
	"time"
)

const shadowed = `routes:
  - name: orders
    topics: [orders.raw]
    key: [{field: id}]
    window: 1h
    output: orders.unique
    fingerprint: [amount]
    time: {field: at, format: unix_ms}
`

// TestShadowHasARuleOfItsOwn: its route has another namespace and key, the rest is that of the
// route. The keys of both are derived from one record.
func TestShadowHasARuleOfItsOwn(t *testing.T) {
	rs, err := ParseRoutes("routes.yaml", []byte(shadowed+"    shadow: {key: [{field: number}], window: 2h, name: by-number}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := rs.Routes[0]
	s := r.Shadow
	if s.Route.Namespace != "orders~by-number" || s.Route.ShadowOf() != "orders" || s.Window != 2*time.Hour || s.Grace != r.Grace || s.Sample != DefaultSample || r.Window != time.Hour {
		t.Errorf("the shadow is %+v", s)
	}
	in := Input{Topic: "orders.raw", Value: []byte(`{"amount":"5","number":"n1","id":"a","at":1000}`)}
	live, shadow := rs.NewDeriver(nil).Derive(&in), s.NewDeriver(nil).Derive(&in)
	if live.Finding != Keyed || shadow.Finding != Keyed || live.Digest == shadow.Digest || live.Fingerprint != shadow.Fingerprint || live.Time != shadow.Time {
		t.Errorf("the route derives %+v, the shadow %+v", live, shadow)
	}
	promoted := strings.NewReplacer("field: id", "field: number", "window: 1h", "window: 2h").Replace(shadowed) + "    namespace: orders~by-number\n"
	next, err := ParseRoutes("routes.yaml", []byte(promoted))
	if err != nil {
		t.Fatal(err)
	}
	if d := next.NewDeriver(nil).Derive(&in); d.Digest != shadow.Digest || d.Routing != shadow.Routing || next.Routes[0].WireName() != "orders~by-number" || r.WireName() != "orders" || !next.Routes[0].IsPromotionOf(r) {
		t.Errorf("promoted, the route derives %+v, the shadow %+v", d, shadow)
	}
}

// TestShadowSamplesByKey: the share of keys is that of the file, and a key is in it or not.
func TestShadowSamplesByKey(t *testing.T) {
	rs, err := ParseRoutes("routes.yaml", []byte(shadowed+"    shadow: {key: [{field: number}], sample: 10%}\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := rs.Routes[0].Shadow
	d, n := s.NewDeriver(nil), 0
	for i := range 20_000 {
		derived := d.Derive(&Input{Topic: "orders.raw", Value: []byte(`{"amount":"5","number":"n` + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + time.Duration(i).String() + `","at":1000}`)})
		if s.Samples(&derived.Digest) {
			n++
		}
	}
	if n < 1800 || n > 2200 {
		t.Errorf("%d of 20,000 keys are looked at, want some 2,000", n)
	}
}

// TestShadowIsRefused: where its rows would not be complete.
func TestShadowIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"without a key":      {shadowed + "    shadow: {window: 1h}\n", "shadow.key: is required"},
		"share":              {shadowed + "    shadow: {key: [{field: n}], sample: 0.5}\n", "want a share"},
		"prepartitioned":     {shadowed + "    prepartitioned: true\n    shadow: {key: [{field: n}]}\n", "not possible with prepartitioned"},
		"on_after_window":    {shadowed + "    on_after_window: reject\n    shadow: {key: [{field: n}]}\n", "not possible with on_after_window: reject"},
		"claim mode":         {shadowed + "    mode: claim\n    outcomes: o\n    replies: r\n    shadow: {key: [{field: n}]}\n", "not possible in claim mode"},
		"name":               {shadowed + "    shadow: {key: [{field: n}], name: a~b}\n", "want 1 to 16"},
		"the rule in force":  {shadowed + "    namespace: orders~a\n    shadow: {key: [{field: n}], name: a}\n", "give the shadow another name"},
		"a shared namespace": {shadowed + "    shadow: {key: [{field: n}]}\n" + strings.TrimPrefix(strings.NewReplacer("name: orders", "name: others", "orders.raw", "others.raw").Replace(shadowed), "routes:\n") + "    namespace: orders\n", "is shared with the route"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseRoutes("routes.yaml", []byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
