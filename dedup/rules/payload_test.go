package rules

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// derive runs one payload through a route with the given key list.
func derive(tb testing.TB, key, payload string, more ...string) Derived {
	tb.Helper()
	return oneRoute(tb, key, more...).NewDeriver([]byte(testSecret)).Derive(&Input{Topic: "in", Value: []byte(payload)})
}

func TestMalformedPayloads(t *testing.T) {
	for _, v := range []struct{ name, key, payload, want string }{
		{"not JSON", "[{field: id}]", "id=1", "payload: not valid JSON: invalid character 'i' at start of value"},
		{"cut short", "[{field: id}]", `{"id":"a"`, "payload: not valid JSON: unexpected EOF after offset 9"},
		{"byte order mark", "[{field: id}]", "\ufeff{\"id\":\"a\"}", "payload: not valid JSON: it begins with a byte order mark (EF BB BF); send it without"},
		{"blank", "[{field: id}]", " \n", "payload: not valid JSON: no value"},
		{"two values", "[{field: id}]", `{"id":"a"} {}`, "payload: not valid JSON: more than one value"},
		{"trailing garbage", "[{field: id}]", `{"id":"a"}x`, "payload: not valid JSON: invalid character 'x' at start of value after offset 10"},
		{"empty", "[{field: id}]", "", "payload: empty where the route reads JSON"},
		{"mistake after the field", "[{field: id}]", `{"id":"a","b":tru}`, "payload: not valid JSON: invalid character '}' in literal true (expecting 'e') within \"/b\" after offset 17"},
		{"duplicate name", "[{field: id}]", `{"id":"a","id":"b"}`, "payload: not valid JSON: duplicate object member name \"id\""},
		{"duplicate name by escape", "[{field: id}]", `{"id":"a","\u0069d":"b"}`, "payload: not valid JSON: duplicate object member name \"id\""},
		{"duplicate name further in", "[{field: id}]", `{"id":"a","x":[{"b":1,"b":1}]}`, "payload: not valid JSON: duplicate object member name \"b\" within \"/x/0\""},
		{"invalid UTF-8", "[{field: id}]", "{\"id\":\"a\xff\"}", "payload: not valid JSON: invalid UTF-8 within \"/id\" after offset 8"},
		{"invalid UTF-8 further in", "[{field: id}]", "{\"id\":\"a\",\"\xc3\":1}", "payload: not valid JSON: invalid UTF-8 after offset 11"},
		{"lone surrogate", "[{field: id}]", `{"id":"\ud800"}`, "payload: not valid JSON: invalid surrogate pair"},
		{"object for an id", "[{field: id}, raw]", `{"id":{}}`, "field id: want a string or number, found an object"},
		{"array for an id", "[{field: id}, raw]", `{"id":[1]}`, "field id: want a string or number, found an array"},
		{"boolean for an id", "[{fields: [id]}, raw]", `{"id":true}`, "field id: want a string or number, found a boolean"},
		{"number beyond float64", "[{field: id}, raw]", `{"id":9007199254740993}`, "field id: the number has more digits than float64; send it as a string"},
		{"number beyond float64 in a hash", "[{hash: [id]}, raw]", `{"id":[1e999]}`, "field id: the number is beyond the range of float64; send it as a string"},
		{"number beyond float64 in a normalised hash", "[{hash: [id], normalise: {id: trim}}, raw]", `{"id":1e999}`, "field id: the number is beyond the range of float64"},
		{"number beyond float64 in a payload", "[{payload: {}}, raw]", `{"id":1e999}`, "payload: the number is beyond the range of float64"},
		{"literal cut short", "[{field: a.b}]", `{"a":[tru`, "payload: not valid JSON: unexpected EOF"},
		{"object closed as an array", "[{field: a.b}]", `{"a":{"b":1]}`, "payload: not valid JSON: invalid character ']' after object value"},
		{"array closed as an object", "[{field: a.0}]", `{"a":[1}}`, "payload: not valid JSON: invalid character '}' after array element"},
		{"raw is not tried", "[{field: id}, raw]", "[hello]", "payload: not valid JSON: invalid character 'h' at start of value"},
	} {
		t.Run(v.name, func(t *testing.T) {
			got := derive(t, v.key, v.payload)
			if got.Finding != Malformed || !strings.HasPrefix(got.Reason, v.want) {
				t.Errorf("%v: %s\n want malformed: %s", got.Finding, got.Reason, v.want)
			}
			if got.Route == nil || got.Key != [32]byte{} || got.Source != "" {
				t.Errorf("a malformed record has a key or no route: %+v", got)
			}
		})
	}
	t.Run("null", func(t *testing.T) {
		d := oneRoute(t, "[{field: id}]").NewDeriver(nil)
		if got := d.Derive(&Input{Topic: "in"}); got.Reason != "payload: null where the route reads JSON" {
			t.Errorf("reason %q", got.Reason)
		}
	})
}

func TestDeepNestingIsAnError(t *testing.T) {
	const depth = 10 << 20
	for name, payload := range map[string]string{
		"arrays":          strings.Repeat("[", depth),
		"objects":         strings.Repeat(`{"a":`, depth/5),
		"under the field": `{"id":` + strings.Repeat("[", depth),
		"after the field": `{"id":"x","y":` + strings.Repeat(`{"a":`, depth/5),
	} {
		for _, key := range []string{"[{field: id}]", "[{field: a.a.a.id}]", "[{payload: {exclude: [a.a.b]}}]", "[{hash: [id]}]"} {
			got := derive(t, key, payload)
			if got.Finding != Malformed || !strings.Contains(got.Reason, "exceeded max depth") || len(got.Reason) > 400 {
				t.Errorf("%s by %s: %v: %.500s", name, key, got.Finding, got.Reason)
			}
		}
	}
	// The functions after the decoder must read everything that it accepts.
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	if got, reason := canonical(t, deep); got != deep {
		t.Errorf("9,000 levels: %s", reason)
	}
}

func TestSourcesWithoutAKey(t *testing.T) {
	for _, v := range []struct{ key, payload, want string }{
		{"[{field: id}]", `{}`, "no key: field id: absent"},
		{"[{field: id}]", `{"id":null}`, "no key: field id: null"},
		{"[{field: id}]", `{"id":""}`, "no key: field id: empty"},
		{"[{field: id, normalise: trim}]", `{"id":" \t"}`, "no key: field id: empty"},
		{"[{field: a.b}]", `{"a":"x"}`, "no key: field a.b: absent"},
		{"[{field: a.b}]", `{"a":[{"b":1}]}`, "no key: field a.b: absent"},
		{"[{field: a.1}]", `{"a":["x"]}`, "no key: field a.1: absent"},
		{"[{field: id}]", `[]`, "no key: field id: absent"},
		{"[{field: id}]", `"id"`, "no key: field id: absent"},
		{"[{field: id}]", `null`, "no key: field id: absent"},
		{"[{fields: [a, b]}]", `{"a":"x","b":""}`, "no key: field b: empty"},
		{"[{hash: [a, b]}]", `{"a":"x","b":null}`, "no key: field b: null"},
		{"[{hash: [a, b], optional: [b]}]", `{"b":1}`, "no key: field a: absent"},
		{"[record_key, {header: h}, {field: id}, {hash: [a]}]", `{}`,
			"no key: record key: absent; header h: absent; field id: absent; field a: absent"},
		{"[{payload: {include: [a, b.c]}}]", `{"b":{"d":1}}`, "no key: payload: {include: [a, b.c]}: the payload has none of the paths"},
		{"[raw]", "", "no key: raw payload: empty"},
		{"[cloudevent]", `{"id":"1","source":"s"}`, "no key: header ce_source: absent"},
		{"[order]", `{"account":"A","symbol":"B","side":"buy","quantity":1,"timestamp":0}`, "no key: field type: absent"},
		{"[order]", `{"account":"A","symbol":"B","side":"buy","quantity":1,"type":"x"}`, "no key: field timestamp: absent"},
	} {
		got := derive(t, v.key, v.payload)
		if got.Finding != KeyMissing || got.Reason != v.want {
			t.Errorf("%s with %s: %v: %q\n want %q", v.key, v.payload, got.Finding, got.Reason, v.want)
		}
	}
}

// TestHashTakesEmptyStrings hashes an empty string: for hash it is a value, not a
// missing id.
func TestHashTakesEmptyStrings(t *testing.T) {
	for _, key := range []string{"[{hash: [a]}]", "[{hash: [a], normalise: {a: trim}}]"} {
		d, ex := oneRoute(t, key).NewDeriver(nil).Explain(&Input{Topic: "in", Value: []byte(`{"a":""}`)})
		if string(ex.Hashed) != `{"a":""}` {
			t.Errorf("%s: %v %q %s", key, d.Finding, ex.Hashed, d.Reason)
		}
	}
}

// TestOptionalFieldsOfHash: one that is absent or null is left out, first, last or between, and an empty string is a value.
func TestOptionalFieldsOfHash(t *testing.T) {
	d := oneRoute(t, "[{hash: [a, b, c], optional: [a, c]}]").NewDeriver(nil)
	for payload, want := range map[string]string{
		`{"b":1}`: `{"b":1}`, `{"a":null,"b":1,"c":null}`: `{"b":1}`, `{"a":2,"b":1}`: `{"a":2,"b":1}`, `{"c":"","b":1}`: `{"b":1,"c":""}`,
	} {
		if _, ex := d.Explain(&Input{Topic: "in", Value: []byte(payload)}); string(ex.Hashed) != want {
			t.Errorf("%s: hashed %s, want %s", payload, ex.Hashed, want)
		}
	}
	// The rule that is pinned differs: other keys.
	all, some := oneRoute(t, "[{hash: [a, b]}]"), oneRoute(t, "[{hash: [b, a], optional: [a]}]")
	if a, b := all.Routes[0].KeyRule(), some.Routes[0].KeyRule(); a == b || !strings.Contains(b, `hash("a"?,"b")`) {
		t.Errorf("key rules %s and %s", a, b)
	}
}

func TestSourcesAreTriedInOrder(t *testing.T) {
	rs := oneRoute(t, "[{header: h}, record_key, {field: id}, {hash: [a]}]")
	d := rs.NewDeriver(nil)
	for _, v := range []struct {
		in   Input
		want string
	}{
		{Input{Headers: headerMap{"h": "1"}, Key: []byte("k"), Value: []byte("not JSON, and not read")}, "header: h"},
		{Input{Headers: headerMap{"h": ""}, Key: []byte("k"), Value: []byte(`{"id":"x"}`)}, "record_key"},
		{Input{Headers: headerMap{"g": "1"}, Value: []byte(`{"id":"x","a":1}`)}, "field: id"},
		{Input{Value: []byte(`{"id":null,"a":1}`)}, "hash: [a]"},
	} {
		v.in.Topic = "in"
		if got := d.Derive(&v.in); got.Source != v.want || got.Finding != Keyed {
			t.Errorf("source %q (%s), want %q", got.Source, got.Reason, v.want)
		}
	}
}

// TestRawTakesATextBehindOtherSources: they read JSON, which an alert in words is not. Damaged JSON is no text, nor are bytes
// that are no UTF-8, and JSON without an id has no key where raw takes texts alone.
func TestRawTakesATextBehindOtherSources(t *testing.T) {
	for _, v := range []struct{ key, payload, source, reason string }{
		{"[{field: id}, {hash: [a]}, raw]", "AAPL crossed 178.5", "raw", ""},
		{"[{field: id}, {hash: [a]}, {raw: text}]", " \"AAPL\" crossed", "raw: text", ""},
		{"[{raw: text}]", "AAPL", "raw: text", ""},
		{"[{payload: {}}, raw]", "AAPL", "raw", ""},
		{"[{field: id}, {raw: text}]", `{"id":"x"}`, "field: id", ""},
		{"[{field: id}, raw]", `{"b":1}`, "raw", ""},
		{"[{field: id}, {raw: text}]", `{"b":1}`, "", "no key: field id: absent; raw payload: JSON"},
		{"[{field: id}, {raw: text}]", `7`, "", "no key: field id: absent; raw payload: JSON"},
		{"[{field: id}, raw]", ` {"id":"x"`, "", "payload: "},
		{"[{raw: text}]", `[1`, "", "payload: "},
		{"[{field: id}, raw]", "", "", "payload: "},
		{"[{field: id}, raw]", "\xef\xbb\xbf{\"id\":\"x\"}", "", "payload: "},
		{"[{field: id}, raw]", "\xff\xfe\x00{", "", "payload: "},
		{"[raw, {field: id}]", "AAPL", "raw", ""},
		{"[{field: id}, record_key]", "AAPL", "", "payload: "},
	} {
		got := derive(t, v.key, v.payload)
		if (got.Finding == Keyed) != (v.source != "") || got.Source != v.source || !strings.HasPrefix(got.Reason, v.reason) {
			t.Errorf("%s of %q: %v, source %q: %s", v.key, v.payload, got.Finding, got.Source, got.Reason)
		}
	}
	if a, b := derive(t, "[{field: id}, {raw: text}]", "AAPL"), derive(t, "[raw]", "AAPL"); a.Key != b.Key {
		t.Errorf("a text has the keys %x and %x", a.Key, b.Key)
	}
}

func TestKeyLimit(t *testing.T) {
	long := strings.Repeat("x", 101)
	for key, in := range map[string]Input{
		"[record_key]":       {Key: []byte(long)},
		"[{header: h}]":      {Headers: headerMap{"h": long}},
		"[{field: a}]":       {Value: []byte(`{"a":"` + long + `"}`)},
		"[{fields: [b, c]}]": {Value: []byte(`{"b":"` + long[:50] + `","c":"` + long[:51] + `"}`)},
		"[cloudevent]":       {Headers: headerMap{"ce_id": long[:50], "ce_source": long[:51]}},
		"[order]":            {Value: []byte(`{"account":"` + long + `","symbol":"B","side":"b","quantity":1,"type":"m","timestamp":1}`)},
	} {
		in.Topic = "in"
		got := oneRoute(t, key, "max_key_bytes: 100").NewDeriver(nil).Derive(&in)
		if got.Finding != Malformed || !strings.Contains(got.Reason, "key limit") {
			t.Errorf("%s: %v %s", key, got.Finding, got.Reason)
		}
		if got := oneRoute(t, key, "max_key_bytes: 200").NewDeriver(nil).Derive(&in); got.Finding != Keyed {
			t.Errorf("%s: %v %s", key, got.Finding, got.Reason)
		}
	}
	// Content of any size is hashed.
	if got := derive(t, "[{hash: [a]}]", `{"a":"`+strings.Repeat("y", 9000)+`"}`); got.Finding != Keyed {
		t.Errorf("hash: %v %s", got.Finding, got.Reason)
	}
}

func TestPaths(t *testing.T) {
	const payload = `{"a":{"b":"1","0":"2"},"l":["3",{"k":"4"}],"a.b":"5","*":"6","c\\d":"7","é":"8","":"9"}`
	for path, want := range map[string]string{
		"a.b": "1", "a.0": "2", "l.0": "3", "l.1.k": "4", `a\.b`: "5", `\*`: "6", `c\\d`: "7", "é": "8",
	} {
		_, ex := oneRoute(t, "[{field: "+strconv.Quote(path)+"}]").NewDeriver(nil).Explain(&Input{Topic: "in", Value: []byte(payload)})
		if string(ex.Hashed) != want {
			t.Errorf("path %s: %q, want %q", path, ex.Hashed, want)
		}
	}
	// A value and another one inside it, in one read.
	_, ex := oneRoute(t, "[{hash: [a, a.b]}]").NewDeriver(nil).Explain(&Input{Topic: "in", Value: []byte(payload)})
	if want := `{"a":{"0":"2","b":"1"},"a.b":"1"}`; string(ex.Hashed) != want {
		t.Errorf("hash %s, want %s", ex.Hashed, want)
	}
}

func TestProjections(t *testing.T) {
	for _, v := range []struct{ key, payload, want string }{
		{"{exclude: [a]}", `{"a":1}`, `{}`},
		{"{exclude: [a]}", `[{"a":1}]`, `[{"a":1}]`},
		{"{exclude: ['*.a']}", `[{"a":1,"b":2}]`, `[{"b":2}]`},
		{"{exclude: ['0']}", `["x","y"]`, `["y"]`},
		{"{exclude: [a.1]}", `{"a":[1,2,3],"b":{"1":1}}`, `{"a":[1,3],"b":{"1":1}}`},
		{"{exclude: [a.1]}", `{"a":{"1":1,"2":2}}`, `{"a":{"2":2}}`},
		{"{exclude: ['*.1', '2']}", `{"a":{"1":1},"2":2}`, `{"a":{}}`},
		{"{exclude: [a.*.x, a.0.y]}", `{"a":[{"x":1,"y":2,"z":3},{"x":1,"y":2,"z":3}]}`, `{"a":[{"z":3},{"y":2,"z":3}]}`},
		{`{exclude: ["\\*"]}`, `{"*":1,"a":2}`, `{"a":2}`},
		{"{exclude: [k]}", "{ \"\\u006b\" : [1 , 2] ,\n \"l\" :\t\"}\\\"]\" }", `{"l":"}\"]"}`},
		{"{exclude: [a.b]}", `{"a":null,"b":"x"}`, `{"a":null,"b":"x"}`},
		{"{exclude: [a.b]}", `7`, `7`},
		{"{exclude: [a]}", `{"a":[false,{"x":null}],"b":false,"c":-1.5e3}`, `{"b":false,"c":-1500}`},
		{"{include: [a]}", ` { "b" : 1, "a" : { "x" : [ 1 ] } } `, `{"a":{"x":[1]}}`},
		{"{include: [a.b.c, a.d]}", `{"a":{"b":{"c":1,"x":2},"d":3,"e":4},"f":5}`, `{"a":{"b":{"c":1},"d":3}}`},
		{"{include: [a.b, c]}", `{"a":"scalar","c":1}`, `{"c":1}`},
		{"{include: [a.b, c]}", `{"a":{},"c":1}`, `{"c":1}`},
		{"{include: [a.b, c]}", `{"a":[1],"c":1}`, `{"c":1}`},
		{"{include: [a.b, c]}", `{"c":1,"a":{"d":7}}`, `{"c":1}`},
		{"{include: [a.b.d, c]}", `{"c":1,"a":{"x":1,"b":{"c":7}}}`, `{"c":1}`},
		{"{include: [l.0.k, l.2.k]}", `{"l":[{"k":1},{"k":2},{"j":3},{"k":4}]}`, `{"l":[{"k":1}]}`},
		{"{include: [l.0.k, l.1.k]}", `{"l":["x",{"k":1}]}`, `{"l":[null,{"k":1}]}`},
		{"{include: [l.*.k]}", `{"l":[{"k":1},"x",{"j":3},{"k":4},"x"]}`, `{"l":[{"k":1},null,null,{"k":4}]}`},
		{"{include: ['*']}", `{"b":1,"a":2}`, `{"a":2,"b":1}`},
		// Null is a value, also at the end of a path: the keys of running apps have it.
		{"{include: [stop, c]}", `{"c":1}`, `{"c":1}`},
		{"{include: [stop, c]}", `{"stop":null,"c":1}`, `{"c":1,"stop":null}`},
		{"{include: [o.stop, c]}", `{"o":{"stop": null },"c":1}`, `{"c":1,"o":{"stop":null}}`},
		{"{include: [l.0, l.1]}", `{"l":[1,null]}`, `{"l":[1,null]}`},
		{"{include: [a, b]}", `{"a":null}`, `{"a":null}`},
		{"{include: ['*.x', a.y]}", `{"a":{"x":1,"y":2,"z":3},"b":{"x":1,"y":2}}`, `{"a":{"x":1,"y":2},"b":{"x":1}}`},
	} {
		d, ex := oneRoute(t, "[{payload: "+v.key+"}]").NewDeriver(nil).Explain(&Input{Topic: "in", Value: []byte(v.payload)})
		if string(ex.Hashed) != v.want {
			t.Errorf("%s of %s: %s %s\n want %s", v.key, v.payload, ex.Hashed, d.Reason, v.want)
		}
	}
}

func TestReasonsAreShortSingleLines(t *testing.T) {
	name := strings.Repeat("é\\n", 10000)
	got := derive(t, "[{field: id}]", `{"`+name+`":1,"`+name+`":2}`)
	if len(got.Reason) > reasonBytesMax+len("...") || strings.ContainsAny(got.Reason, "\n\r") || !strings.HasPrefix(got.Reason, "payload: ") {
		t.Errorf("%d bytes: %q", len(got.Reason), got.Reason)
	}
	if got := derive(t, `[{header: "a\r\n b"}]`, ""); got.Reason != "no key: header a   b: absent" {
		t.Errorf("%q", got.Reason)
	}
}

// TestKeyLimitIsOfTheNormalisedID: what counts is the id that the key is made of, in whatever spelling it comes.
func TestKeyLimitIsOfTheNormalisedID(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		key string
		in  Input
		max int
	}{
		{"[{field: a}]", Input{Value: []byte(`{"a":100000}`)}, 6},
		{"[{field: a}]", Input{Value: []byte(`{"a":1E5}`)}, 6},
		{"[{field: a, normalise: trim}]", Input{Value: []byte(`{"a":"  ab  "}`)}, 2},
		{"[{field: a, normalise: {decimals: 4}}]", Input{Value: []byte(`{"a":1}`)}, 6},
		{"[{record_key: true, normalise: trim}]", Input{Key: []byte(" ab ")}, 2},
		{"[{fields: [{header: h, normalise: trim}, {topic: true}]}]", Input{Headers: headerMap{"h": " ab "}}, 4},
	} {
		v.in.Topic = "in"
		for limit, want := range map[int]Finding{v.max: Keyed, v.max - 1: Malformed} {
			if got := oneRoute(t, v.key, fmt.Sprint("max_key_bytes: ", limit)).NewDeriver(nil).Derive(&v.in); got.Finding != want {
				t.Errorf("%s of %+v with max_key_bytes %d: %v %s, want %v", v.key, v.in, limit, got.Finding, got.Reason, want)
			}
		}
	}
}
