package rules

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/tinylib/msgp/msgp"
	"github.com/twmb/avro"

	"oncebus/dedup/formats"
)

const (
	tradeAvro  = `{"type": "record", "name": "Trade", "fields": [{"name": "id", "type": "string"}, {"name": "price", "type": "double"}, {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "long"}]}}}]}`
	tradeProto = `syntax = "proto3"; package shop; message Line { int64 sku = 1; } message Trade { string id = 1; double price = 2; repeated Line lines = 3; }`
	tradeJSON  = `{"id":"t-1","price":99.5,"lines":[{"sku":7},{"sku":8}]}`
)

// tradeIn returns the same trade in a format, as a record of a registry where it has schemas.
func tradeIn(tb testing.TB, f formats.Format) []byte {
	tb.Helper()
	lines := []any{map[string]any{"sku": int64(7)}, map[string]any{"sku": int64(8)}}
	trade := map[string]any{"id": "t-1", "price": 99.5, "lines": lines}
	var b []byte
	var err error
	switch f {
	case formats.Avro:
		b, err = avro.MustParse(tradeAvro).AppendEncode([]byte{0, 0, 0, 0, 7}, trade)
	case formats.Protobuf: // the path of the second message type, then its fields
		b = []byte("\x00\x00\x00\x00\x08\x02\x02" + "\x0a\x03t-1" + "\x11\x00\x00\x00\x00\x00\xe0\x58\x40" + "\x1a\x02\x08\x07" + "\x1a\x02\x08\x08")
	case formats.CBOR:
		b, err = cbor.Marshal(trade)
	case formats.MessagePack:
		b, err = msgp.AppendIntf(nil, trade)
	case formats.JSONSchema:
		b = []byte("\x00\x00\x00\x00\x09" + tradeJSON)
	case formats.JSON:
		b = []byte(tradeJSON)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// tradeSchemas is a registry with the schemas 7 and 8.
func tradeSchemas(tb testing.TB) Schemas {
	tb.Helper()
	known := map[formats.Reference]*formats.Schema{}
	var err error
	if known[formats.IDReference(7)], err = formats.ParseAvro(tradeAvro); err != nil {
		tb.Fatal(err)
	}
	if known[formats.IDReference(8)], err = formats.ParseProtobuf(tradeProto, nil); err != nil {
		tb.Fatal(err)
	}
	return func(_ RecordFormat, ref formats.Reference) (*formats.Schema, error) {
		if id, _ := ref.ID(); id == 404 {
			return nil, errors.New("the registry has no " + ref.String())
		}
		if s := known[ref]; s != nil {
			return s, nil
		}
		return nil, ErrSchemaPending
	}
}

// TestSameKeyInEveryFormat: the same value has the same key, whatever its format.
func TestSameKeyInEveryFormat(t *testing.T) {
	for _, key := range []string{"[{field: id}]", "[{fields: [id, lines.1.sku]}]", "[{hash: [price, lines]}]", "[{payload: {exclude: [price]}}]", "[{payload: {}}]"} {
		var want Derived
		for f := range formats.MessagePack + 1 {
			rs := oneRoute(t, key, "format: "+f.String(), "fingerprint: [price]", "match: {field: lines.0.sku, in: [7]}")
			got := rs.NewDeriver(nil).Using(tradeSchemas(t)).Derive(&Input{Topic: "in", Value: tradeIn(t, f), Timestamp: 1})
			if got.Finding != Keyed {
				t.Errorf("%s, %s: %s", key, f, got.Reason)
				continue
			}
			if f == formats.JSON {
				want = got
			}
			if got.Key != want.Key || got.Digest != want.Digest || got.Fingerprint != want.Fingerprint {
				t.Errorf("%s, %s: another key than in JSON", key, f)
			}
			if f != formats.JSON && f != formats.JSONSchema && got.Hashed.IsSet() {
				t.Errorf("%s, %s: the hashed bytes are said to be in the record", key, f)
			}
		}
	}
}

// TestSchemaPending: a record whose schema was not read is neither keyed nor malformed, unless
// its key does not depend on the payload.
func TestSchemaPending(t *testing.T) {
	rs := oneRoute(t, "[{header: id}, {field: id}]", "format: avro")
	d := rs.NewDeriver(nil).Using(tradeSchemas(t))
	unknown := tradeIn(t, formats.Avro)
	unknown[4] = 99
	for range 2 {
		got := d.Derive(&Input{Topic: "in", Value: unknown, Timestamp: 5})
		if id, ok := got.Schema.ID(); got.Finding != SchemaPending || !ok || id != 99 || got.Route == nil || got.Time != 5 {
			t.Errorf("%+v", got)
		}
		got = d.Derive(&Input{Topic: "in", Value: unknown, Timestamp: 5, Headers: headerMap{"id": "x"}})
		if got.Finding != Keyed || got.Schema.IsSet() {
			t.Errorf("with its id in a header: %+v", got)
		}
		if got = d.Derive(&Input{Topic: "in", Value: tradeIn(t, formats.Avro), Timestamp: 5}); got.Finding != Keyed {
			t.Errorf("the next one: %+v", got)
		}
	}
	without := oneRoute(t, "[{field: id}]", "format: avro").NewDeriver(nil)
	if got := without.Derive(&Input{Topic: "in", Value: unknown, Timestamp: 5}); got.Finding != SchemaPending {
		t.Errorf("without a registry: %+v", got)
	}
}

// TestMalformedInFormats names what is wrong with a value.
func TestMalformedInFormats(t *testing.T) {
	for _, c := range []struct{ format, value, want string }{
		{"avro", "{}", "payload: not valid avro: does not begin with a zero byte"},
		{"avro", "\x00\x00\x00\x01\x94x", "payload: not valid avro: the registry has no schema 404"},
		{"avro", "\x00\x00\x00\x00\x07\x02", "payload: not valid avro: the value is cut short or damaged"},
		{"protobuf", "\x00\x00\x00\x00\x08\x02\x12", "payload: not valid protobuf: its message type is number 9, its schema has 2 there"},
		{"cbor", "\x61\xff", "payload: not valid cbor: invalid UTF-8 string"},
		{"msgpack", "\xc1", "payload: not valid msgpack: byte 0xc1 begins no value"},
		{"json_schema", "\x00\x00\x00\x00\x09{", "payload: not valid JSON: "},
		{"json", "\x00\x00\x00\x00\x09{}", "payload: not valid JSON: "},
		{"avro", "", "payload: empty"},
	} {
		rs := oneRoute(t, "[{field: id}]", "format: "+c.format)
		got := rs.NewDeriver(nil).Using(tradeSchemas(t)).Derive(&Input{Topic: "in", Value: []byte(c.value), Timestamp: 1})
		if got.Finding != Malformed || !strings.HasPrefix(got.Reason, c.want) {
			t.Errorf("%s %q: %s, want %s", c.format, c.value, got.Reason, c.want)
		}
	}
}

func TestSchemaFiles(t *testing.T) {
	files := map[string]*formats.Schema{}
	var err error
	if files["trade.avsc"], err = formats.ParseAvro(tradeAvro); err != nil {
		t.Fatal(err)
	}
	if files["trade.proto"], err = formats.ParseProtobuf(tradeProto, nil); err != nil {
		t.Fatal(err)
	}
	schemas := func(f RecordFormat, ref formats.Reference) (*formats.Schema, error) {
		if s := files[f.SchemaFile]; s != nil && !ref.IsSet() {
			return s, nil
		}
		return nil, ErrSchemaPending
	}
	for _, c := range []struct {
		format string
		value  []byte
		want   Finding
	}{
		{"format: {type: avro, schema: trade.avsc}", tradeIn(t, formats.Avro)[5:], Keyed},
		{"format: {type: protobuf, schema: trade.proto, message: shop.Trade}", tradeIn(t, formats.Protobuf)[7:], Keyed},
		{"format: {type: protobuf, schema: trade.proto, message: Trade}", tradeIn(t, formats.Protobuf)[7:], Keyed},
		{"formats: {in: {type: avro, schema: trade.avsc}}", tradeIn(t, formats.Avro)[5:], Keyed},
		{"format: {type: avro, schema: other.avsc}", tradeIn(t, formats.Avro)[5:], SchemaPending},
		{"format: {type: protobuf, schema: trade.proto, message: Order}", tradeIn(t, formats.Protobuf)[7:], Malformed},
	} {
		rs := oneRoute(t, "[{fields: [id, lines.1.sku]}]", c.format, "shadow: {key: [{field: id}]}")
		in := Input{Topic: "in", Value: c.value, Timestamp: 1}
		for _, d := range []*Deriver{rs.NewDeriver(nil), rs.Routes[0].Shadow.NewDeriver(nil)} {
			if got := d.Using(schemas).Derive(&in); got.Finding != c.want {
				t.Errorf("%s: %s, want %s: %s", c.format, got.Finding, c.want, got.Reason)
			}
		}
		if all := rs.Formats(); len(all) != 1 || all[0].FromRegistry() {
			t.Errorf("%s: the formats are %v", c.format, all)
		}
	}
}

// TestValueOfNoBytes: of a format with a schema it may be a whole message, whose fields have their defaults. A null value is not.
func TestValueOfNoBytes(t *testing.T) {
	const empty, defaults = `{"type":"record","name":"E","fields":[{"name":"n","type":"null"}]}`, `{"id":"","price":0}`
	files := map[string]*formats.Schema{}
	var err error
	if files["empty.avsc"], err = formats.ParseAvro(empty); err != nil {
		t.Fatal(err)
	}
	if files["trade.proto"], err = formats.ParseProtobuf(tradeProto, nil); err != nil {
		t.Fatal(err)
	}
	registry := tradeSchemas(t)
	schemas := func(f RecordFormat, ref formats.Reference) (*formats.Schema, error) {
		if s := files[f.SchemaFile]; s != nil {
			return s, nil
		}
		return registry(f, ref)
	}
	for _, c := range []struct {
		format, json string
		header       string
		value        []byte
		want         Finding
	}{
		{"{type: protobuf, schema: trade.proto, message: Trade}", defaults, "", []byte{}, Keyed},
		{"{type: avro, schema: empty.avsc}", `{"n":null}`, "", []byte{}, Keyed},
		{"protobuf", defaults, "\x00\x00\x00\x00\x08\x02\x02", []byte{}, Keyed}, // its schema is in a header
		{"protobuf", "", "", []byte{}, Malformed},
		{"avro", "", "", []byte{}, Malformed},
		{"cbor", "", "", []byte{}, Malformed},
		{"json", "", "", []byte{}, Malformed},
		{"{type: protobuf, schema: trade.proto, message: Trade}", "", "", nil, Malformed},
		{"{type: avro, schema: empty.avsc}", "", "", nil, Malformed},
	} {
		headers := headerMap{}
		if c.header != "" {
			headers[formats.ValueSchemaHeader] = c.header
		}
		derive := func(format string, value []byte) Derived {
			return oneRoute(t, "[{payload: {}}]", "format: "+format).NewDeriver(nil).Using(schemas).Derive(&Input{Topic: "in", Value: value, Headers: headers, Timestamp: 1})
		}
		got := derive(c.format, c.value)
		if got.Finding != c.want {
			t.Errorf("%s: %v, %s", c.format, got.Finding, got.Reason)
		}
		if c.want == Keyed && got.Key != derive("json", []byte(c.json)).Key {
			t.Errorf("%s: another key than %s", c.format, c.json)
		}
	}
}

func TestWrongFormats(t *testing.T) {
	for _, c := range []struct{ fields, want string }{
		{"format: xml", "routes[0].format: want json or avro or protobuf or json_schema or cbor or msgpack, found \"xml\""},
		{"format: {type: cbor, schema: a.avsc}", "routes[0].format.schema: cbor is read without a schema: leave it out"},
		{"format: {type: avro, schema: a.avsc, message: M}", "routes[0].format.message: only a Protobuf schema of a file has it"},
		{"format: {schema: a.avsc}", "routes[0].format.type: is required"},
		{"formats: avro", "routes[0].formats: want a format for each topic"},
		{"formats: {other: avro}", "routes[0].formats: the route has no topic other, want one of in"},
		{"format: avro, sender: {field: id}", "routes[0].sender: a field is read from JSON alone"},
		{"format: avro, http: {path: /in, signature: {scheme: none}}", "routes[0].http: requests are JSON, and so are the records of in"},
	} {
		_, err := ParseRoutes("r.yaml", []byte("routes:\n- {name: r, topics: [in], output: out, window: 1h, key: [{field: id}], "+c.fields+"}\n"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.fields, err, c.want)
		}
	}
	_, err := ParseRoutes("r.yaml", []byte(`routes:
- {name: a, topics: [in], output: out, window: 1h, key: [{field: id}], format: avro, match: {header: h, in: [a]}}
- {name: b, topics: [in], output: out, window: 1h, key: [{field: id}]}
`))
	if err == nil || !strings.Contains(err.Error(), "in has the format json here, and avro in the route in line 2") {
		t.Errorf("two formats of a topic: %v", err)
	}
}

// TestFormatsAllocateNothing: a format costs time, and no memory for each record.
func TestFormatsAllocateNothing(t *testing.T) {
	for _, f := range []formats.Format{formats.Avro, formats.Protobuf, formats.JSONSchema, formats.MessagePack} {
		rs := oneRoute(t, "[{field: id}]", "format: "+f.String())
		d, in := rs.NewDeriver(nil).Using(tradeSchemas(t)), &Input{Topic: "in", Value: tradeIn(t, f), Timestamp: 1}
		var out Derived
		if n := testing.AllocsPerRun(100, func() { d.DeriveTo(&out, in) }); n > 0 || out.Finding != Keyed {
			t.Errorf("%s: %v allocations, %s", f, n, out.Finding)
		}
	}
}

// TestLargeIntegersAreIDs: an integer over 2^53 is an id of its own in a binary format, where
// JSON would refuse it.
func TestLargeIntegersAreIDs(t *testing.T) {
	d := oneRoute(t, "[{field: id}]", "format: msgpack").NewDeriver(nil)
	var keys [][32]byte
	for _, id := range []uint64{1 << 53, 1<<53 + 1, math.MaxUint64 - 1, math.MaxUint64} {
		b, err := msgp.AppendIntf(nil, map[string]any{"id": id})
		if err != nil {
			t.Fatal(err)
		}
		got := d.Derive(&Input{Topic: "in", Value: b, Timestamp: 1})
		if got.Finding != Keyed || slices.Contains(keys, got.Key) {
			t.Errorf("%d: %+v", id, got)
		}
		keys = append(keys, got.Key)
	}
}

func BenchmarkFormats(b *testing.B) {
	for f := range formats.MessagePack + 1 {
		b.Run(f.String(), func(b *testing.B) {
			rs := oneRoute(b, "[{field: id}]", "format: "+f.String())
			d, in := rs.NewDeriver(nil).Using(tradeSchemas(b)), &Input{Topic: "in", Value: tradeIn(b, f), Timestamp: 1}
			b.ReportAllocs()
			var out Derived
			for b.Loop() {
				d.DeriveTo(&out, in)
			}
		})
	}
}
