package rules

import "testing"

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
