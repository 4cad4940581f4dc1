package ingress

import (
	"regexp"
	"strings"
	"testing"

	"oncebus/processor/kafkatest"
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

// TestIdempotencyKey: one key, no key, and malformed headers.
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
		{[]string{`"`}, "", "want one string"},
		{[]string{`"q1`}, "", "want one string"},
		{[]string{`"q1\"`}, "", "want one string"},
		{[]string{`"q\1"`}, "", "want one string"},
		{[]string{`"q1\`}, "", "want one string"},
		{[]string{"\"q\t1\""}, "", "want one string"},
		{[]string{`"é"`}, "", "want one string"},
		{[]string{`"q1"x`}, "", "want one string"},
		{[]string{`"q1", "q2"`}, "", "want one string"},
		{[]string{`"q1";a=1, "q2"`}, "", "want one string"},
		{[]string{`"q1";a="x`}, "", "want one string"},
		{[]string{`"q1";`}, "", "want one string"},
		{[]string{`"q1";A=1`}, "", "want one string"},
		{[]string{`"q1" ;a=1`}, "", "want one string"},
	} {
		key, err := readIdempotencyKey(c.values)
		if key != c.key || (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q: %q, %v; want %q, %q", c.values, key, err, c.key, c.fault)
		}
	}
}

// TestRequestsWithAnIdempotencyKey: quotes do not change the key, an empty key
// is a missing one, two are invalid.
func TestRequestsWithAnIdempotencyKey(t *testing.T) {
	t.Parallel()
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
		"header Idempotency-Key: it came 2 times, want one":                                                                  {name, "q2", name, "q3"},
		"header Idempotency-Key: want one string of RFC 9651, or the key without quotes: invalid string format: character 3": {name, `"q2`},
		"header Idempotency-Key: want one string of RFC 9651, or the key without quotes: unmarshal error: character 4":       {name, `"q2", "q3"`},
	} {
		if p := i.post("/signals", `{}`, headers...).problem(t, want, "invalid", 400); p.Detail != want {
			t.Errorf("the detail is %q, want %q", p.Detail, want)
		}
	}
	out := b.read("signals.unique", 1)
	if len(out) != 1 || kafkatest.Header(out[0], "idempotency-key") != "q1" {
		t.Errorf("%d events were forwarded, the first with key %q", len(out), kafkatest.Header(out[0], "idempotency-key"))
	}
}

// FuzzIdempotencyKey: a key survives a round trip through its String, and the
// server accepts every value that the OpenAPI document allows.
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
			t.Errorf("%q: key %q and error %v", value, key, err)
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
