package rules

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// drawNumber draws a JSON number that has up to 20 significant digits, written
// in one of several forms.
func drawNumber(r *rand.Rand) string {
	digits := make([]byte, 1+r.IntN(20))
	for i := range digits {
		digits[i] = byte('0' + r.IntN(10))
	}
	text := strings.TrimLeft(string(digits), "0")
	if text == "" {
		text = "0"
	}
	if r.IntN(4) == 0 {
		text = "-" + text
	}
	switch r.IntN(4) {
	case 0:
		text += fmt.Sprintf(".%d", r.IntN(1000))
	case 1:
		text += fmt.Sprintf("e%d", r.IntN(40)-20)
	case 2:
		// A float64 in several precisions, from its shortest digits on.
		f := r.Float64() * []float64{1, 1e6, 1e15, 1e17}[r.IntN(4)]
		return strconv.FormatFloat(f, 'g', []int{-1, 16, 17, 18}[r.IntN(4)], 64)
	}
	return text
}

func rational(tb testing.TB, literal string) *big.Rat {
	tb.Helper()
	v, ok := new(big.Rat).SetString(literal)
	if !ok {
		tb.Fatalf("%s is no number", literal)
	}
	return v
}

// TestNumbersAreKeysAsTheyAreWritten checks with exact arithmetic (math/big) that
// a number becomes the key of its own decimal value. Only numbers that a float64
// does not print again are refused.
func TestNumbersAreKeysAsTheyAreWritten(t *testing.T) {
	d := oneRoute(t, "[{field: n}]").NewDeriver(nil)
	r := rand.New(rand.NewPCG(15, 2))
	refused := 0
	for range 20_000 {
		literal := drawNumber(r)
		got, ex := d.Explain(&Input{Topic: "in", Value: []byte(`{"n":` + literal + `}`)})
		f, err := strconv.ParseFloat(literal, 64)
		if err != nil {
			t.Fatal(err)
		}
		exact := rational(t, strconv.FormatFloat(f, 'g', -1, 64)).Cmp(rational(t, literal)) == 0
		switch {
		case exact != (got.Finding == Keyed):
			t.Fatalf("%s: %v %s; float64 prints %v", literal, got.Finding, got.Reason, f)
		case !exact:
			refused++
			if !strings.Contains(got.Reason, "send it as a string") {
				t.Fatalf("%s: the reason %q names no remedy", literal, got.Reason)
			}
		case rational(t, string(ex.Hashed)).Cmp(rational(t, literal)) != 0:
			t.Fatalf("%s becomes the key %s", literal, ex.Hashed)
		}
	}
	if refused < 500 {
		t.Errorf("only %d numbers were refused", refused)
	}
}

// TestIDsThatShareAFloat64AreNotMerged derives pairs of ids with one float64. With
// one key, the second would be lost as a duplicate.
func TestIDsThatShareAFloat64AreNotMerged(t *testing.T) {
	for _, pair := range [][2]string{
		{"1234567890123456.7", "1234567890123456.8"},
		{"333333333.33333329", "333333333.3333333"},
		{"0.10000000000000001", "0.1"},
		{"1.00000000000000001e2", "100"},
	} {
		for _, key := range []string{"[{field: n}]", "[{fields: [n]}]", "[{hash: [n]}]", "[{payload: {}}]"} {
			d := oneRoute(t, key).NewDeriver(nil)
			of := func(literal string) Derived {
				return d.Derive(&Input{Topic: "in", Value: []byte(`{"n":` + literal + `}`)})
			}
			if a, b := of(pair[0]), of(pair[1]); a.Finding == Keyed && b.Finding == Keyed && a.Key == b.Key {
				t.Errorf("%s: %s and %s have one key", key, pair[0], pair[1])
			}
		}
	}
}
