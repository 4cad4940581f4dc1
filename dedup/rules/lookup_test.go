package rules

import (
	"slices"
	"strings"
	"testing"
)

// TestOfKeyFindsTheDigest: for every source, the dedup key alone leads to the digest of
// its row, and to its task, except for an order.
func TestOfKeyFindsTheDigest(t *testing.T) {
	for _, source := range []string{
		"record_key", "{header: h}", "{field: id}", "{fields: [id, b]}", "{hash: [id]}", "{payload: {exclude: [b]}}", "raw", "cloudevent", "order",
	} {
		for _, keys := range []string{"[" + source + "]", "[{header: absent}, " + source + "]"} {
			for _, more := range []string{"", "secret: true"} {
				d := oneRoute(t, keys, more).NewDeriver([]byte("sixteen bytes or more"))
				want := d.Derive(&Input{
					Topic: "in", Key: []byte("k"), Headers: headerMap{"h": "1", "ce_source": "s", "ce_id": "1"}, Timestamp: 1,
					Value: []byte(`{"id":"x","b":"y","account":"A","symbol":"X","side":"buy","quantity":"1","type":"MARKET","timestamp":1700000000000}`),
				})
				if want.Finding != Keyed {
					t.Fatalf("%s: %v %s", keys, want.Finding, want.Reason)
				}
				if !slices.ContainsFunc(want.Route.OfKey(want.Key), func(got Derived) bool {
					return got.Digest == want.Digest && got.Key == want.Key && got.Route == want.Route && (got.Routing == want.Routing) == (source != "order")
				}) {
					t.Errorf("%s %s: the digest is not found", keys, more)
				}
			}
		}
	}
}

// TestOfIDFindsTheKey: an id leads to the key of the event that has it.
func TestOfIDFindsTheKey(t *testing.T) {
	for _, c := range []struct {
		keys, id string
		in       Input
	}{
		{"[{field: id}]", "t-1", Input{Value: []byte(`{"id":"t-1"}`)}},
		{"[{field: id}]", "1.50", Input{Value: []byte(`{"id":"1.50"}`)}},
		{"[{field: id}]", "1.50", Input{Value: []byte(`{"id":1.50}`)}},
		{"[{field: id}]", "1e3", Input{Value: []byte(`{"id":1e3}`)}},
		{"[{field: id, normalise: [trim, lower]}]", " AB", Input{Value: []byte(`{"id":"ab "}`)}},
		{"[{header: h}]", "h-1", Input{Headers: headerMap{"h": "h-1"}}},
		{"[record_key]", "k-1", Input{Key: []byte("k-1")}},
		{"[{hash: [a]}, {field: id}]", "t-1", Input{Value: []byte(`{"id":"t-1"}`)}},
	} {
		d := oneRoute(t, c.keys).NewDeriver(nil)
		c.in.Topic, c.in.Timestamp = "in", 1
		want := d.Derive(&c.in)
		found, err := d.OfID(want.Route, c.id)
		if err != nil || !slices.ContainsFunc(found, func(got Derived) bool {
			return got.Key == want.Key && got.Digest == want.Digest && got.Routing == want.Routing
		}) {
			t.Errorf("%s %q: %v, %v", c.keys, c.id, found, err)
		}
	}
	for _, c := range []struct {
		keys string
		ids  []string
		in   Input
	}{
		{"[{fields: [account, id]}]", []string{"a", "1"}, Input{Value: []byte(`{"account":"a","id":"1"}`)}},
		{"[{fields: [account, id]}]", []string{"a", "1.50"}, Input{Value: []byte(`{"account":"a","id":1.50}`)}},
		{"[{fields: [account, id], normalise: {account: [trim, lower]}}]", []string{" A", "1"}, Input{Value: []byte(`{"account":"a ","id":1}`)}},
		{"[cloudevent]", []string{"shop", "7"}, Input{Headers: headerMap{"ce_source": "shop", "ce_id": "7"}}},
	} {
		d := oneRoute(t, c.keys, "secret: true").NewDeriver([]byte("sixteen bytes or more"))
		c.in.Topic, c.in.Timestamp = "in", 1
		want := d.Derive(&c.in)
		found, err := d.OfID(want.Route, c.ids...)
		if want.Finding != Keyed || err != nil || !slices.ContainsFunc(found, func(got Derived) bool {
			return got.Key == want.Key && got.Digest == want.Digest && got.Routing == want.Routing
		}) {
			t.Errorf("%s %q: %v, %v, %s", c.keys, c.ids, found, err, want.Reason)
		}
		if _, err := d.OfID(want.Route, "a", "b", "c"); err == nil || !strings.Contains(err.Error(), "has no key of these 3 ids") {
			t.Errorf("%s: %v", c.keys, err)
		}
	}
	d := oneRoute(t, "[{hash: [a]}, {fields: [a, b]}]").NewDeriver(nil)
	if _, err := d.OfID(d.routes.Routes[0], "x"); err == nil || !strings.Contains(err.Error(), "its sources are hash: [a]; fields: [a, b]; pass the event") {
		t.Errorf("no id: %v", err)
	}
	d = oneRoute(t, "[{field: id}]").NewDeriver(nil)
	if _, err := d.OfID(d.routes.Routes[0], strings.Repeat("x", 1<<20)); err == nil || !strings.Contains(err.Error(), "key limit") {
		t.Errorf("a long id: %v", err)
	}
}
