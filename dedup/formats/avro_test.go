package formats

import (
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/twmb/avro"
)

// everything is a schema with each type of Avro.
const everything = `{"type": "record", "name": "Order", "namespace": "shop", "fields": [
	{"name": "id", "type": "string"},
	{"name": "quantity", "type": "int"},
	{"name": "sequence", "type": "long"},
	{"name": "paid", "type": "boolean"},
	{"name": "ratio", "type": "float"},
	{"name": "price", "type": "double"},
	{"name": "raw", "type": "bytes"},
	{"name": "note", "type": ["null", "string"]},
	{"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
	{"name": "tags", "type": {"type": "array", "items": "string"}},
	{"name": "limits", "type": {"type": "map", "values": "long"}},
	{"name": "check", "type": {"type": "fixed", "name": "Check", "size": 3}},
	{"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}},
	{"name": "trace", "type": {"type": "string", "logicalType": "uuid"}},
	{"name": "day", "type": {"type": "int", "logicalType": "date"}},
	{"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
	{"name": "opens", "type": {"type": "int", "logicalType": "time-millis"}},
	{"name": "parent", "type": ["null", "shop.Order"]}
]}`

func everyValue() map[string]any {
	return map[string]any{
		"id": "a\"b\u20ac", "quantity": int32(-7), "sequence": int64(math.MaxInt64), "paid": true, "ratio": float32(1.1), "price": 99.5,
		"raw": []byte{0xff, 0}, "note": nil, "side": "SELL", "tags": []any{"x", "y"}, "limits": map[string]any{"daily": int64(5)},
		"check": []byte{1, 2, 3}, "amount": big.NewRat(-125000, 10000), "trace": "0190163D-8694-739B-AEA5-966C26F8AD91",
		"day": time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC), "at": time.Date(2026, 11, 26, 10, 30, 0, 120_000, time.UTC),
		"opens": 9*time.Hour + 30*time.Minute, "parent": nil,
	}
}

const everyText = `{"id":"a\"b€","quantity":-7,"sequence":"9223372036854775807","paid":true,"ratio":1.1,"price":99.5,"raw":"/wA=","note":null,` +
	`"side":"SELL","tags":["x","y"],"limits":{"daily":5},"check":"AQID","amount":"-12.5","trace":"0190163d-8694-739b-aea5-966c26f8ad91",` +
	`"day":"2026-11-26","at":"2026-11-26T10:30:00.00012Z","opens":"09:30:00","parent":`

// encodeAvro encodes a value with the library of the field.
func encodeAvro(tb testing.TB, schema string, v any) []byte {
	tb.Helper()
	parsed, err := avro.Parse(schema)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := parsed.Encode(v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func mustAvro(tb testing.TB, schema string, references ...string) *Schema {
	tb.Helper()
	s, err := ParseAvro(schema, references...)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// textOf returns the JSON of a value, which must be valid.
func textOf(tb testing.TB, f Format, schema *Schema, body []byte) string {
	tb.Helper()
	var d Decoder
	text, err := d.AppendJSON([]byte("kept"), f, schema, &Located{Body: body})
	if err != nil {
		tb.Fatalf("%x: %v", body, err)
	}
	text = text[len("kept"):]
	if !jsontext.Value(text).IsValid() {
		tb.Fatalf("%s is not valid JSON", text)
	}
	return string(text)
}

func TestAvroAsJSON(t *testing.T) {
	inner := everyValue()
	outer := everyValue()
	outer["parent"] = inner
	got := textOf(t, Avro, mustAvro(t, everything), encodeAvro(t, everything, outer))
	if want := everyText + everyText + "null}}"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestAvroKeepsTheTextOfAnEvolvedSchema: copies by senders of two releases have the same values.
func TestAvroKeepsTheTextOfAnEvolvedSchema(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		v, w          any
	}{
		"int to long":     {`"int"`, `"long"`, int32(5), int64(5)},
		"int to union":    {`"int"`, `["null", "long"]`, int32(5), int64(5)},
		"branches":        {`["null", "string"]`, `["string", "int", "null"]`, "x", "x"},
		"float to double": {`"float"`, `"double"`, float32(0.1), 0.1},
		"int to double":   {`"int"`, `"double"`, int32(7), 7.0},
		"scale": {
			`{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}`,
			`{"type": "fixed", "name": "D", "size": 12, "logicalType": "decimal", "precision": 20, "scale": 6}`,
			big.NewRat(1050, 100), big.NewRat(1050, 100),
		},
		"precision of times": {
			`{"type": "long", "logicalType": "timestamp-millis"}`, `{"type": "long", "logicalType": "timestamp-micros"}`,
			time.UnixMilli(1_795_000_000_120).UTC(), time.UnixMilli(1_795_000_000_120).UTC(),
		},
	} {
		a := textOf(t, Avro, mustAvro(t, c.before), encodeAvro(t, c.before, c.v))
		b := textOf(t, Avro, mustAvro(t, c.after), encodeAvro(t, c.after, c.w))
		if a != b {
			t.Errorf("%s: %s, then %s", name, a, b)
		}
	}
}

func TestAvroReferences(t *testing.T) {
	side := `{"type": "enum", "name": "Side", "namespace": "shop", "symbols": ["BUY", "SELL"]}`
	line := `{"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "side", "type": "Side"}]}`
	order := `{"type": "record", "name": "Order", "namespace": "other", "fields": [{"name": "lines", "type": {"type": "array", "items": "shop.Line"}}]}`
	// One block of two lines, with the symbols 0 and 1.
	if got, want := textOf(t, Avro, mustAvro(t, order, side, line), []byte{4, 0, 2, 0}), `{"lines":[{"side":"BUY"},{"side":"SELL"}]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestDamagedAvro: no damage is read as a value.
func TestDamagedAvro(t *testing.T) {
	schema := mustAvro(t, everything)
	b := encodeAvro(t, everything, everyValue())
	var d Decoder
	for n := range b {
		if text, err := d.AppendJSON(nil, Avro, schema, &Located{Body: b[:n]}); err == nil {
			t.Errorf("%d of %d bytes were read as %s", n, len(b), text)
		}
	}
	for name, c := range map[string]struct {
		schema string
		body   []byte
		want   string
	}{
		"left over":       {`"int"`, []byte{2, 2}, "left over"},
		"no schema":       {``, []byte{2}, "no schema"},
		"boolean":         {`"boolean"`, []byte{2}, "a boolean is 2"},
		"enum":            {`{"type": "enum", "name": "E", "symbols": ["A"]}`, []byte{2}, "has the index 1, its schema has 1"},
		"negative branch": {`["null"]`, []byte{1}, "has the index -1"},
		"text":            {`"string"`, []byte{2, 0xff}, "UTF-8"},
		"length":          {`"bytes"`, []byte{1}, "cut short"},
		"long varint":     {`"long"`, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, "cut short"},
		"no end": {
			`{"type": "record", "name": "R", "fields": [{"name": "next", "type": "R"}]}`, nil, "nested",
		},
		"billions of nothing": {`{"type": "array", "items": "null"}`, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, "longer than"},
		"the lowest count":    {`{"type": "array", "items": "null"}`, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0}, "cut short"},
	} {
		var s *Schema
		if c.schema != "" {
			s = mustAvro(t, c.schema)
		}
		_, err := d.AppendJSON(nil, Avro, s, &Located{Body: c.body})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestWrongAvroSchemas(t *testing.T) {
	for _, text := range []string{``, `{`, `"Order"`, `{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Missing"}]}`} {
		if _, err := ParseAvro(text); err == nil {
			t.Errorf("%s was compiled", text)
		}
	}
}

func TestAvroAllocatesNothing(t *testing.T) {
	schema, b := mustAvro(t, everything), encodeAvro(t, everything, everyValue())
	var d Decoder
	dst := make([]byte, 0, 1<<12)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := d.AppendJSON(dst, Avro, schema, &Located{Body: b}); err != nil {
			t.Fatal(err)
		}
	}); n > 1 { // the lower case of a UUID that was in upper case
		t.Errorf("%v allocations", n)
	}
}

func FuzzAvro(f *testing.F) {
	schema := mustAvro(f, everything)
	f.Add(encodeAvro(f, everything, everyValue()))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Decoder
		text, err := d.AppendJSON(nil, Avro, schema, &Located{Body: b})
		if err == nil && !json.Valid(text) {
			t.Fatalf("%s is not valid JSON", text)
		}
	})
}

// TestAvroSchemasOfRegistries has what registries keep, and strict parsers refuse.
func TestAvroSchemasOfRegistries(t *testing.T) {
	record := func(field string) string {
		return `{"type": "record", "name": "R", "fields": [{"name": "x", ` + field + `}]}`
	}
	for name, c := range map[string]struct{ schema, body, want string }{
		"default of another branch":     {record(`"type": ["string", "null"], "default": null`), "\x00\x02a", `{"x":"a"}`},
		"default of another type":       {record(`"type": "int", "default": "0"`), "\x02", `{"x":1}`},
		"default that is no symbol":     {`{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}`, "\x00", `"A"`},
		"alias that is a field":         {`{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int", "aliases": ["y"]}, {"name": "y", "type": "int"}]}`, "\x02\x04", `{"x":1,"y":2}`},
		"name with a hyphen":            {`{"type": "record", "name": "R-1", "namespace": "a-b.c", "fields": [{"name": "x-y", "type": ["null", "R-1"]}]}`, "\x02\x00", `{"x-y":{"x-y":null}}`},
		"name with an umlaut":           {`{"type": "record", "name": "R", "fields": [{"name": "größe", "type": "int"}]}`, "\x02", `{"größe":1}`},
		"null for nothing":              {`{"type": "record", "name": "R", "namespace": null, "aliases": null, "doc": 5, "fields": [{"name": "x", "type": "int", "order": "up"}]}`, "\x02", `{"x":1}`},
		"type within a type":            {`{"type": {"type": {"type": "string"}}}`, "\x02a", `"a"`},
		"type that is defined later":    {`{"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "a", "type": "B"}, {"name": "b", "type": {"type": "record", "name": "B", "fields": [{"name": "r", "type": ["null", "R", "B"]}]}}]}`, "\x04\x00\x00", `{"a":{"r":{"r":null}},"b":{"r":null}}`},
		"decimal without a precision":   {`{"type": "bytes", "logicalType": "decimal"}`, "\x02\x7d", `"fQ=="`},
		"decimal with a higher scale":   {`{"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}`, "\x02\x7d", `"fQ=="`},
		"decimal with a negative scale": {`{"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": -1}`, "\x02\x7d", `"fQ=="`},
		"decimal beyond its fixed":      {`{"type": "fixed", "size": 1, "name": "F", "logicalType": "decimal", "precision": 3, "scale": 1}`, "\x7d", `"fQ=="`},
		"decimal that fills its fixed":  {`{"type": "fixed", "size": 2, "name": "F", "logicalType": "decimal", "precision": 4, "scale": 4}`, "\x00\x7d", `"0.0125"`},
		"precision in quotes":           {`{"type": "bytes", "logicalType": "decimal", "precision": "4", "scale": "2"}`, "\x02\x7d", `"fQ=="`},
		"date that is a long":           {`{"type": "long", "logicalType": "date"}`, "\x02", `1`},
		"timestamp that is an int":      {`{"type": "int", "logicalType": "timestamp-millis"}`, "\x02", `1`},
		"never":                         {`{"type": "long", "logicalType": "timestamp-millis"}`, "\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", `"9223372036854775807"`},
		"year 10000":                    {`{"type": "int", "logicalType": "date"}`, "\xc2\x82\xe6\x02", `2932897`},
		"end of a day":                  {`{"type": "int", "logicalType": "time-millis"}`, "\x80\xf0\xb2\x52", `86400000`},
		"size that is text":             {`{"type": "fixed", "name": "F", "size": "1"}`, "a", `"YQ=="`},
	} {
		schema, err := ParseAvro(c.schema)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := textOf(t, Avro, schema, []byte(c.body)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
