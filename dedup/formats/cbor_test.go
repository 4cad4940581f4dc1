package formats

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
)

// TestCBORAsJSON has examples of RFC 8949, appendix A, and what their JSON is here.
func TestCBORAsJSON(t *testing.T) {
	for body, want := range map[string]string{
		"00": "0", "1864": "100", "1b000000e8d4a51000": "1000000000000", "1bffffffffffffffff": `"18446744073709551615"`, "c249010000000000000000": `"18446744073709551616"`,
		"3bffffffffffffffff": `"-18446744073709551616"`, "c349010000000000000000": `"-18446744073709551617"`, "20": "-1", "3903e7": "-1000",
		"f90000": "0", "f98000": "0", "f93e00": "1.5", "fb3ff199999999999a": "1.1", "fa47c35000": "100000", "fb7e37e43c8800759c": "1e+300",
		"f97c00": `"Infinity"`, "f97e00": `"NaN"`, "f9fc00": `"-Infinity"`, "f4": "false", "f5": "true", "f6": "null", "f7": "null", "f8ff": "255",
		"c074323031332d30332d32315432303a30343a30305a": `"2013-03-21T20:04:00Z"`, "c11a514b67b0": `"2013-03-21T20:04:00Z"`, "c1fb41d452d9ec200000": `"2013-03-21T20:04:00.5Z"`,
		"d74401020304": `"AQIDBA=="`, "d818456449455446": `"ZElFVEY="`, "d82076687474703a2f2f7777772e6578616d706c652e636f6d": `"http://www.example.com"`,
		"40": `""`, "60": `""`, "6449455446": `"IETF"`, "62225c": `"\"\\"`, "62c3bc": `"ü"`, "80": "[]", "8301820203820405": "[1,[2,3],[4,5]]", "a0": "{}",
		"a26161016162820203": `{"a":1,"b":[2,3]}`, "a201020304": `{"1":2,"3":4}`, "5f42010243030405ff": `"AQIDBAU="`, "7f657374726561646d696e67ff": `"streaming"`,
		"9f018202039f0405ffff": "[1,[2,3],[4,5]]", "bf61610161629f0203ffff": `{"a":1,"b":[2,3]}`,
		"c48221196ab3": `"273.15"`, "c4820205": `"500"`, "c4820320": `"-1000"`, "c4820300": `"0"`,
		"c1fb41d452d9e07ae148": `"2013-03-21T20:03:13.92Z"`, "c1fbbfe0000000000000": `"1969-12-31T23:59:59.5Z"`, "c1f93e00": `"1970-01-01T00:00:01.5Z"`,
		"82c1fb41d452d9e07ae14842c1fb": `["2013-03-21T20:03:13.92Z","wfs="]`, "9fc1fb41d452d9e07ae1485f42c1fb41c1ff1a514b67b0ff": `["2013-03-21T20:03:13.92Z","wfvB",1363896240]`,
		"c07819323031332d30332d32315432323a30343a30302b30323a3030": `"2013-03-21T20:04:00Z"`, // in another time zone
		"d82550" + "0190163d8694739baea5966c26f8ad91":              `"0190163d-8694-739b-aea5-966c26f8ad91"`,
	} {
		b, err := hex.DecodeString(body)
		if err != nil {
			t.Fatal(err)
		}
		got := textOf(t, CBOR, nil, b)
		if sorted := sortedJSON(t, got); sorted != sortedJSON(t, want) {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
	}
}

// sortedJSON returns JSON with its names in order, and its numbers as they are.
func sortedJSON(tb testing.TB, text string) string {
	tb.Helper()
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		tb.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

func TestDamagedCBOR(t *testing.T) {
	var d Decoder
	for name, c := range map[string]struct{ body, want string }{
		"nothing": {"", "EOF"}, "cut short": {"6449", "EOF"}, "left over": {"0000", "extraneous"}, "text": {"61ff", "UTF-8"},
		"twice": {"a2616101616102", "duplicate"}, "key": {"a18001", "key"}, "no time": {"c1fb7ff8000000000000", "time"}, "far time": {"c1fb7e37e43c8800759c", "time"}, "float key": {"a1f93e0001", "key"}, "scale": {"c4821903e901", "scale"},
		"deep": {strings.Repeat("81", depthMax+1) + "00", "nested"},
	} {
		b, err := hex.DecodeString(c.body)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := d.AppendJSON(nil, CBOR, nil, &Located{Body: b}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s, %v; want %q", name, text, err, c.want)
		}
	}
}

func FuzzCBOR(f *testing.F) {
	for _, v := range []any{map[string]any{"a": 1, "b": []any{1.5, nil, "x"}}, cbor.Tag{Number: 4, Content: []any{-2, 27315}}} {
		b, err := cbor.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Decoder
		text, err := d.AppendJSON(nil, CBOR, nil, &Located{Body: b})
		if err == nil && !json.Valid(text) {
			t.Fatalf("%s is not valid JSON", text)
		}
	})
}
