package rules

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// fuzzRoutes has a topic for each source, so that one payload goes to all.
const fuzzRoutes = `
routes:
  - {name: f, topics: [f], window: 1h, output: o, key: [{field: a.b}, {field: id, normalise: [trim, lower]}], time: {field: t}}
  - {name: n, topics: [n], window: 1h, output: o, key: [{field: n, normalise: {decimals: 8}}, {field: t, normalise: {step: 1m}}]}
  - {name: c, topics: [c], window: 1h, output: o, secret: true, key: [{fields: [id, "l.0"]}, record_key, {header: h}], match: {field: kind, in: [x, 1, true]}}
  - {name: c2, topics: [c], window: 1h, output: o, key: [{header: h}, {record_key: true, normalise: upper}]}
  - {name: h, topics: [h], window: 1h, output: o, key: [{hash: [a, a.b, "l.1", n, t], optional: [t], normalise: {n: {decimals: 2}}}]}
  - {name: x, topics: [x], window: 1h, output: o, key: [{payload: {exclude: [t, a.b, "l.*.t", "l.0.u"]}}]}
  - {name: i, topics: [i], window: 1h, output: o, key: [{payload: {include: [t, a.b, "l.*.t", "l.0.u"]}}]}
  - {name: p, topics: [p], window: 1h, output: o, key: [{payload: {}}]}
  - {name: r, topics: [r], window: 1h, output: o, key: [raw]}
  - {name: e, topics: [e], window: 1h, output: o, key: [cloudevent]}
  - {name: w, topics: [w], window: 1h, output: o, key: [{field: id}, form], http: {path: /w, form: true, signature: {scheme: none}}}
  - {name: m, topics: [m], window: 1h, output: o, key: [{fields: [id, {header: h}, {record_key: true, normalise: trim}, {topic: true}]}, {hash: ["a.b", {header: h}, {record_key: true}]}, {fields: [{header: h}, {topic: true}]}]}
  - {name: t, topics: [t], window: 1h, output: o, key: [{field: id}, {fields: [n, {tenant: true}]}, raw], tenant: {field: a.b, default: none}}
  - {name: u, topics: [u], window: 1h, output: o, secret: true, key: [{hash: [id, {tenant: true}]}, record_key], tenant: {header: h}}
  - {name: o, topics: [o1], window: 1h, output: o, fingerprint: [a, n, l], time: {field: t}, key: [{order: {account: id, symbol: a.b, side: kind, quantity: n, type: kind, timestamp: t, adjacent_buckets: true}}]}
`

func FuzzDerive(f *testing.F) {
	for _, payload := range []string{
		`{"id":" A1 ","a":{"b":"x"},"l":[{"t":1,"u":2,"v":3},{"t":1}],"n":1.005,"t":1700000000000,"kind":"x","limit":"1e3"}`,
		`{"a":1,"id":9007199254740993,"l":["\ud83d\ude00",null],"n":"0.5","t":"2023-11-14T22:13:20Z","kind":true}`,
		`{"a":1,"id":900719925E740993}`, `[{"t":1},[],{}]`, `{"\u0061":{"\u0062":"\\\""}}`, `"x"`, `null`, `{"a":1,"a":2}`, `[1e400]`, "\xff", "", ` { "l" : [ 1 , { "u" : 2 } ] } `,
	} {
		f.Add([]byte(payload), []byte("key"), "application/json")
	}
	f.Add([]byte("id=1&id=2&b=%e2%82%ac"), []byte("key"), urlencodedForm)
	f.Add([]byte("--x\r\nContent-Disposition: form-data; name=id\r\n\r\n1\r\n--x--\r\n"), []byte("key"), multipartForm+"; boundary=x")
	rs := parse(f, fuzzRoutes)
	used := rs.NewDeriver([]byte(testSecret))
	f.Fuzz(func(t *testing.T, payload, key []byte, header string) {
		before := bytes.Clone(payload)
		routed, _ := rs.Inputs()
		for _, topic := range routed {
			in := &Input{Topic: topic, Key: key, Value: payload, Timestamp: 1, Headers: headerMap{"content-type": header, "h": header, "ce_id": header, "ce_source": "s"}}
			got := used.Derive(in)
			fresh, ex := rs.NewDeriver([]byte(testSecret)).Explain(in)
			if got != fresh {
				t.Fatalf("%s: a used deriver derives %+v, a new one %+v", topic, got, fresh)
			}
			checkDerived(t, topic, &got, &ex)
			if got.Hashed != (Part{}) && (!got.Hashed.IsSet() || !got.Hashed.In(payload) || got.Hashed.Key(payload) != got.Key) {
				t.Fatalf("%s: key %x is not that of part %+v", topic, got.Key, got.Hashed)
			}
			checkContent(t, topic, payload, &got, &ex)
		}
		if !bytes.Equal(before, payload) {
			t.Fatal("the payload was changed")
		}
	})
}

func checkDerived(t *testing.T, topic string, got *Derived, ex *Explanation) {
	t.Helper()
	if got.Route == nil {
		t.Fatalf("%s: no route", topic)
	}
	if got.Finding != Keyed {
		if got.Reason == "" || len(got.Reason) > 2*reasonBytesMax || strings.ContainsAny(got.Reason, "\n\r\x00") || got.Key != [32]byte{} {
			t.Fatalf("%s: %v with reason %q and key %x", topic, got.Finding, got.Reason, got.Key)
		}
		return
	}
	want := sha256.Sum256(ex.Hashed)
	if got.Route.Secret {
		mac := hmac.New(sha256.New, []byte(testSecret))
		mac.Write(ex.Hashed)
		want = [32]byte(mac.Sum(nil))
	}
	if got.Key != want || got.Reason != "" || got.Source == "" || (got.Routing == got.Digest) == (ex.Kind == string(kindOrder)) {
		t.Fatalf("%s: %+v for hashed %q", topic, got, ex.Hashed)
	}
}

// checkContent compares the payload source with encoding/json and a naive
// projection.
func checkContent(t *testing.T, topic string, payload []byte, got *Derived, ex *Explanation) {
	t.Helper()
	if got.Finding != Keyed || topic != "x" && topic != "i" && topic != "p" {
		return
	}
	var v any
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber() // a number beyond float64 may be where the key is not
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%s: encoding/json refuses an accepted payload: %v", topic, err)
	}
	paths := [][]string{{"t"}, {"a", "b"}, {"l", "*", "t"}, {"l", "0", "u"}}
	switch topic {
	case "x":
		for _, p := range paths {
			v = without(v, p)
		}
	case "i":
		v, _ = only(v, paths)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	want := jsontext.Value(text)
	if err := want.Canonicalize(); err != nil {
		t.Fatal(err)
	}
	if string(ex.Hashed) != string(want) {
		t.Fatalf("%s: hashed %s\nwant %s\nof %s", topic, ex.Hashed, want, payload)
	}
}

// without removes a path. No path of the test ends in an index, so array elements
// keep their indexes for the next path.
func without(v any, path []string) any {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			if path[0] != name && path[0] != "*" {
				continue
			}
			if len(path) == 1 {
				delete(v, name)
			} else {
				v[name] = without(inner, path[1:])
			}
		}
	case []any:
		for i, inner := range v {
			if (path[0] == strconv.Itoa(i) || path[0] == "*") && len(path) > 1 {
				v[i] = without(inner, path[1:])
			}
		}
	}
	return v
}

// only removes everything but the paths, and returns whether v has one of them.
func only(v any, paths [][]string) (kept any, found bool) {
	// at returns what is kept of the member or element of a name.
	at := func(name string, inner any) (any, bool) {
		var deeper [][]string
		for _, p := range paths {
			if p[0] == name || p[0] == "*" {
				if len(p) == 1 {
					return inner, true
				}
				deeper = append(deeper, p[1:])
			}
		}
		return only(inner, deeper)
	}
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, inner := range v {
			if kept, ok := at(name, inner); ok {
				out[name] = kept
			}
		}
		return out, len(out) > 0
	case []any:
		out, end := make([]any, len(v)), 0
		for i, inner := range v {
			if kept, ok := at(strconv.Itoa(i), inner); ok {
				out[i], end = kept, i+1
			}
		}
		return out[:end], end > 0
	}
	return v, false
}

func FuzzParseRoutes(f *testing.F) {
	f.Add([]byte(richRoutes))
	f.Add([]byte(fuzzRoutes))
	f.Add([]byte(httpRoutes))
	files, err := filepath.Glob("../../deployments/routes/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("routes:\n- &a {name: x}\n- *a\n---\n? [x]\n: !!binary aGk=\n"))
	where := regexp.MustCompile(`^r\.yaml:[1-9][0-9]*:[1-9][0-9]*: `)
	in := Input{Key: []byte("k"), Value: []byte(`{"id":"1","a":{"b":[1,"x"]},"t":1,"n":"1.5"}`), Headers: headerMap{}}
	f.Fuzz(func(t *testing.T, data []byte) {
		rs, err := ParseRoutes("r.yaml", data)
		if err != nil {
			var joined interface{ Unwrap() []error }
			if rs != nil || !asJoined(err, &joined) {
				t.Fatalf("%v with %T %v", rs, err, err)
			}
			for _, e := range joined.Unwrap() {
				if !where.MatchString(e.Error()) {
					t.Fatalf("no line in %q", e)
				}
			}
			return
		}
		again, err := ParseRoutes("r.yaml", data)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range rs.Routes {
			if r.KeyRule() != again.Routes[i].KeyRule() || r.Window <= 0 || r.Output == "" || len(r.Keys) == 0 || len(r.Topics) == 0 || r.Index != i {
				t.Fatalf("route %+v", r)
			}
			in.Topic = r.Topics[0]
			if got := rs.NewDeriver([]byte("s")).Derive(&in); got.Route == nil {
				t.Fatal("no route for an input topic")
			}
		}
	})
}

func asJoined(err error, target *interface{ Unwrap() []error }) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	*target = joined
	return ok
}
