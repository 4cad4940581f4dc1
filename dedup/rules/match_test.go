package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestFirstMatchingRouteTakesARecord: over routes that compare different values, with texts
// that several of them name, it is the first in the file.
func TestFirstMatchingRouteTakesARecord(t *testing.T) {
	t.Parallel()
	values := []string{"1", "2", "x", "y"}
	sources := []string{"field: a", "field: b", "header: h", "field: a, normalise: [lower]"}
	rapid.Check(t, func(t *rapid.T) {
		type route struct {
			source string
			in     []string
		}
		var routes []route
		file := "routes:\n"
		for n := range rapid.IntRange(1, 8).Draw(t, "routes") {
			r := route{rapid.SampledFrom(sources).Draw(t, "source"), rapid.SliceOfNDistinct(rapid.SampledFrom(values), 1, 3, rapid.ID).Draw(t, "in")}
			routes = append(routes, r)
			file += fmt.Sprintf("  - {name: r%d, topics: [in], key: [raw], window: 1h, output: out, match: {%s, in: ['%s']}}\n", n, r.source, strings.Join(r.in, "', '"))
		}
		rs, err := ParseRoutes("routes.yaml", []byte(file))
		if err != nil && strings.Contains(err.Error(), "the route gets nothing") {
			t.Skip("a route without records is refused")
		}
		if err != nil {
			t.Fatal(err)
		}
		value := rapid.SampledFrom(append(values, "X", "none"))
		a, b, h := value.Draw(t, "a"), value.Draw(t, "b"), value.Draw(t, "h")
		want := slices.IndexFunc(routes, func(r route) bool {
			text := map[string]string{"field: a": a, "field: b": b, "header: h": h, "field: a, normalise: [lower]": strings.ToLower(a)}[r.source]
			return slices.Contains(r.in, text)
		})
		got := rs.NewDeriver(nil).Derive(&Input{Topic: "in", Timestamp: 1, Headers: headerMap{"h": h}, Value: fmt.Appendf(nil, `{"a":%q,"b":%q}`, a, b)})
		switch {
		case want < 0 && got.Finding != Malformed:
			t.Fatalf("route %s takes a record of no route", got.Route.Name)
		case want >= 0 && (got.Finding != Keyed || got.Route.Name != fmt.Sprint("r", want)):
			t.Fatalf("%v: route %s, want r%d", got.Reason, got.Route.Name, want)
		}
	})
}

// matchRoutes returns n routes of one topic that match by so many fields in turn.
func matchRoutes(n, fields int) string {
	var file strings.Builder
	file.WriteString("routes:\n")
	for i := range n {
		fmt.Fprintf(&file, "  - {name: r%d, topics: [in], key: [{field: id}], window: 1h, output: out, match: {field: n%d, in: [%d.5]}}\n", i, i%fields, i)
	}
	return file.String()
}

// TestMatchReadsEachValueOnce: routes that compare the same value are one group, also
// where routes that compare another value are between them.
func TestMatchReadsEachValueOnce(t *testing.T) {
	t.Parallel()
	d := parse(t, matchRoutes(254, 2)).NewDeriver(nil)
	for last, route := range map[string]string{"253.5": "r253", "1.5": "r1"} {
		got := d.Derive(&Input{Topic: "in", Timestamp: 1, Value: []byte(`{"id":"a","n0":7,"n1":` + last + `}`)})
		if got.Finding != Keyed || got.Route.Name != route {
			t.Errorf("%v: route %s, want %s", got.Reason, got.Route.Name, route)
		}
	}
	if n := len(d.plan.groups); n != 2 {
		t.Errorf("%d groups of routes that compare 2 values", n)
	}
}

// BenchmarkMatch is a record of the last of so many routes, by a number of one field, or
// of one of two fields in turn.
func BenchmarkMatch(b *testing.B) {
	for _, fields := range []int{1, 2} {
		for _, routes := range []int{1, 10, 254} {
			b.Run(fmt.Sprintf("fields=%d/routes=%d", fields, routes), func(b *testing.B) {
				d := parse(b, matchRoutes(routes, fields)).NewDeriver(nil)
				in := &Input{Topic: "in", Timestamp: 1, Value: fmt.Appendf(nil, `{"id":"7d1f0c2a","n0":%[1]d.5,"n1":%[1]d.5}`, routes-1)}
				b.ReportAllocs()
				for b.Loop() {
					if got := d.Derive(in); got.Finding != Keyed {
						b.Fatal(got.Reason)
					}
				}
			})
		}
	}
}

// TestMatchNullTakesAnAbsentField: null in the file is a field that is absent or null, and no other value, in whatever
// spelling.
func TestMatchNullTakesAnAbsentField(t *testing.T) {
	t.Parallel()
	d := parse(t, `routes:
  - {name: odd, topics: [in], key: [raw], window: 1h, output: out, match: {field: a, in: [close]}}
  - {name: plain, topics: [in], key: [raw], window: 1h, output: out, match: {field: a, normalise: [lower], in: [place, null]}}
`).NewDeriver(nil)
	for value, want := range map[string]string{
		`{}`: "plain", `{"a":null}`: "plain", `{"a":"Place"}`: "plain", `{"a":"close"}`: "odd", `[]`: "plain",
		`{"a":""}`: "", `{"a":"null"}`: "", `{"a":{}}`: "", `{"a":[null]}`: "", `{"a":"\u00ff"}`: "", `{"a":"cancel"}`: "",
	} {
		got := d.Derive(&Input{Topic: "in", Timestamp: 1, Value: []byte(value)})
		if taken := got.Finding == Keyed; taken != (want != "") || taken && got.Route.Name != want {
			t.Errorf("%s: route %s, %v %s, want %q", value, got.Route.Name, got.Finding, got.Reason, want)
		}
	}
	for file, want := range map[string]string{
		"match: {header: h, in: [null]}": "null is a payload field that is absent or null: a header has none",
	} {
		_, err := ParseRoutes("r.yaml", []byte("routes:\n  - {name: r, topics: [in], key: [raw], window: 1h, output: out, "+file+"}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", file, err)
		}
	}
	twice := `routes:
  - {name: all, topics: [in], key: [raw], window: 1h, output: out, match: {field: a, in: [null]}}
  - {name: none, topics: [in], key: [raw], window: 1h, output: out, match: {field: a, normalise: [upper], in: [null]}}
`
	if _, err := ParseRoutes("r.yaml", []byte(twice)); err == nil || !strings.Contains(err.Error(), "the route gets nothing of in") {
		t.Errorf("a route without records: %v", err)
	}
}
