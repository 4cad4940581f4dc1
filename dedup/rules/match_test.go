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

// BenchmarkMatch is a record of the last of so many routes, by a number.
func BenchmarkMatch(b *testing.B) {
	for _, routes := range []int{1, 10, 254} {
		b.Run(fmt.Sprint(routes), func(b *testing.B) {
			file := "routes:\n"
			for n := range routes {
				file += fmt.Sprintf("  - {name: r%d, topics: [in], key: [{field: id}], window: 1h, output: out, match: {field: n, in: [%d]}}\n", n, n)
			}
			d := parse(b, file).NewDeriver(nil)
			in := &Input{Topic: "in", Timestamp: 1, Value: fmt.Appendf(nil, `{"id":"7d1f0c2a","n":%d}`, routes-1)}
			b.ReportAllocs()
			for b.Loop() {
				if got := d.Derive(in); got.Finding != Keyed {
					b.Fatal(got.Reason)
				}
			}
		})
	}
}
