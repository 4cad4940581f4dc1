package formats

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// messagePack encodes a value with the library of the field.
func messagePack(tb testing.TB, v any) []byte {
	tb.Helper()
	b, err := msgp.AppendIntf(nil, v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestMessagePackAsJSON(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{nil, "null"}, {true, "true"}, {int64(-5), "-5"}, {uint64(math.MaxUint64), `"18446744073709551615"`}, {int64(math.MinInt64), `"-9223372036854775808"`},
		{float32(1.1), "1.1"}, {99.5, "99.5"}, {math.Inf(-1), `"-Infinity"`}, {"a\"b€", `"a\"b€"`}, {[]byte{0xff, 0}, `"/wA="`},
		{[]any{int64(1), []any{}, "x"}, `[1,[],"x"]`}, {map[string]any{"a": map[string]any{}}, `{"a":{}}`},
	} {
		if got := textOf(t, MessagePack, nil, messagePack(t, c.v)); got != c.want {
			t.Errorf("%v: got %s, want %s", c.v, got, c.want)
		}
	}
	at := time.Date(2026, 11, 26, 10, 30, 0, 120_000_000, time.UTC)
	for body, want := range map[string]string{
		hex.EncodeToString(msgp.AppendTimeExt(nil, at)): `"2026-11-26T10:30:00.12Z"`,
		"d6ff00000000":                   `"1970-01-01T00:00:00Z"`,
		"c70cff000000010000000000000001": `"1970-01-01T00:00:01.000000001Z"`,
		"d40501":                         `{"type":5,"data":"AQ=="}`, "c70305010203": `{"type":5,"data":"AQID"}`, // 5 is the library's own type of times
		"8101a178": `{"1":"x"}`, "81cfffffffffffffffffc0": `{"18446744073709551615":null}`,
	} {
		b, err := hex.DecodeString(body)
		if err != nil {
			t.Fatal(err)
		}
		if got := textOf(t, MessagePack, nil, b); got != want {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
	}
}

func TestDamagedMessagePack(t *testing.T) {
	var d Decoder
	for name, c := range map[string]struct{ body, want string }{
		"nothing": {"", "cut short"}, "text cut short": {"a261", "cut short"}, "left over": {"c0c0", "left over"}, "text": {"a1ff", "UTF-8"},
		"reserved": {"c1", "begins no value"}, "key": {"81c0c0", "key"}, "no key": {"81", "cut short"}, "timestamp": {"d5ff0000", "timestamp has 2 bytes"},
		"nanoseconds": {"d7ffffffffff00000000", "years"}, "deep": {strings.Repeat("91", depthMax+2) + "c0", "nested"},
	} {
		b, err := hex.DecodeString(c.body)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := d.AppendJSON(nil, MessagePack, nil, &Located{Body: b}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s, %v; want %q", name, text, err, c.want)
		}
	}
}

func TestMessagePackAllocatesNothing(t *testing.T) {
	b := messagePack(t, map[string]any{"id": "x", "n": int64(5), "list": []any{1.5, true}})
	var d Decoder
	dst := make([]byte, 0, 1<<12)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := d.AppendJSON(dst, MessagePack, nil, &Located{Body: b}); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzMessagePack(f *testing.F) {
	f.Add(messagePack(f, map[string]any{"a": []any{int64(1), 1.5, nil, []byte{1}}}))
	f.Add(msgp.AppendTimeExt(nil, time.Unix(1, 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Decoder
		text, err := d.AppendJSON(nil, MessagePack, nil, &Located{Body: b})
		if err == nil && !json.Valid(text) {
			t.Fatalf("%s is not valid JSON", text)
		}
	})
}
