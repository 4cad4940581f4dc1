package rules

import (
	"bytes"
	"crypto/sha256"
	"testing"
)

// TestPartOf: only bytes in the memory of the value are a part of it.
func TestPartOf(t *testing.T) {
	memory := []byte("__0123456789__")
	value := memory[2:12:13] // with capacity left
	twice := []byte("0101")
	for name, c := range map[string]struct {
		value, b []byte
		want     Part
	}{
		"whole":                    {value, value, Part{0, 10}},
		"start":                    {value, value[:1], Part{0, 1}},
		"middle":                   {value, value[3:5], Part{3, 2}},
		"end":                      {value, value[9:], Part{9, 1}},
		"part of a part":           {value, value[2:8][3:4], Part{5, 1}},
		"second of two equal ones": {twice, twice[2:4], Part{2, 2}},
		"empty":                    {value, value[3:3], Part{}},
		"nil":                      {value, nil, Part{}},
		"of nil":                   {nil, value, Part{}},
		"of nothing":               {value[:0], value[:1], Part{}},
		"own memory":               {value, bytes.Clone(value), Part{}},
		"own memory, short":        {value, []byte("3"), Part{}},
		"own memory, long":         {value, bytes.Repeat([]byte("0123456789"), 9), Part{}},
		"before the value":         {value, memory[:3], Part{}},
		"after the value":          {value, value[9:11], Part{}},
		"behind the value":         {value, value[10:11], Part{}},
		"with less capacity":       {value, value[3:5:5], Part{}}, // correct, but not found
	} {
		got := partOf(c.value, c.b)
		if got != c.want || got.IsSet() != (c.want.Length > 0) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if got.IsSet() && (!got.In(c.value) || got.Key(c.value) != sha256.Sum256(c.b)) {
			t.Errorf("%s: %+v is not the part", name, got)
		}
	}
}

func TestPartIn(t *testing.T) {
	value := []byte("abc")
	for p, want := range map[Part]bool{
		{}: true, {0, 3}: true, {2, 1}: true, {3, 0}: true, {0, 4}: false, {2, 2}: false, {4, 0}: false, {4, 1}: false,
		{1 << 31, 1 << 31}: false, {-1, 1}: false, {1, -1}: false, {1, int(^uint(0) >> 1)}: false,
	} {
		if got := p.In(value); got != want {
			t.Errorf("%+v: %v, want %v", p, got, want)
		}
	}
}

// TestHashedParts: for each source and normaliser, the dedup key is the SHA-256 of the part,
// or there is no part.
func TestHashedParts(t *testing.T) {
	const payload = `{"id":"A-1","escaped":"A\u002d1","spaced":"  A-1 ","n":4.5,"account":"a","symbol":"S","side":"buy","quantity":1,"type":"market","timestamp":1}`
	headers := headerMap{"id": "A-1", "ce_id": "A-1", "ce_source": "/shop"}
	tried := map[sourceKind]bool{}
	for _, c := range []struct{ key, want string }{ // want: the part; "" for none
		{"[record_key]", ""},
		{"[{header: id}]", ""},
		{"[{field: id}]", "A-1"},
		{"[{field: gone}, {field: id}]", "A-1"},
		{"[{field: escaped}]", ""},
		{"[{field: spaced}]", "  A-1 "},
		{"[{field: spaced, normalise: trim}]", "A-1"},
		{"[{field: id, normalise: lower}]", ""},
		{"[{field: n}]", ""}, // numbers are written again
		{"[{fields: [id, n]}]", ""},
		{"[{hash: [id, n]}]", ""},
		{"[{payload: {exclude: [timestamp]}}]", ""},
		{"[raw]", payload},
		{"[cloudevent]", ""},
		{"[order]", ""},
		{"[form]", ""},
	} {
		for _, secret := range []string{"secret: false", "secret: true"} {
			routes := oneRoute(t, c.key, secret)
			for _, s := range routes.Routes[0].Keys {
				tried[s.kind] = true
			}
			d := routes.NewDeriver([]byte(testSecret))
			memory := []byte("A-1" + payload + "A-1") // the record key may be in the same memory
			in := &Input{Topic: "in", Key: memory[:3], Value: memory[3 : 3+len(payload)], Headers: headers, Timestamp: 1}
			if c.key == "[form]" {
				in.Headers = headerMap{"content-type": urlencodedForm}
			}
			got := d.Derive(in)
			if got.Finding != Keyed {
				t.Fatalf("%s: %s", c.key, got.Reason)
			}
			want := c.want
			if secret == "secret: true" {
				want = "" // anyone could compute a SHA-256
			}
			if got.Hashed.IsSet() != (want != "") || !got.Hashed.In(in.Value) || string(in.Value[got.Hashed.Start:][:got.Hashed.Length]) != want {
				t.Errorf("%s, %s: part %+v, want %q", c.key, secret, got.Hashed, want)
			}
			if got.Hashed.IsSet() && got.Hashed.Key(in.Value) != got.Key {
				t.Errorf("%s: the SHA-256 of the part is not the key", c.key)
			}
		}
	}
	for k, row := range kinds {
		if !tried[sourceKind(k)] {
			t.Errorf("source %s was not tried", row.name)
		}
	}
	d := oneRoute(t, "[{field: id}]", "time: {field: at}").NewDeriver(nil)
	if got := d.Derive(&Input{Topic: "in", Value: []byte(`{"id":"A-1","at":"?"}`)}); got.Finding != Malformed || got.Hashed.IsSet() {
		t.Errorf("a malformed record: %v, part %+v", got.Finding, got.Hashed)
	}
}
