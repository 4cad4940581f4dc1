package ingress

import (
	"regexp"
	"strings"
	"testing"
)

const keyedByHeader = `routes:
  - name: signals
    topics: [signals.raw]
    key: [{header: idempotency-key}]
    window: 1h
    output: signals.unique
    dead_letter: dead
    http:
      path: /signals
      signature: {scheme: none}
` + patience

// TestIdempotencyKey: what is one key, what is none, and what is refused.
func TestIdempotencyKey(t *testing.T) {
	for _, c := range []struct {
		values []string
		key    string
		fault  string // in the error
	}{
		{nil, "", ""},
		{[]string{""}, "", ""},
		{[]string{`""`}, "", ""},
		{[]string{`"";a=1`}, "", ""},
		{[]string{`"8e03978e-40d5-43dd-bc93-6894a57f9324"`}, "8e03978e-40d5-43dd-bc93-6894a57f9324", ""},
		{[]string{`8e03978e-40d5-43dd-bc93-6894a57f9324`}, "8e03978e-40d5-43dd-bc93-6894a57f9324", ""},
		{[]string{" \"q1\"\t "}, "q1", ""},
		{[]string{`"q1";a;b="x, \"y\";";c=?1`}, "q1", ""},
		{[]string{`"a\"b\\c, d;e "`}, `a"b\c, d;e `, ""},
		{[]string{"q1, q2"}, "q1, q2", ""}, // without quotes everything is the key
		{[]string{`q"1`}, `q"1`, ""},
		{[]string{":cTE=:"}, ":cTE=:", ""},
		{[]string{"x1", "x2"}, "", "it came 2 times, want one"},
		{[]string{"x1", "x1"}, "", "it came 2 times"},
		{[]string{`"`}, "", "does not end with one"},
		{[]string{`"q1`}, "", "does not end with one"},
		{[]string{`"q1\"`}, "", "does not end with one"},
		{[]string{`"q\1"`}, "", "a backslash stands before"},
		{[]string{`"q1\`}, "", "a backslash stands before"},
		{[]string{"\"q\t1\""}, "", "printable ASCII"},
		{[]string{`"é"`}, "", "printable ASCII"},
		{[]string{`"q1"x`}, "", "follows the closing quote"},
		{[]string{`"q1", "q2"`}, "", "follows the closing quote"},
		{[]string{`"q1";a=1, "q2"`}, "", "it is a list"},
		{[]string{`"q1";a="x`}, "", "does not end with one"},
	} {
		key, err := readIdempotencyKey(c.values)
		if key != c.key || (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q: %q, %v; want %q, %q", c.values, key, err, c.key, c.fault)
		}
	}
}

// TestRequestsWithAnIdempotencyKey: with and without quotes it is the same key,
// an empty one is none, and two are refused.
func TestRequestsWithAnIdempotencyKey(t *testing.T) {
	b := newBench(t, keyedByHeader)
	i := b.serve(nil)
	const name = "Idempotency-Key"
	i.post("/signals", `{}`, name, `"q1"`).want(t, "in quotes", 202)
	i.post("/signals", `{}`, name, `q1`).problem(t, "without", "duplicate", 409)
	i.post("/signals", `{}`, name, `"q1";v=2`).problem(t, "with a parameter", "duplicate", 409)
	for _, none := range []string{`""`, ``} {
		i.post("/signals", `{}`, name, none).header(t, none, "Oncebus-Verdict", "missing_key").problem(t, none, "missing-key", 400)
	}
	for want, headers := range map[string][]string{
		"header Idempotency-Key: it came 2 times, want one":                                 {name, "q2", name, "q3"},
		"header Idempotency-Key: it begins with a quote and does not end with one":          {name, `"q2`},
		"header Idempotency-Key: something other than parameters follows the closing quote": {name, `"q2", "q3"`},
	} {
		if p := i.post("/signals", `{}`, headers...).problem(t, want, "invalid", 400); p.Detail != want {
			t.Errorf("the detail is %q, want %q", p.Detail, want)
		}
	}
	out := b.read("signals.unique", 1)
	if len(out) != 1 || recordHeader(out[0], "idempotency-key") != "q1" {
		t.Errorf("%d events passed, the first with key %q", len(out), recordHeader(out[0], "idempotency-key"))
	}
}

// FuzzIdempotencyKey: a key that was read is read again from the String that
// stands for it, and what the document promises is taken.
func FuzzIdempotencyKey(f *testing.F) {
	for _, seed := range []string{"", `""`, `"q1"`, "q1", `"a\"b\\c";d="e,f";g`, `"q1", "q2"`, `"q1";a=1, "q2"`, `"`, `"\`, " \"q\" ", "\"\x7f\"", `"q";`} {
		f.Add(seed)
	}
	documented := regexp.MustCompile(idempotencyPattern)
	f.Fuzz(func(t *testing.T, value string) {
		key, err := readIdempotencyKey([]string{value})
		quoted := strings.HasPrefix(strings.Trim(value, " \t"), `"`)
		switch {
		case err != nil && (!quoted || key != ""):
			t.Errorf("%q: %q beside %v", value, key, err)
		case err != nil && strings.Trim(value, " \t") == value && documented.MatchString(value):
			t.Errorf("%q is documented: %v", value, err)
		case err == nil && !quoted && key != strings.Trim(value, " \t"):
			t.Errorf("%q: %q", value, key)
		}
		if err != nil || !quoted {
			return
		}
		again, err := readIdempotencyKey([]string{`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `";x="y"`})
		if err != nil || again != key {
			t.Errorf("%q is %q, then %q, %v", value, key, again, err)
		}
	})
}
