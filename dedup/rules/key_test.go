package rules

import (
	"fmt"
	"strings"
	"testing"

	"oncebus/dedup"
)

func TestRouteSelection(t *testing.T) {
	rs := parse(t, `
routes:
  - {name: a, topics: [in], match: {field: kind, in: [signal, 7, true, 1.5]}, window: 1h, output: out, key: [{field: id}]}
  - {name: b, topics: [in, in2], match: {header: type, in: [order]}, window: 1h, output: out, key: [{field: id}]}
  - {name: c, topics: [in2], window: 1h, output: out, key: [record_key]}
`)
	d := rs.NewDeriver(nil)
	for _, v := range []struct {
		in     Input
		route  string
		reason string
	}{
		{in: Input{Topic: "in", Value: []byte(`{"kind":"signal","id":"1"}`)}, route: "a"},
		{in: Input{Topic: "in", Value: []byte(`{"kind":"s\u0069gnal","id":"1"}`)}, route: "a"},
		{in: Input{Topic: "in", Value: []byte(`{"kind":7.0,"id":"1"}`)}, route: "a"},
		{in: Input{Topic: "in", Value: []byte(`{"kind":1.5,"id":"1"}`)}, route: "a"},
		{in: Input{Topic: "in", Value: []byte(`{"kind":true,"id":"1"}`)}, route: "a"},
		{in: Input{Topic: "in", Value: []byte(`{"kind":"other","id":"1"}`), Headers: headerMap{"type": "order"}}, route: "b"},
		{in: Input{Topic: "in", Value: []byte(`{"kind":"other","id":"1"}`)}, route: "a", reason: "match: no route takes this record"},
		{in: Input{Topic: "in", Value: []byte(`{"kind":["signal"]}`)}, route: "a", reason: "match: no route takes this record"},
		{in: Input{Topic: "in", Value: []byte(`{"kind":null}`)}, route: "a", reason: "match: no route takes this record"},
		{in: Input{Topic: "in", Value: []byte(`{"kind":1e999}`)}, route: "a", reason: "match: no route takes this record"},
		{in: Input{Topic: "in", Value: []byte(`{`), Headers: headerMap{"type": "order"}}, route: "a", reason: "payload: not valid JSON"},
		{in: Input{Topic: "in2", Value: []byte(`{`), Key: []byte("k")}, route: "c"},
		{in: Input{Topic: "in2", Value: []byte(`{"id":"x"}`), Headers: headerMap{"type": "order"}}, route: "b"},
	} {
		got := d.Derive(&v.in)
		if got.Route.Name != v.route || !strings.HasPrefix(got.Reason, v.reason) || (got.Finding == Malformed) != (v.reason != "") {
			t.Errorf("%s %s: route %s, %v %q; want route %s, %q", v.in.Topic, v.in.Value, got.Route.Name, got.Finding, got.Reason, v.route, v.reason)
		}
	}
	if names := fmt.Sprint(Keyed, KeyMissing, Malformed, &rs.Routes[0].Keys[0]); names != "keyed missing_key malformed field: id" {
		t.Error(names)
	}
	if got := d.Derive(&Input{Topic: "elsewhere"}); got.Route != nil || got.Finding != Malformed {
		t.Errorf("a topic of no route: %+v", got)
	}
}

func TestNamespacesAndKindsHaveOwnDigests(t *testing.T) {
	seen := map[dedup.Digest]string{}
	for _, v := range []struct{ key, more, payload string }{
		{"[{field: a}]", "", `{"a":"x"}`},
		{"[{field: a}]", "namespace: other", `{"a":"x"}`},
		{"[{field: a}]", "secret: true", `{"a":"x"}`},
		{"[raw]", "", "x"},
		{"[{fields: [a]}]", "", `{"a":"x"}`},
	} {
		var more []string
		if v.more != "" {
			more = []string{v.more}
		}
		got := derive(t, v.key, v.payload, more...)
		if was, ok := seen[got.Digest]; ok || got.Finding != Keyed {
			t.Errorf("%+v has the digest of %s (%s)", v, was, got.Reason)
		}
		seen[got.Digest] = v.key + v.more
	}
	// The raw payload "x" and the id "x" have the same dedup key: only the kind differs.
	if derive(t, "[raw]", "x").Key != derive(t, "[{field: a}]", `{"a":"x"}`).Key {
		t.Error("the dedup key is not the plain hash of the bytes")
	}
}

func TestSecretIsRequired(t *testing.T) {
	rs := oneRoute(t, "[raw]", "secret: true")
	if !rs.NeedsSecret() || oneRoute(t, "[raw]").NeedsSecret() {
		t.Error("NeedsSecret is wrong")
	}
	defer func() {
		if recover() == nil {
			t.Error("NewDeriver returned a deriver without the secret it needs")
		}
	}()
	rs.NewDeriver(nil)
}

func TestEventTime(t *testing.T) {
	const key = "[{field: id}]"
	for _, v := range []struct {
		field, payload string
		want           int64
		reason         string
	}{
		{"", `{"id":"a"}`, 5, ""},
		{"time: {field: t}", `{"id":"a","t":1700000000000}`, 1700000000000, ""},
		{"time: {field: t}", `{"id":"a","t":"1700000000000"}`, 1700000000000, ""},
		{"time: {field: t}", `{"id":"a","t":1.7e12}`, 1700000000000, ""},
		{"time: {field: t}", `{"id":"a","t":1700000000000.9}`, 1700000000000, ""},
		{"time: {field: t, format: unix_s}", `{"id":"a","t":1700000000.1239}`, 1700000000123, ""},
		{"time: {field: t, format: unix_s}", `{"id":"a","t":1700000000}`, 1700000000000, ""},
		{"time: {field: m.t, format: rfc3339}", `{"id":"a","m":{"t":"2023-11-14T22:13:20.123456Z"}}`, 1700000000123, ""},
		{"time: {field: t, format: rfc3339}", `{"id":"a","t":"2023-11-14T23:13:20+01:00"}`, 1700000000000, ""},
		{"time: {field: t}", `{"id":"a","t":0}`, 0, ""},
		{"time: {field: t}", `{"id":"a","t":253402300799999}`, 253402300799999, ""},
		{"time: {field: t}", `{"id":"a","t":253402300800000}`, 0, "time field t: the time is not between 1970 and 9999"},
		{"time: {field: t}", `{"id":"a","t":-0.5}`, 0, "time field t: the time is not between 1970 and 9999"},
		{"time: {field: t}", `{"id":"a","t":1e300}`, 0, "time field t: the time is not between 1970 and 9999"},
		{"time: {field: t, format: rfc3339}", `{"id":"a","t":"1969-12-31T23:59:59Z"}`, 0, "time field t: the time is not between 1970 and 9999"},
		{"time: {field: t}", `{"id":"a","t":"2023-11-14T22:13:20Z"}`, 0, "time field t: want a time as a number"},
		{"time: {field: t, format: rfc3339}", `{"id":"a","t":1700000000000}`, 0, "time field t: want a time such as 2026-01-02T15:04:05Z (RFC 3339)"},
		{"time: {field: t}", `{"id":"a","t":true}`, 0, "field t: want a string or number, found a boolean"},
		{"time: {field: t}", `{"id":"a"}`, 0, "time field t: absent"},
		{"time: {field: t}", `{"id":"a","t":null}`, 0, "time field t: null"},
	} {
		var more []string
		if v.field != "" {
			more = []string{v.field}
		}
		d := oneRoute(t, key, more...).NewDeriver(nil)
		got := d.Derive(&Input{Topic: "in", Value: []byte(v.payload), Timestamp: 5})
		if v.reason != "" {
			if got.Finding != Malformed || got.Reason != v.reason || got.Time != 5 {
				t.Errorf("%s %s: %v %q at %d, want %q", v.field, v.payload, got.Finding, got.Reason, got.Time, v.reason)
			}
		} else if got.Finding != Keyed || got.Time != v.want {
			t.Errorf("%s %s: %v %q at %d, want %d", v.field, v.payload, got.Finding, got.Reason, got.Time, v.want)
		}
	}
	d := oneRoute(t, "[record_key]", "time: {field: t}").NewDeriver(nil)
	if got := d.Derive(&Input{Topic: "in", Key: []byte("k"), Value: []byte(`{`)}); got.Reason != "payload: not valid JSON: unexpected EOF after offset 1" {
		t.Errorf("a time in a broken payload: %v %q", got.Finding, got.Reason)
	}
	d = oneRoute(t, key).NewDeriver(nil)
	if got := d.Derive(&Input{Topic: "in", Value: []byte(`{"id":"a"}`), Timestamp: -1}); got.Reason != "record: has no timestamp" {
		t.Errorf("no timestamp: %v %q", got.Finding, got.Reason)
	}
}

func TestCloudEventModes(t *testing.T) {
	d := oneRoute(t, "[cloudevent]").NewDeriver(nil)
	for _, v := range []struct {
		name    string
		in      Input
		finding Finding
		reason  string
	}{
		{"binary without id", Input{Headers: headerMap{"ce_source": "s"}}, KeyMissing, "no key: header ce_id: absent"},
		{"binary, empty source", Input{Headers: headerMap{"ce_source": "", "ce_id": "1"}}, KeyMissing, "no key: header ce_source: empty"},
		{"structured without id", Input{Headers: headerMap{"content-type": "application/cloudevents+json"}, Value: []byte(`{"source":"s"}`)}, KeyMissing, "no key: field id: absent"},
		{"structured, not JSON", Input{Headers: headerMap{"content-type": "application/cloudevents+json"}, Value: []byte(`x`)}, Malformed, "payload: not valid JSON"},
		{"structured wins over headers", Input{Headers: headerMap{"content-type": "application/cloudevents+json", "ce_id": "1", "ce_source": "s"}, Value: []byte(`{}`)}, KeyMissing, "no key: field source: absent"},
		{"another format", Input{Headers: headerMap{"content-type": "application/cloudevents+avro"}}, Malformed, "header content-type: of the CloudEvents formats"},
		{"a batch", Input{Headers: headerMap{"content-type": "application/cloudevents-batch+json"}}, Malformed, "header content-type: a batch of CloudEvents has several events"},
		{"no headers", Input{Value: []byte(`{}`)}, KeyMissing, "no key: header ce_source: absent"},
	} {
		v.in.Topic = "in"
		if got := d.Derive(&v.in); got.Finding != v.finding || !strings.HasPrefix(got.Reason, v.reason) {
			t.Errorf("%s: %v %q, want %v %q", v.name, got.Finding, got.Reason, v.finding, v.reason)
		}
	}
}

func TestOrderKeys(t *testing.T) {
	const base = `"account":"A","symbol":"S","side":"buy","quantity":1,"type":"limit","timestamp":119999`
	hashed := func(payload string) (string, Derived) {
		got, ex := oneRoute(t, "[order]").NewDeriver(nil).Explain(&Input{Topic: "in", Value: []byte(payload)})
		return string(ex.Hashed), got
	}
	for payload, want := range map[string]string{
		`{` + base + `}`:                             "A|S|BUY|1.00000000|1|LIMIT",
		`{` + base + `,"limit":1.5}`:                 "A|S|BUY|1.00000000|1|LIMIT|1.50000000",
		`{` + base + `,"stop":"2"}`:                  "A|S|BUY|1.00000000|1|LIMIT|2.00000000",
		`{` + base + `,"stop":0.2,"limit":"1e2"}`:    "A|S|BUY|1.00000000|1|LIMIT|100.00000000|0.20000000",
		`{` + base + `,"stop":"","limit":null}`:      "A|S|BUY|1.00000000|1|LIMIT",
		strings.Replace(`{`+base+`}`, `"A"`, `7`, 1): "7|S|BUY|1.00000000|1|LIMIT",
	} {
		if got, d := hashed(payload); got != want {
			t.Errorf("%s: %q %s, want %q", payload, got, d.Reason, want)
		}
	}
	for old, swap := range map[string]struct{ with, reason string }{
		`"S"`:      {`"S|T"`, "field symbol: contains the separator |"},
		`"A"`:      {`"|"`, "field account: contains the separator |"},
		`"limit"`:  {`"li|mit"`, "field type: contains the separator |"},
		`:1,`:      {`:"1,0",`, "field quantity: want a decimal number"},
		`"buy"`:    {`{}`, "field side: want a string or number, found an object"},
		`119999`:   {`"now"`, "field timestamp: want a time as a number"},
		`"buy","q`: {`"buy","limit":"x","q`, "field limit: want a decimal number"},
	} {
		payload := strings.Replace(`{`+base+`}`, old, swap.with, 1)
		if _, got := hashed(payload); got.Finding != Malformed || got.Reason != swap.reason {
			t.Errorf("%s: %v %q, want %q", payload, got.Finding, got.Reason, swap.reason)
		}
	}
	// The bucket changes the key but not the routing: duplicates across its edge are in one task.
	_, a := hashed(`{` + base + `}`)
	_, b := hashed(strings.Replace(`{`+base+`}`, "119999", "120000", 1))
	if a.Key == b.Key || a.Digest == b.Digest || a.Routing != b.Routing {
		t.Errorf("across the edge: keys %x %x, routing %v %v", a.Key, b.Key, a.Routing, b.Routing)
	}
}

func TestDeriverReusesNoValue(t *testing.T) {
	d := oneRoute(t, "[{field: id}, {hash: [a, b]}]").NewDeriver(nil)
	value := []byte(`{"id":"one"}`)
	first := d.Derive(&Input{Topic: "in", Value: value})
	copy(value, `{"id":"two"}`)
	second := d.Derive(&Input{Topic: "in", Value: value})
	absent := d.Derive(&Input{Topic: "in", Value: []byte(`{}`)})
	if first.Key == second.Key || absent.Finding != KeyMissing {
		t.Errorf("a value of an earlier record was used: %v %v %v", first, second, absent)
	}
	big := `{"id":"` + strings.Repeat(`\u0041`, 2<<20) + `"}`
	d.Derive(&Input{Topic: "in", Value: []byte(big)})
	d.Derive(&Input{Topic: "in", Value: value})
	if n := cap(d.text) + cap(d.buf); n > 2*scratchBytesMax {
		t.Errorf("%d bytes of scratch after a small record", n)
	}
}
