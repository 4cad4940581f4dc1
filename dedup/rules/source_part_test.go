package rules

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// partRecord is a record, and what each field of the test finds in it.
type partRecord struct {
	in     Input
	values map[string]string // by the field as in the file
}

// partList are the fields of the test: equal names in different parts.
var partList = []string{"x", "y", "{header: x}", "{header: y}", "{record_key: true}", "{topic: true}"}

// drawPartRecord draws a record whose values look like the bytes around them.
func drawPartRecord(t *testing.T, random *rand.Rand) partRecord {
	t.Helper()
	values := []string{"a", "1:a,", "=", "1:x=1:a,", ",", "9:.header:x=1:a,", "1"}
	draw := func() string { return values[random.IntN(len(values))] }
	r := partRecord{values: map[string]string{"x": draw(), "y": draw(), "{header: x}": draw(), "{header: y}": draw(), "{record_key: true}": draw()}}
	payload, err := json.Marshal(map[string]string{"x": r.values["x"], "y": r.values["y"]})
	if err != nil {
		t.Fatal(err)
	}
	r.in = Input{Topic: "in", Key: []byte(r.values["{record_key: true}"]), Value: payload, Headers: headerMap{"x": r.values["{header: x}"], "y": r.values["{header: y}"]}}
	r.values["{topic: true}"] = r.in.Topic
	return r
}

// TestPartsAreNeverConfused: the bytes of two lists of parts are equal only if the parts and
// their values are, and for hash their values by part.
func TestPartsAreNeverConfused(t *testing.T) {
	random := rand.New(rand.NewPCG(20, 1))
	type drawn struct{ meaning, source string }
	for _, source := range []string{"fields", "hash"} {
		seen := map[string]drawn{}
		for range 4000 {
			list := slices.Clone(partList)
			random.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
			list = list[:1+random.IntN(3)]
			if len(list) == 1 && list[0] == "{topic: true}" {
				continue // the same key for all events is refused
			}
			r := drawPartRecord(t, random)
			plain := !slices.ContainsFunc(list, func(f string) bool { return strings.HasPrefix(f, "{") })
			var meaning []string
			for _, f := range list {
				name := f
				if plain && source == "fields" {
					name = "" // plain composites have no names, as they always had
				}
				meaning = append(meaning, name+" "+r.values[f])
			}
			if source == "hash" {
				slices.Sort(meaning)
			}
			key := "[{" + source + ": [" + strings.Join(list, ", ") + "]}]"
			got, ex := oneRoute(t, key).NewDeriver(nil).Explain(&r.in)
			if got.Finding != Keyed {
				t.Fatalf("%s: %s", key, got.Reason)
			}
			now := drawn{fmt.Sprintf("%v %q", plain && source == "fields", meaning), key}
			if before, ok := seen[string(ex.Hashed)]; ok && before.meaning != now.meaning {
				t.Fatalf("%s of %s and %s of %s hash the same bytes %q", before.source, before.meaning, now.source, now.meaning, ex.Hashed)
			}
			seen[string(ex.Hashed)] = now
		}
		if len(seen) < 1000 {
			t.Errorf("%s: only %d different keys were drawn", source, len(seen))
		}
	}
}

// TestMissingPartYieldsNoKey: the next source is tried, as after a missing field. Empty is a
// value of hash only.
func TestMissingPartYieldsNoKey(t *testing.T) {
	for name, c := range map[string]struct {
		key           string
		headers       headerMap
		recordKey     []byte
		value         string
		source, cause string
	}{
		"header":                {key: "[{fields: [{header: x}]}, raw]", value: "no JSON", source: "raw", cause: "header x: absent"},
		"empty header":          {key: "[{fields: [{header: x}]}, raw]", headers: headerMap{"x": ""}, value: "{}", source: "raw", cause: "header x: empty"},
		"record key":            {key: "[{fields: [{topic: true}, {record_key: true}]}, raw]", value: "{}", source: "raw", cause: "record key: absent"},
		"header of a hash":      {key: "[{hash: [{header: x}]}, raw]", value: "no JSON", source: "raw", cause: "header x: absent"},
		"no payload is read":    {key: "[{fields: [{header: x}, {topic: true}]}]", headers: headerMap{"x": "1"}, value: "no JSON", source: "fields: [{header: x}, {topic: true}]"},
		"nor by a hash":         {key: "[{hash: [{header: x}]}]", headers: headerMap{"x": "1"}, value: "no JSON", source: "hash: [{header: x}]"},
		"a field is missing":    {key: "[{fields: [{topic: true}, id]}, raw]", value: "{}", source: "raw", cause: "field id: absent"},
		"empty value of a hash": {key: "[{hash: [{header: x}, {record_key: true}]}]", headers: headerMap{"x": ""}, recordKey: []byte{}, value: "{}", source: "hash: [{header: x}, {record_key: true}]"},
		"trimmed to nothing":    {key: "[{fields: [{header: x, normalise: trim}]}, raw]", headers: headerMap{"x": "  "}, value: "{}", source: "raw", cause: "header x: empty"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Topic: "in", Key: c.recordKey, Value: []byte(c.value), Headers: c.headers}
			got, ex := oneRoute(t, c.key).NewDeriver(nil).Explain(&in)
			if got.Finding != Keyed || got.Source != c.source || strings.Join(ex.Skipped, "; ") != c.cause {
				t.Errorf("%v %s by %q, skipped %q; want source %q, skipped %q", got.Finding, got.Reason, got.Source, ex.Skipped, c.source, c.cause)
			}
		})
	}
	in := Input{Topic: "in", Value: []byte("{}"), Headers: headerMap{"x": "\xff", "long": strings.Repeat("x", 5000)}}
	for key, want := range map[string]string{
		"[{hash: [{header: x}]}, raw]":      "header x: is no UTF-8, which hash needs: use fields, which takes any bytes",
		"[{fields: [{header: long}]}, raw]": "header long: 5000 bytes are over the key limit of 4096",
	} {
		if got := oneRoute(t, key).NewDeriver(nil).Derive(&in); got.Finding != Malformed || got.Reason != want {
			t.Errorf("%s: %v %q, want malformed, %q", key, got.Finding, got.Reason, want)
		}
	}
}

// TestBarePathsStayPaths: a list of texts means what it always did, also where a text is the
// name of a part.
func TestBarePathsStayPaths(t *testing.T) {
	in := Input{Topic: "in", Key: []byte("k"), Value: []byte(`{"record_key":"1","topic":"2","tenant":"3","header":"4"}`)}
	routes := oneRoute(t, "[{fields: [record_key, topic, tenant, header]}]")
	if _, ex := routes.NewDeriver(nil).Explain(&in); string(ex.Hashed) != "1:1,1:2,1:3,1:4," {
		t.Errorf("hashed %q", ex.Hashed)
	}
	if rule := routes.Routes[0].KeyRule(); rule != `v1 namespace=ns secret=false key=fields("record_key","topic","tenant","header")` {
		t.Errorf("key rule %s", rule)
	}
	routes = oneRoute(t, "[{fields: [{record_key: true}, {topic: true}, topic, {header: a, normalise: [trim, lower]}]}]")
	if rule := routes.Routes[0].KeyRule(); rule != `v1 namespace=ns secret=false key=fields(record_key(),topic(),"topic",header("a")|trim|lower)` {
		t.Errorf("key rule %s", rule)
	}
}

// TestMistakesInParts: each mistake has a way out.
func TestMistakesInParts(t *testing.T) {
	for key, want := range map[string]string{
		"key: [{fields: [{field: a.b}]}]":                                           "want the path alone, as a text of the list: a.b, with its steps in normalise of the source",
		"key: [{hash: [b, {field: a, normalise: lower}]}]":                          "want the path alone, as a text of the list: a, with",
		"key: [{fields: [{}]}]":                                                     "want exactly one of header, record_key, topic and tenant, found 0",
		"key: [{fields: [{header: a, topic: true}]}]":                               "want exactly one of header, record_key, topic and tenant, found 2",
		"key: [{fields: [{topic: false}]}]":                                         "want true: leave the source out",
		"key: [{fields: [{headers: a}]}]":                                           "did you mean header?",
		"key: [{fields: [{header: oncebus-key}]}]":                                  "oncebus removes oncebus-* headers",
		"key: [{fields: [{header: a}, {header: a}]}]":                               "{header: a} is listed twice",
		"key: [{fields: [id, {tenant: true}]}]":                                     "reads the tenant, and the route has none: add tenant: {header: NAME}",
		"key: [raw], shadow: {key: [{fields: [id, {tenant: true}]}]}":               "reads the tenant, and the route has none: take it out of the key of the shadow",
		"key: [{fields: [{topic: true}]}]":                                          "the key is the same for all events",
		"key: [{hash: [{tenant: true}]}], tenant: {header: a}":                      "the key is the same for all events",
		"key: [{fields: [{topic: true}, {tenant: true}]}], tenant: {header: a}":     "the key is the same for all events",
		"key: [{payload: {exclude: ['*']}}]":                                        "the key is the same for all events",
		"key: [raw], shadow: {key: [{hash: [{topic: true}]}]}":                      "the key is the same for all events",
		"key: [raw], tenant: {header: a}, quota: {}":                                "want keys, events_per_second or both",
		"key: [raw], quota: {keys: 1}":                                              "is for each tenant, and the route has none",
		"key: [raw], tenant: {header: a}, quota: {events_per_second: 0}":            "want events per second, from 0.01 to 1000000, found 0",
		"key: [raw], tenant: {header: a}, quota: {tenants: {a: {keys: 0}}}":         "want a whole number from 1",
		"key: [raw], tenant: {header: a}, quota: {tenants: [a]}":                    "want a quota for each name",
		"key: [raw], tenant: {}":                                                    "want exactly one of header, field and principal, found 0",
		"key: [raw], tenant: {header: a, field: b}":                                 "want exactly one of header, field and principal, found 2",
		"key: [raw], tenant: {principal: true}":                                     "principal needs an http part",
		"key: [raw], tenant: {header: a, default: 7}":                               "put it in quotes",
		`key: [raw], tenant: {header: a, default: "a\tb"}`:                          "has characters that do not print",
		"key: [{fields: [{record_key: true}]}], " + httpPart(""):                    "an HTTP request has no record key: add a source that yields a key",
		"key: [{fields: [id, {header: x}]}], " + httpPart(""):                       "an HTTP request's header x is not carried: add it to http.headers",
		"key: [{fields: [id, {header: X}]}], " + httpPart("X"):                      "carried under names in lower case: write x",
		"key: [raw], tenant: {header: x}, " + httpPart(""):                          "an HTTP request's header x is not carried: add it to http.headers",
		"key: [raw], " + httpPart("X-Oncebus-Principal"):                            "is written by the ingress",
		"key: [raw], tenant: {header: a, default: " + strings.Repeat("x", 65) + "}": "a tenant has at most 64",
	} {
		_, err := ParseRoutes("r.yaml", []byte("routes: [{name: ns, topics: [in], window: 1h, output: out, "+key+"}]"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", key, err, want)
		}
	}
}

// httpPart is an http part that carries the headers.
func httpPart(headers string) string {
	if headers != "" {
		headers = ", headers: [" + headers + "]"
	}
	return "http: {path: /a, signature: {scheme: none}" + headers + "}"
}

// TestUnsignedHeadersOfPartsWarn: a header that the signature does not cover decides about the
// key, or about the tenant.
func TestUnsignedHeadersOfPartsWarn(t *testing.T) {
	routes := oneRoute(t, "[{fields: [{header: x}, id]}]", "tenant: {header: t}", "http: {path: /a, headers: [x, t], signature: {scheme: github, secret: S}}")
	if len(routes.Warnings) != 2 || !strings.Contains(routes.Warnings[0], "header x is not covered by the signature") || !strings.Contains(routes.Warnings[1], "is an event of another tenant") {
		t.Errorf("warnings %q", routes.Warnings)
	}
}

// TestTenantsHaveKeysOfTheirOwn: for every kind of source, the key, the digest and the routing
// of two tenants differ, and with them those of the neighbours of an order.
func TestTenantsHaveKeysOfTheirOwn(t *testing.T) {
	const payload = `{"id":"A-1","source":"s","account":"a","symbol":"S","side":"buy","quantity":1,"type":"market","timestamp":1729636859999}`
	for _, key := range []string{
		"[record_key]", "[{header: h}]", "[{field: id}]", "[{fields: [id, account]}]", "[{fields: [id, {topic: true}]}]", "[{hash: [id]}]", "[{payload: {}}]", "[raw]", "[cloudevent]",
		"[{order: {adjacent_buckets: true}}]",
	} {
		for _, secret := range []string{"secret: false", "secret: true"} {
			routes := oneRoute(t, key, secret, "fingerprint: [id]", "tenant: {header: t}")
			d := routes.NewDeriver([]byte(testSecret))
			of := func(tenant string) Derived {
				got := d.Derive(&Input{Topic: "in", Key: []byte("k"), Value: []byte(payload), Headers: headerMap{"h": "A-1", "t": tenant, "ce_id": "1", "ce_source": "s"}})
				if got.Finding != Keyed || got.Tenant != tenant || got.Hashed.IsSet() {
					t.Fatalf("%s: %v %s, tenant %q, part %+v", key, got.Finding, got.Reason, got.Tenant, got.Hashed)
				}
				return got
			}
			a, b, again := of("acme"), of("globex"), of("acme")
			if a != again {
				t.Errorf("%s: the same event has another key", key)
			}
			if a.Key == b.Key || a.Digest == b.Digest || a.Routing == b.Routing || a.HasAdjacent && (a.Adjacent[0] == b.Adjacent[0] || a.Adjacent[1] == b.Adjacent[1]) {
				t.Errorf("%s: two tenants share a digest", key)
			}
		}
	}
}

// TestTenantNeedsAName: a record without a tenant names the place and the way out.
func TestTenantNeedsAName(t *testing.T) {
	for name, c := range map[string]struct {
		tenant, value string
		headers       headerMap
		want          string // the tenant, or the reason
	}{
		"header":            {tenant: "{header: t}", headers: headerMap{"t": "acme"}, want: "acme"},
		"no header":         {tenant: "{header: t}", want: "tenant: header t has none: send it there, or give the route tenant: {default: NAME}"},
		"empty header":      {tenant: "{header: t}", headers: headerMap{"t": ""}, want: "tenant: header t has none: send it there, or give the route tenant: {default: NAME}"},
		"by default":        {tenant: "{header: t, default: none}", want: "none"},
		"field":             {tenant: "{field: a.t}", value: `{"a":{"t":"Größe"}}`, want: "Größe"},
		"number":            {tenant: "{field: a.t}", value: `{"a":{"t":7.0}}`, want: "7"},
		"no field":          {tenant: "{field: a.t}", value: `{"a":{}}`, want: "tenant: field a.t has none: send it there, or give the route tenant: {default: NAME}"},
		"object":            {tenant: "{field: a}", value: `{"a":{}}`, want: "field a: want a string or number, found an object"},
		"broken payload":    {tenant: "{field: a, default: none}", value: `{`, want: "payload: not valid JSON"},
		"longest":           {tenant: "{header: t}", headers: headerMap{"t": strings.Repeat("x", 64)}, want: strings.Repeat("x", 64)},
		"too long":          {tenant: "{header: t}", headers: headerMap{"t": strings.Repeat("x", 65)}, want: "tenant: header t has 65 bytes: a tenant has at most 64"},
		"not UTF-8":         {tenant: "{header: t}", headers: headerMap{"t": "\xff"}, want: "tenant: header t is no UTF-8"},
		"control character": {tenant: "{header: t}", headers: headerMap{"t": "a\nb"}, want: "tenant: header t has characters that do not print"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.value == "" {
				c.value = "{}"
			}
			got := oneRoute(t, "[raw]", "tenant: "+c.tenant).NewDeriver(nil).Derive(&Input{Topic: "in", Value: []byte(c.value), Headers: c.headers})
			if text := got.Tenant + got.Reason; !strings.HasPrefix(text, c.want) || (got.Finding == Keyed) != (got.Tenant != "") {
				t.Errorf("%v: %q, want %q", got.Finding, text, c.want)
			}
		})
	}
}

// TestKeysOfTenantsByID: a person finds a key by the tenant and the id.
func TestKeysOfTenantsByID(t *testing.T) {
	for _, c := range []struct {
		key string
		ids []string
	}{
		{"[{field: id}]", []string{"acme", "7"}},
		{"[{fields: [id, {header: h}, {tenant: true}, {topic: true}]}]", []string{"acme", "7", "x", "in"}},
		{"[{fields: [id, n]}]", []string{"acme", "7", "1.5"}},
	} {
		routes := oneRoute(t, c.key, "tenant: {header: t}")
		d := routes.NewDeriver(nil)
		want := d.Derive(&Input{Topic: "in", Value: []byte(`{"id":7,"n":1.50}`), Headers: headerMap{"t": "acme", "h": "x"}})
		all, err := d.OfID(routes.Routes[0], c.ids...)
		if err != nil || !slices.ContainsFunc(all, func(x Derived) bool { return x.Digest == want.Digest && x.Key == want.Key && x.Tenant == "acme" }) {
			t.Errorf("%s: %v of %+v", c.key, err, all)
		}
		if _, err := d.OfID(routes.Routes[0], c.ids[1:]...); err == nil && len(c.ids) == 2 || err != nil && !strings.Contains(err.Error(), "of which the first is the tenant") {
			t.Errorf("%s without the tenant: %v", c.key, err)
		}
	}
}

// TestNamesOfTenantsAreBounded: a sender that invents tenants takes no memory without end.
func TestNamesOfTenantsAreBounded(t *testing.T) {
	d := oneRoute(t, "[raw]", "tenant: {header: t}").NewDeriver(nil)
	for i := range 3 * namesMax {
		name := fmt.Sprint("t", i)
		if got := d.Derive(&Input{Topic: "in", Value: []byte("1"), Headers: headerMap{"t": name}}); got.Tenant != name {
			t.Fatalf("tenant %q, want %q", got.Tenant, name)
		}
	}
	if n := len(slices.Collect(maps.Keys(d.names))); n > namesMax {
		t.Errorf("%d names are kept", n)
	}
}
