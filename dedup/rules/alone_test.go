package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// aloneRoutes has a route for every kind of source, match, tenant, time rule and fingerprint, with texts
// that normalisers make empty.
const aloneRoutes = `
routes:
  - {name: empty, topics: [m], window: 1h, output: o, key: [raw], match: {field: k, in: [""], normalise: lower}}
  - {name: blank, topics: [m], window: 1h, output: o, key: [raw], match: {field: b, in: [""], normalise: [trim, upper]}}
  - {name: bare, topics: [m], window: 1h, output: o, key: [raw], match: {header: h, in: [""], normalise: lower}}
  - {name: number, topics: [m], window: 1h, output: o, key: [raw], match: {field: k, in: [1, true, "x"]}}
  - {name: rest, topics: [m], window: 1h, output: o, key: [raw]}
  - {name: ids, topics: [i], window: 1h, output: o, key: [{field: k, normalise: [trim, lower]}, {fields: [b, {header: h, normalise: trim}, {record_key: true, normalise: upper}]}, {hash: [k, b], normalise: {k: [trim, upper]}}, {payload: {exclude: [b]}}], fingerprint: {fields: [k, [b, k]], normalise: {k: [trim, upper]}}, time: {field: t}}
  - {name: numbers, topics: [n], window: 1h, output: o, key: [{field: k, normalise: {decimals: 2}}, {field: t, normalise: {step: 1m}}], time: {field: t}}
  - {name: parts, topics: [p], window: 1h, output: o, key: [{hash: [k, {header: h}, {record_key: true}]}, {payload: {include: [k, b]}}, cloudevent], tenant: {field: b, default: none}}
  - {name: owned, topics: [w], window: 1h, output: o, key: [{fields: [k, {tenant: true}]}, {header: h}, record_key], tenant: {header: h, default: none}}
  - {name: order, topics: [o1], window: 1h, output: o, fingerprint: [t], key: [{order: {account: k, symbol: b, side: k, quantity: t, type: b, timestamp: t, record_time: true, adjacent_buckets: true}}]}
  - {name: form, topics: [f], window: 1h, output: o, key: [{field: k}, form], http: {path: /f, form: true, signature: {scheme: none}}}
`

// aloneEvent draws an event whose values are often absent, null, empty or blank.
func aloneEvent(t *rapid.T, topics []string) *Input {
	value := func(name string) string {
		drawn := rapid.SampledFrom([]string{"", "null", `""`, `" "`, `"x"`, `"X"`, `"\u0078"`, `"a\u0041"`, "1", "1.50", "true", `[]`, `{}`, `"1700000000000"`, "1700000000000"}).Draw(t, name)
		if drawn == "" {
			return ""
		}
		return fmt.Sprintf(",%q:%s", name, drawn)
	}
	in := &Input{
		Topic: rapid.SampledFrom(topics).Draw(t, "topic"), Timestamp: 1,
		Value: []byte(`{"z":0` + value("k") + value("b") + value("t") + "}"),
		Key:   rapid.SampledFrom([][]byte{nil, {}, []byte(" "), []byte("key")}).Draw(t, "record key"),
	}
	headers := headerMap{"content-type": urlencodedForm}
	if h := rapid.SampledFrom([]string{"absent", "", " ", "H"}).Draw(t, "header"); h != "absent" {
		headers["h"] = h
	}
	in.Headers = headers
	return in
}

// TestRulesDependOnTheEventAlone: the route, key, tenant, time, fingerprint and sender of an event are the
// same alone and in any company, whatever the deriver read before.
func TestRulesDependOnTheEventAlone(t *testing.T) {
	t.Parallel()
	rs := parse(t, aloneRoutes)
	topics, _ := rs.Inputs()
	by := oneRoute(t, "[raw]", "sender: {field: k}").Routes[0].Sender
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *Input { return aloneEvent(t, topics) }), 1, 8).Draw(t, "events")
		used, senders := rs.NewDeriver(nil), &SenderReader{}
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, len(events)-1), 1, 20).Draw(t, "order") {
			in := events[n]
			if got, want := used.Derive(in), rs.NewDeriver(nil).Derive(in); got != want {
				t.Fatalf("event %s of topic %s: %+v in company, %+v alone", in.Value, in.Topic, got, want)
			}
			got, want := senders.Of(by, in.Value, in.Headers, nil), (&SenderReader{}).Of(by, in.Value, in.Headers, nil)
			if !slices.Equal(got, want) {
				t.Fatalf("event %s: sender %q in company, %q alone", in.Value, got, want)
			}
		}
	})
}

// TestAppendedSourceChangesNoKey: an event that has a key by the first sources of a route has the same result when others
// come behind them, whatever these read. Only an event that had none may get one.
func TestAppendedSourceChangesNoKey(t *testing.T) {
	t.Parallel()
	sources := []string{
		"{field: k, normalise: [trim, lower]}", "{field: t, normalise: {step: 1m}}", "{fields: [b, {header: h, normalise: trim}]}", "{hash: [k, b], optional: [b]}",
		"{payload: {exclude: [b]}}", "{payload: {include: [k, z.y]}}", "cloudevent", "{header: h}", "raw", "{raw: text}", "form",
		"{order: {account: k, symbol: b, side: k, quantity: t, type: b, timestamp: t, record_time: true}}",
	}
	gained := 0
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfNDistinct(rapid.SampledFrom(sources), 2, 5, rapid.ID[string]).Draw(t, "key")
		first := rapid.IntRange(1, len(keys)-1).Draw(t, "sources of the older rule")
		http := ", http: {path: /f, form: true, headers: [h], signature: {scheme: none}}"
		if rapid.Bool().Draw(t, "by Kafka") && !slices.Contains(keys, "form") {
			keys[0], http = "record_key", "" // no HTTP request has one
		}
		routes := func(keys []string) *Routes {
			rs, err := ParseRoutes("routes.yaml", []byte("routes:\n  - {name: r, topics: [t], window: 1h, output: o, key: ["+strings.Join(keys, ", ")+"]"+http+"}\n"))
			if err != nil {
				t.Fatal(err)
			}
			return rs
		}
		before, after, front := routes(keys[:first]), routes(keys), routes(slices.Concat(keys[first:], keys[:first]))
		if front.Routes[0].Extends(before.Routes[0].KeyRule()) {
			t.Fatalf("%v in front of %v change no key", keys[first:], keys[:first])
		}
		if !after.Routes[0].Extends(before.Routes[0].KeyRule()) || before.Routes[0].Extends(after.Routes[0].KeyRule()) {
			t.Fatalf("%v does not extend %v, or the reverse", keys, keys[:first])
		}
		in := aloneEvent(t, []string{"t"})
		if text := rapid.SampledFrom([]string{"", "no JSON", `{"k":`, "k=1&b=2"}).Draw(t, "text"); text != "" {
			in.Value = []byte(text)
		}
		was, is := before.NewDeriver(nil).Derive(in), after.NewDeriver(nil).Derive(in)
		if was.Route, is.Route = nil, nil; was.Finding == Keyed && was != is {
			t.Fatalf("event %s: %+v by %v, %+v by %v", in.Value, was, keys[:first], is, keys)
		}
		if was.Finding != Keyed && is.Finding == Keyed {
			gained++
		}
	})
	if gained == 0 {
		t.Error("no event has gained a key")
	}
}

// TestEmptyTextMatches: an empty text is a text, also where a normaliser has made it empty and where the
// deriver has read nothing before.
func TestEmptyTextMatches(t *testing.T) {
	t.Parallel()
	rs := parse(t, aloneRoutes)
	for _, v := range []struct {
		value, route string
		headers      headerMap
	}{
		{`{"k":""}`, "empty", nil},
		{`{"b":"  "}`, "blank", nil},
		{`{"b":""}`, "blank", nil},
		{`{"z":"xA"}`, "bare", headerMap{"h": ""}},
		{`{"z":"x\u0041"}`, "bare", headerMap{"h": ""}},
		{`{"k":1}`, "number", nil},
		{`{"k":null,"b":[]}`, "rest", nil},
		{`{"k":"","b":""}`, "empty", headerMap{"h": ""}},
	} {
		in := &Input{Topic: "m", Timestamp: 1, Value: []byte(v.value), Headers: v.headers}
		if got := rs.NewDeriver(nil).Derive(in); got.Finding != Keyed || got.Route.Name != v.route {
			t.Errorf("%s takes %s: %v %s, want %s", got.Route.Name, v.value, got.Finding, got.Reason, v.route)
		}
	}
}
