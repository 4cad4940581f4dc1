package rules

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestDecimalsAgreeWithPython compares rounding with Python's decimal module.
// The third column of testdata/decimals.txt was written by
//
//	import decimal, sys
//	decimal.getcontext().prec = 2000
//	for line in sys.stdin:
//	    literal, n = line.split()[:2]
//	    v = decimal.Decimal(literal).quantize(decimal.Decimal(1).scaleb(-int(n)), rounding=decimal.ROUND_HALF_EVEN)
//	    s = f"{v:.{n}f}"
//	    print(literal, n, s[1:] if v == 0 and s[0] == "-" else s)
func TestDecimalsAgreeWithPython(t *testing.T) {
	data, err := os.ReadFile("testdata/decimals.txt")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		column := strings.Fields(line)
		places, err := strconv.Atoi(column[1])
		if err != nil {
			t.Fatal(err)
		}
		v, reason := parseDecimal(nil, []byte(column[0]))
		if got := string(v.appendFixed([]byte("x"), places)); reason != "" || got != "x"+column[2] {
			t.Errorf("%s with %d decimals: %s %s, want %s", column[0], places, got, reason, column[2])
		}
		checked++
	}
	if checked < 50 {
		t.Errorf("only %d numbers checked", checked)
	}
}

func TestParseDecimalRefuses(t *testing.T) {
	for _, text := range []string{"", "-", "+1", "01", "-01", "1.", ".5", "1e", "1e+", "1_0", "0x10", " 1", "1 ", "NaN", "Infinity", "1.5.5", "1e5.0", "１"} {
		if _, reason := parseDecimal(nil, []byte(text)); reason != reasonNotNumber {
			t.Errorf("%q: %q", text, reason)
		}
	}
	for _, text := range []string{"1e401", "1e-402", strings.Repeat("7", 1001), "1e999999999999999999999"} {
		if _, reason := parseDecimal(nil, []byte(text)); reason != reasonTooLong {
			t.Errorf("%.20s: %q", text, reason)
		}
	}
}

func TestNormalisers(t *testing.T) {
	for _, v := range []struct{ key, payload, want string }{
		{"[{field: a, normalise: trim}]", `{"a":"\u00a0 x y\n\u3000"}`, "x y"},
		{"[{field: a, normalise: upper}]", `{"a":"aBcé-ß"}`, "ABCÉ-ß"},
		{"[{field: a, normalise: lower}]", `{"a":"AbCÉ"}`, "abcé"},
		{"[{field: a, normalise: [trim, upper]}]", `{"a":" x "}`, "X"},
		{"[{field: a, normalise: lower}]", `{"a":1E30}`, "1e+30"},
		{"[{field: a, normalise: {decimals: 2}}]", `{"a":0.125}`, "0.12"},
		{"[{field: a, normalise: {decimals: 2}}]", `{"a":"0.1350"}`, "0.14"},
		{"[{field: a, normalise: [trim, {decimals: 0}]}]", `{"a":" 9007199254740993 "}`, "9007199254740993"},
		{"[{field: a, normalise: {decimals: 0}}]", `{"a":9007199254740993}`, "9007199254740993"},
		{"[{field: a, normalise: {step: 1m}}]", `{"a":119999}`, "60000"},
		{"[{field: a, normalise: {step: 1m}}]", `{"a":"1970-01-01T00:01:59.999Z"}`, "60000"},
		{"[{field: a, normalise: {step: 1m, format: unix_s}}]", `{"a":119}`, "60000"},
		{"[{field: a, normalise: {step: 1m, format: unix_ms}}]", `{"a":"119999"}`, "60000"},
		{"[{fields: [a, b], normalise: {b: upper}}]", `{"a":"x","b":"y"}`, "1:x,1:Y,"},
		{"[{hash: [a, b, c, d], normalise: {b: [trim, upper], c: {decimals: 2}, d: {step: 1s}}}]", `{"a":" x","b":" y\"","c":1,"d":1999}`,
			`{"a":" x","b":"Y\"","c":"1.00","d":1000}`},
	} {
		d, ex := oneRoute(t, v.key).NewDeriver(nil).Explain(&Input{Topic: "in", Value: []byte(v.payload)})
		if string(ex.Hashed) != v.want {
			t.Errorf("%s with %s: %q %s, want %q", v.key, v.payload, ex.Hashed, d.Reason, v.want)
		}
	}
	for _, v := range []struct{ key, payload, want string }{
		{"[{field: a, normalise: {decimals: 2}}]", `{"a":"1,5"}`, "field a: want a decimal number"},
		{"[{field: a, normalise: {decimals: 2}}]", `{"a":1e999}`, "field a: the number has too many digits"},
		{"[{field: a, normalise: {step: 1m}}]", `{"a":"119999"}`, "field a: want a time such as 2026-01-02T15:04:05Z (RFC 3339)"},
		{"[{hash: [a], normalise: {a: trim}}]", `{"a":[1]}`, "field a: want a string or number, found an array"},
	} {
		if got := derive(t, v.key, v.payload); got.Finding != Malformed || got.Reason != v.want {
			t.Errorf("%s with %s: %v %q, want %q", v.key, v.payload, got.Finding, got.Reason, v.want)
		}
	}
}

// TestNormalisersKeepForeignBytes normalises an id that is not UTF-8. Replacing its
// bytes would merge different ids.
func TestNormalisersKeepForeignBytes(t *testing.T) {
	d := oneRoute(t, "[{record_key: true, normalise: [trim, upper]}]").NewDeriver(nil)
	_, ex := d.Explain(&Input{Topic: "in", Key: []byte(" a\xff\xfeb ")})
	if string(ex.Hashed) != "A\xff\xfeB" {
		t.Errorf("%q", ex.Hashed)
	}
}
