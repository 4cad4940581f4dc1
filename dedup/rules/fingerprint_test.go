package rules

import (
	"strings"
	"testing"
)

// TestFingerprintOfTheFirstFieldPresent: of a list the first field that is present counts,
// and the value of one field is not that of another.
func TestFingerprintOfTheFirstFieldPresent(t *testing.T) {
	d := oneRoute(t, "[{field: id}]", "fingerprint: [[user, account]]").NewDeriver(nil)
	of := func(payload string) uint64 {
		got := d.Derive(&Input{Topic: "in", Timestamp: 1, Value: []byte(payload)})
		if got.Finding != Keyed || got.Fingerprint == 0 {
			t.Fatalf("%s: %v %s", payload, got.Finding, got.Reason)
		}
		return got.Fingerprint
	}
	for _, c := range []struct {
		a, b  string
		equal bool
	}{
		{`{"id":1,"user":"u","account":"a"}`, `{"id":1,"account":"b","user":"u"}`, true},
		{`{"id":1,"user":"u","account":"a"}`, `{"id":1,"user":"v","account":"a"}`, false},
		{`{"id":1,"account":"a"}`, `{"id":1,"account":"a","user":null}`, true},
		{`{"id":1,"account":"a"}`, `{"id":1,"account":"a","user":""}`, true},
		{`{"id":1,"account":"a"}`, `{"id":1,"account":"b"}`, false},
		{`{"id":1,"account":"a"}`, `{"id":1,"user":"a"}`, false},
		{`{"id":1,"account":"a"}`, `{"id":1}`, false},
		{`{"id":1,"user":1.50}`, `{"id":1,"user":1.5}`, true},
	} {
		if (of(c.a) == of(c.b)) != c.equal {
			t.Errorf("%s and %s: equal %v, want %v", c.a, c.b, !c.equal, c.equal)
		}
	}
}

// TestFingerprintNormalises: two spellings of a detail are the same detail.
func TestFingerprintNormalises(t *testing.T) {
	d := oneRoute(t, "[{field: id}]", "fingerprint: {fields: [symbol, [side, way], quantity, at], normalise: {symbol: [trim, upper], way: lower, quantity: {decimals: 2}, at: {step: 1m}}}").NewDeriver(nil)
	derive := func(payload string) Derived {
		return d.Derive(&Input{Topic: "in", Timestamp: 1, Value: []byte(payload)})
	}
	const first = `{"id":1,"symbol":"AAPL","side":"BUY","quantity":100,"at":60000}`
	for _, c := range []struct {
		a, b  string
		equal bool
	}{
		{first, `{"id":1,"symbol":" aapl","side":"BUY","quantity":"100.004","at":60999}`, true},
		{first, `{"id":1,"symbol":"AAPL","side":"buy","quantity":100,"at":60000}`, false}, // side has no normaliser
		{first, `{"id":1,"symbol":"AAPL","side":"BUY","quantity":100.01,"at":60000}`, false},
		{first, `{"id":1,"symbol":"AAPL","side":"BUY","quantity":100,"at":120000}`, false},
		{`{"id":1,"way":"IN"}`, `{"id":1,"way":"in","symbol":null}`, true}, // absent, null: no step
		{`{"id":1,"symbol":""}`, `{"id":1,"symbol":"  "}`, true},
		{`{"id":1,"symbol":""}`, `{"id":1}`, false},
		{`{"id":1,"symbol":"\u0061b"}`, `{"id":1,"symbol":"AB"}`, true},
		{`{"id":1,"symbol":7}`, `{"id":1,"symbol":"7"}`, false}, // upper leaves a number a number
	} {
		a, b := derive(c.a), derive(c.b)
		if a.Finding != Keyed || b.Finding != Keyed || (a.Fingerprint == b.Fingerprint) != c.equal {
			t.Errorf("%s and %s: %v %s, %v %s, equal %v, want %v", c.a, c.b, a.Finding, a.Reason, b.Finding, b.Reason, a.Fingerprint == b.Fingerprint, c.equal)
		}
	}
	for payload, want := range map[string]string{
		`{"id":1,"symbol":[]}`:       "fingerprint field symbol: want a string or number, found an array",
		`{"id":1,"quantity":"many"}`: "fingerprint field quantity: want a decimal number",
	} {
		if got := derive(payload); got.Finding != Malformed || !strings.HasPrefix(got.Reason, want) {
			t.Errorf("%s: %v %q, want malformed, %q", payload, got.Finding, got.Reason, want)
		}
	}
}

// TestFingerprintRuleNamesNormalisers: a changed normaliser makes another list, so that no
// duplicate becomes a collision. The list without any keeps its name.
func TestFingerprintRuleNamesNormalisers(t *testing.T) {
	rule := func(fingerprint string) uint8 {
		return oneRoute(t, "[{field: id}]", "fingerprint: "+fingerprint).Routes[0].fingerprintRule
	}
	plain := rule("[a, [b, c]]")
	if object := rule("{fields: [a, [b, c]]}"); object != plain {
		t.Errorf("the object form of the same list is %d, want %d", object, plain)
	}
	upper := rule("{fields: [a, [b, c]], normalise: {c: upper}}")
	if lower := rule("{fields: [a, [b, c]], normalise: {c: lower}}"); upper == plain || lower == plain || upper == lower {
		t.Errorf("rules %d, %d, %d of other normalisers are not apart", plain, upper, lower)
	}
}

// TestMatchNormalises: a route takes each spelling of its value, in a field and a header.
func TestMatchNormalises(t *testing.T) {
	for _, match := range []string{"{field: op, normalise: [trim, upper], in: [RESET]}", "{header: op, normalise: [trim, upper], in: [RESET]}"} {
		d := oneRoute(t, "[{field: id}]", "match: "+match).NewDeriver(nil)
		for op, want := range map[string]Finding{"RESET": Keyed, "reset": Keyed, " Reset ": Keyed, "RE SET": Malformed, "": Malformed} {
			got := d.Derive(&Input{Topic: "in", Timestamp: 1, Headers: headerMap{"op": op}, Value: []byte(`{"id":1,"op":"` + op + `"}`)})
			if got.Finding != want {
				t.Errorf("%s: %q is %v (%s), want %v", match, op, got.Finding, got.Reason, want)
			}
		}
	}
}
