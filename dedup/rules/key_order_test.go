package rules

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// pairedSources are sources of every kind, with and without normalisers.
var pairedSources = []string{
	"record_key", "{header: h, normalise: [trim, upper]}",
	"{field: x}", "{field: y, normalise: [trim, lower]}", "{field: n, normalise: {decimals: 2}}",
	"{fields: [x, y]}", "{fields: [y, x], normalise: {x: upper}}",
	"{hash: [x, n]}", "{hash: [y, n, x], optional: [n, y]}", "{hash: [y, x], normalise: {x: [trim, upper]}}",
	"{payload: {}}", "{payload: {exclude: [t]}}", "{payload: {include: [y, o.p]}}",
	"raw", "cloudevent", "{order: {account: x, symbol: y, side: x, quantity: n, type: y, timestamp: n, step: 1ms}}",
}

// drawRecord draws a record with some of the parts that the sources read. Strings
// have escapes and white space, so that sources copy them to scratch buffers.
func drawRecord(r *rand.Rand) Input {
	values := []string{`"o\u006ee"`, `"\tTwo "`, `""`, `null`, `7`, `1.50`, `"x"`, `{"p":"\u0070"}`, `[1, "\\"]`}
	var members []string
	for _, name := range []string{"x", "y", "n", "t", "o", "q", "source", "id"} {
		if r.IntN(3) > 0 {
			members = append(members, fmt.Sprintf(`%q%s:%s%s`, name, strings.Repeat(" ", r.IntN(2)), strings.Repeat(" ", r.IntN(2)), values[r.IntN(len(values))]))
		}
	}
	r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	in := Input{Topic: "in", Value: []byte("{" + strings.Join(members, ",") + "}"), Timestamp: 1}
	if r.IntN(2) == 0 {
		in.Key = []byte(" Key")
	}
	headers := headerMap{}
	for _, name := range []string{"h", headerCESource, headerCEID} {
		if r.IntN(2) == 0 {
			headers[name] = "of " + name
		}
	}
	if r.IntN(3) == 0 {
		headers[headerContentType] = "application/cloudevents+json"
	}
	in.Headers = headers
	return in
}

// TestKeyDoesNotDependOnEarlierSources derives each record by every ordered pair
// of sources. The pair yields the key of its first source alone, or else that of
// its second source alone.
func TestKeyDoesNotDependOnEarlierSources(t *testing.T) {
	const records = 30
	const match = `match: {field: q, in: ["one", "\tTwo ", "", "x", 7, 1.5]}`
	alone := make([]*Deriver, len(pairedSources))
	for i, s := range pairedSources {
		alone[i] = oneRoute(t, "["+s+"]").NewDeriver(nil)
	}
	r := rand.New(rand.NewPCG(15, 1))
	seconds := 0
	for i, first := range pairedSources {
		for j, second := range pairedSources {
			if i == j {
				continue
			}
			pair := oneRoute(t, "["+first+", "+second+"]").NewDeriver(nil)
			matched := oneRoute(t, "["+first+", "+second+"]", match).NewDeriver(nil)
			for range records {
				in := drawRecord(r)
				want, ex := alone[i].Explain(&in)
				if want.Finding == KeyMissing {
					want, ex = alone[j].Explain(&in)
					if want.Finding == Keyed {
						seconds++
					}
				}
				for name, d := range map[string]*Deriver{"alone": pair, "behind a match": matched} {
					got, gotEx := d.Explain(&in)
					if got.Finding == Malformed && strings.HasPrefix(got.Reason, "match: ") {
						continue
					}
					got.Route, got.Source, got.Reason = want.Route, want.Source, want.Reason
					if got != want || !bytes.Equal(gotEx.Hashed, ex.Hashed) {
						t.Fatalf("%s: [%s, %s] of %s:\n hashed %q (%v)\n alone  %q (%v)", name, first, second, in.Value, gotEx.Hashed, got.Finding, ex.Hashed, want.Finding)
					}
				}
			}
		}
	}
	if seconds < 300 {
		t.Errorf("only %d records got their key from the second source", seconds)
	}
}
