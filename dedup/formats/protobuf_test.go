package formats

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

const orderProto = `syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "confluent/type/decimal.proto";
import "confluent/meta.proto";
import "parts.proto";

message Envelope { message Inner { string id = 1; } Inner inner = 1; }

message Order {
  string order_id = 1 [(confluent.field_meta).doc = "its id"];
  int32 i32 = 2; sint32 s32 = 3; uint32 u32 = 4; fixed32 f32 = 5; sfixed32 sf32 = 6;
  int64 i64 = 7; sint64 s64 = 8; uint64 u64 = 9; fixed64 f64 = 10; sfixed64 sf64 = 11;
  float ratio = 12; double price = 13; bool paid = 14; bytes raw = 15;
  Side side = 16;
  repeated int32 packed = 17; repeated string tags = 18; repeated parts.Line lines = 19;
  map<string, int64> limits = 20; map<int32, parts.Line> by_number = 21; map<bool, string> flags = 22;
  optional int32 maybe = 23;
  oneof payment { string card = 24; int64 account = 25; parts.Line line = 26; }
  google.protobuf.Timestamp at = 27; google.protobuf.Duration took = 28;
  google.protobuf.StringValue note = 29; google.protobuf.Int64Value count = 30;
  google.protobuf.Struct extra = 31;
  confluent.type.Decimal amount = 32;
  Order parent = 33;
  repeated sint64 deltas = 34 [packed = false];
  repeated Side sides = 35;
}
enum Side { option allow_alias = true; NONE = 0; BUY = 1; LONG = 1; SELL = -1; }
`

// metaProto has the options of Confluent's serialisers.
const metaProto = `syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
`

var orderImports = map[string]string{"parts.proto": `syntax = "proto3"; package parts; message Line { string sku = 1; int32 n = 2; }`}

func importOrder(name string) (string, error) {
	text, ok := orderImports[name]
	if !ok {
		return "", fmt.Errorf("no file %s", name)
	}
	return text, nil
}

// descriptorOf compiles a message type for the library of the field.
func descriptorOf(tb testing.TB, text, name string) protoreflect.MessageDescriptor {
	tb.Helper()
	files := map[string]string{"test.proto": text}
	for _, more := range []map[string]string{orderImports, knownImports, {"confluent/meta.proto": metaProto}} {
		for name, text := range more {
			files[name] = text
		}
	}
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(files)})}
	linked, err := c.Compile(context.Background(), "test.proto")
	if err != nil {
		tb.Fatal(err)
	}
	return linked[0].FindDescriptorByName(protoreflect.FullName(name)).(protoreflect.MessageDescriptor)
}

// encodeProto encodes ProtoJSON with the library of the field.
func encodeProto(tb testing.TB, text, name, value string) []byte {
	tb.Helper()
	m := dynamicpb.NewMessage(descriptorOf(tb, text, name))
	if err := protojson.Unmarshal([]byte(value), m); err != nil {
		tb.Fatal(err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func mustProto(tb testing.TB, text string) *Schema {
	tb.Helper()
	s, err := ParseProtobuf(text, importOrder)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// located returns a value of a message type.
func located(tb testing.TB, s *Schema, name string, body []byte) *Located {
	tb.Helper()
	l, ok := s.OfMessage(name)
	if !ok {
		tb.Fatalf("the schema has no message type %s", name)
	}
	l.Body = body
	return &l
}

const protoOrder = `{"orderId": "a\"b€", "i32": -1, "s32": -2, "u32": 4294967295, "f32": 5, "sf32": -6, "i64": "-7", "s64": "-9007199254740993", "u64": "18446744073709551615",
	"f64": "10", "sf64": "-11", "ratio": 1.1, "price": 99.5, "paid": true, "raw": "/wA=", "side": "SELL", "packed": [1, -2, 0], "tags": ["x", ""],
	"lines": [{"sku": "s"}, {}], "limits": {"a": "1", "b": "0"}, "byNumber": {"-3": {"sku": "m"}}, "flags": {"true": "t"}, "maybe": 0, "account": "0",
	"at": "2026-11-26T10:30:00.120Z", "took": "-1.500s", "note": "", "count": "3", "extra": {"l": [1, null, "x", true, {"y": {}}]},
	"amount": {"value": "BOI=", "precision": 9, "scale": 3}, "parent": {"orderId": "p"}, "deltas": ["-1", "2"], "sides": ["NONE", "BUY"]}`

// protoText has the value of protoOrder: names as in the schema, integers as numbers up to 2^53.
const protoText = `{"order_id":"a\"b€","i32":-1,"s32":-2,"u32":4294967295,"f32":5,"sf32":-6,"i64":-7,"s64":"-9007199254740993","u64":"18446744073709551615",` +
	`"f64":10,"sf64":-11,"ratio":1.1,"price":99.5,"paid":true,"raw":"/wA=","side":"SELL","packed":[1,-2,0],"tags":["x",""],` +
	`"lines":[{"sku":"s","n":0},{"sku":"","n":0}],"limits":{"a":1,"b":0},"by_number":{"-3":{"sku":"m","n":0}},"flags":{"true":"t"},"maybe":0,"account":0,` +
	`"at":"2026-11-26T10:30:00.12Z","took":"-1.5s","note":"","count":3,"extra":{"l":[1,null,"x",true,{"y":{}}]},` +
	`"amount":"1.25","parent":{"order_id":"p",` + protoDefaults + `},"deltas":[-1,2],"sides":["NONE","BUY"]}`

// protoDefaults are the fields of an order that are not on the wire, after its id.
const protoDefaults = `"i32":0,"s32":0,"u32":0,"f32":0,"sf32":0,"i64":0,"s64":0,"u64":0,"f64":0,"sf64":0,"ratio":0,"price":0,"paid":false,"raw":"","side":"NONE"`

// TestProtobufAsJSON with the text of a schema, and with its descriptor in base64: as protoc writes
// it, and as it is in code that protoc generates.
func TestProtobufAsJSON(t *testing.T) {
	file := protodesc.ToFileDescriptorProto(descriptorOf(t, orderProto, "shop.Order").ParentFile())
	texts := []string{orderProto, inBase64(t, file)}
	for _, m := range file.MessageType {
		for _, f := range m.Field {
			f.JsonName = nil
		}
	}
	body := encodeProto(t, orderProto, "shop.Order", protoOrder)
	for _, text := range append(texts, inBase64(t, file)) {
		schema := mustProto(t, text)
		var d Decoder
		got, err := d.AppendJSON(nil, Protobuf, schema, located(t, schema, "shop.Order", body))
		if err != nil || string(got) != protoText {
			t.Errorf("%v, got\n%s want\n%s", err, got, protoText)
		}
	}
}

func inBase64(t *testing.T, m proto.Message) string {
	t.Helper()
	encoded, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(encoded)
}

// TestProtobufWireOrder: parts of a message in another order, split, repeated or unknown to the
// schema are the same value.
func TestProtobufWireOrder(t *testing.T) {
	schema := mustProto(t, orderProto)
	text := func(n protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), s)
	}
	number := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
	}
	join := func(parts ...[]byte) (b []byte) {
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	for name, c := range map[string]struct {
		body []byte
		want string
	}{
		"reversed":           {join(number(2, 5), text(1, "x")), `{"order_id":"x","i32":5}`},
		"the last one":       {join(text(1, "a"), number(2, 1), text(1, "b")), `{"order_id":"b","i32":1}`},
		"unknown fields":     {join(number(99, 1), text(1, "x"), text(98, "y")), `{"order_id":"x"}`},
		"another wire type":  {join(number(1, 5), text(2, "x")), `{}`},
		"defaults":           {join(text(1, ""), number(2, 0), number(23, 0)), `{"maybe":0}`},
		"oneof, the last":    {join(text(24, "card"), number(25, 7)), `{"account":7}`},
		"oneof, its default": {join(number(25, 7), text(24, "")), `{"card":""}`},
		"merged":             {join(text(33, string(text(1, "x"))), number(2, 1), text(33, string(number(2, 4)))), `{"i32":1,"parent":{"order_id":"x","i32":4}}`},
		"packed and not":     {join(number(17, 1), text(17, "\x02\x03"), number(17, 4)), `{"packed":[1,2,3,4]}`},
		"not packed, packed": {text(34, "\x01\x04"), `{"deltas":[-1,2]}`},
		"unknown symbol":     {number(16, 9), `{"side":9}`},
		"an empty entry":     {text(20, ""), `{"limits":{"":0}}`},
		"an empty wrapper":   {text(29, ""), `{"note":""}`},
		"32 of 64 bits":      {number(2, 1<<40|3), `{"i32":3}`},
		"nothing":            {nil, `{}`},
	} {
		var d Decoder
		got, err := d.AppendJSON(nil, Protobuf, schema, located(t, schema, "Order", c.body))
		if want := withDefaults(t, c.want); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
}

// withDefaults returns the text of an order that is given by the fields on the wire, by ascending
// number.
func withDefaults(t *testing.T, order string) string {
	t.Helper()
	var given map[string]json.RawMessage
	if err := json.Unmarshal([]byte(order), &given); err != nil {
		t.Fatal(err)
	}
	var all []string
	for name, byDefault := range membersOf(t, `{"order_id":"",`+protoDefaults+`}`) {
		if value, ok := given[name]; ok {
			byDefault = string(value)
			delete(given, name)
		}
		all = append(all, fmt.Sprintf("%q:%s", name, byDefault))
	}
	for name, value := range membersOf(t, order) {
		if _, ok := given[name]; !ok {
			continue
		}
		if name == "parent" {
			value = withDefaults(t, value)
		}
		all = append(all, fmt.Sprintf("%q:%s", name, value))
	}
	return "{" + strings.Join(all, ",") + "}"
}

// membersOf yields the members of a JSON object in the text's order.
func membersOf(t *testing.T, object string) iter.Seq2[string, string] {
	t.Helper()
	return func(yield func(string, string) bool) {
		d := json.NewDecoder(strings.NewReader(object))
		if _, err := d.Token(); err != nil {
			t.Fatal(err)
		}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				t.Fatal(err)
			}
			var value json.RawMessage
			if err := d.Decode(&value); err != nil {
				t.Fatal(err)
			}
			if !yield(name.(string), string(value)) {
				return
			}
		}
	}
}

// TestProtobufDefaultsAreValues: a sender leaves out a field that has its default, so 0 is an id
// as in every other format. With "optional" a field that was not set is absent.
func TestProtobufDefaultsAreValues(t *testing.T) {
	const text = `syntax = "proto3"; message Order { int64 id = 1; optional int64 ref = 2; repeated int32 l = 3; map<string, int32> m = 4; Order next = 5; oneof how { string card = 6; } }`
	s := mustProto(t, text)
	var d Decoder
	for value, want := range map[string]string{
		`{}`:                      `{"id":0}`,
		`{"id": "0", "ref": "0"}`: `{"id":0,"ref":0}`,
		`{"id": "7", "next": {}}`: `{"id":7,"next":{"id":0}}`,
	} {
		got, err := d.AppendJSON(nil, Protobuf, s, located(t, s, "Order", encodeProto(t, text, "Order", value)))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", value, got, err, want)
		}
	}
}

// TestProtobufEvolves: a new field, and a wider one, change no other value.
func TestProtobufEvolves(t *testing.T) {
	before := `syntax = "proto3"; message Order { string id = 1; int32 n = 2; }`
	after := `syntax = "proto3"; message Order { string id = 1; int64 n = 2; string note = 3; repeated int32 l = 4; }`
	var d Decoder
	for schema, want := range map[string]string{before: `{"id":"x","n":5}`, after: `{"id":"x","n":5,"note":""}`} {
		s := mustProto(t, schema)
		text, err := d.AppendJSON(nil, Protobuf, s, located(t, s, "Order", encodeProto(t, schema, "Order", `{"id": "x", "n": 5}`)))
		if err != nil || string(text) != want {
			t.Errorf("%s, %v; want %s", text, err, want)
		}
	}
}

func TestProto2(t *testing.T) {
	const text = `syntax = "proto2"; message Order { required string id = 1; optional int32 n = 2 [default = 7]; repeated group Line = 3 { optional int32 sku = 4; } extensions 100 to 200; }`
	s := mustProto(t, text)
	var d Decoder
	for value, want := range map[string]string{
		`{"id": ""}`: `{"id":""}`,
		`{"id": "x", "n": 0, "line": [{"sku": 1}, {}]}`: `{"id":"x","n":0,"line":[{"sku":1},{}]}`,
	} {
		got, err := d.AppendJSON(nil, Protobuf, s, located(t, s, "Order", encodeProto(t, text, "Order", value)))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", value, got, err, want)
		}
	}
}

func TestDamagedProtobuf(t *testing.T) {
	schema := mustProto(t, orderProto)
	var d Decoder
	for name, c := range map[string]struct {
		body []byte
		want string
	}{
		"tag":             {[]byte{0x80}, "cut short"},
		"length":          {[]byte{0x0a, 5, 'x'}, "cut short"},
		"text":            {[]byte{0x0a, 1, 0xff}, "UTF-8"},
		"packed":          {[]byte{0x8a, 1, 1, 0x80}, "cut short"},
		"time":            {[]byte{0xda, 1, 12, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 16, 1}, "years"},
		"nested too deep": {nestedProto(depthMax + 2), "nested"},
	} {
		text, err := d.AppendJSON(nil, Protobuf, schema, located(t, schema, "Order", c.body))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s, %v; want %q", name, text, err, c.want)
		}
	}
	if _, err := d.AppendJSON(nil, Protobuf, schema, &Located{path: messagePath{at: [8]uint16{9}, depth: 1}}); err == nil || !strings.Contains(err.Error(), "number 9") {
		t.Errorf("message type 9: %v", err)
	}
}

// nestedProto returns an order within an order, n times.
func nestedProto(n int) (b []byte) {
	for range n {
		b = protowire.AppendBytes(protowire.AppendTag(nil, 33, protowire.BytesType), b)
	}
	return b
}

func TestWrongProtobufSchemas(t *testing.T) {
	for text, want := range map[string]string{
		"":       "no message type",
		"syntax": "protobuf schema",
		`syntax = "proto3"; import "a.proto"; message M {}`: "a.proto",
		`syntax = "proto3"; message M { Missing m = 1; }`:   "Missing",
	} {
		if _, err := ParseProtobuf(text, importOrder); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestProtobufAllocatesNothing(t *testing.T) {
	schema := mustProto(t, orderProto)
	l := located(t, schema, "Order", encodeProto(t, orderProto, "shop.Order", protoOrder))
	var d Decoder
	dst := make([]byte, 0, 1<<12)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := d.AppendJSON(dst, Protobuf, schema, l); err != nil {
			t.Fatal(err)
		}
	}); n > 1 { // the fraction of the duration
		t.Errorf("%v allocations", n)
	}
}

// TestEachPartOfAProtobufMessageIsWhole: a field that is on the wire twice is merged, and the second part completes no first one
// that is damaged.
func TestEachPartOfAProtobufMessageIsWhole(t *testing.T) {
	schema := mustProto(t, orderProto)
	for text, isRead := range map[string]bool{
		"8a02038a02008a02038a0200":       true,  // parent {parent {}}, twice
		"8a02068a02068a02038a02038a0200": false, // the parent in the first one has 6 bytes, of which 3 are there
		"fa010c0a0a0a016112033101781200": false, // a member of extra has a damaged value, and then an empty one
	} {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		var d Decoder
		if got, err := d.AppendJSON(nil, Protobuf, schema, located(t, schema, "Order", b)); (err == nil) != isRead {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}

func FuzzProtobuf(f *testing.F) {
	schema := mustProto(f, orderProto)
	f.Add(encodeProto(f, orderProto, "shop.Order", protoOrder))
	f.Add(nestedProto(3))
	descriptor := descriptorOf(f, orderProto, "shop.Order")
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Decoder
		text, err := d.AppendJSON(nil, Protobuf, schema, located(t, schema, "Order", b))
		if err == nil && !json.Valid(text) {
			t.Fatalf("%s is not valid JSON", text)
		}
		// What the library of the field cannot read is an error here, too. But it also checks the
		// text of a field that another occurrence replaces.
		bad := readDynamic(b, descriptor)
		if bad != nil && err == nil && !strings.Contains(bad.Error(), "UTF-8") {
			t.Fatalf("%x was read as %s, but %v", b, text, bad)
		}
	})
}

// readDynamic reads a value with the library of the field. Its dynamic messages panic at some
// damaged entries of a map: then it has no opinion.
func readDynamic(b []byte, descriptor protoreflect.MessageDescriptor) (err error) {
	defer func() {
		if recover() != nil {
			err = nil
		}
	}()
	return proto.Unmarshal(b, dynamicpb.NewMessage(descriptor))
}

// TestProtobufSchemasOfSerialisers has what serialisers and people register, and compilers refuse.
func TestProtobufSchemasOfSerialisers(t *testing.T) {
	const head = `syntax = "proto3"; `
	for name, c := range map[string]struct{ schema, body, want string }{
		"map of Confluent's serialiser for Java": {head + `message T { repeated TestMapEntry test_map = 1; message TestMapEntry { option map_entry = true; string key = 1; int32 value = 2; } }`,
			"\x0a\x05\x0a\x01a\x10\x07", `{"test_map":{"a":7}}`},
		"type of Google that has no reference":    {head + `import "google/type/money.proto"; message T { google.type.Money m = 1; }`, "\x0a\x03\x0a\x01E", `{"m":{"currency_code":"E","units":0,"nanos":0}}`},
		"type of Confluent that has no reference": {head + `import "confluent/type/variant.proto"; message T { confluent.type.Variant m = 1; }`, "", `{}`},
		"decimal in older clients":                {head + `import "confluent/types/decimal.proto"; message T { confluent.type.Decimal m = 1; }`, "\x0a\x05\x0a\x01\x7d\x18\x01", `{"m":"12.5"}`},
		"decimal with a negative scale":           {head + `import "confluent/type/decimal.proto"; message T { confluent.type.Decimal m = 1; }`, "\x0a\x0e\x0a\x01\x05\x18\xfd\xff\xff\xff\xff\xff\xff\xff\xff\x01", `{"m":"5000"}`},
		"options whose definition is missing":     {head + `option (x.file) = "x"; message T { option (x.m) = {a: 1}; string m = 1 [(x.f).y = 3, deprecated = true]; } enum E { A = 0 [(x.v) = true]; }`, "\x0a\x01x", `{"m":"x"}`},
		"service of types that it does not have":  {head + `message T { string m = 1; } service S { rpc X(T) returns (gone.U); }`, "\x0a\x01x", `{"m":"x"}`},
		"editions":                                {`edition = "2023"; option features.field_presence = IMPLICIT; message T { int32 m = 1; int32 n = 2 [features.field_presence = EXPLICIT]; }`, "", `{"m":0}`},
		"defaults":                                {`syntax = "proto2"; message T { optional int32 m = 1 [default = 7]; optional E e = 2 [default = B]; enum E { option allow_alias = true; A = 0; B = 1; C = 1; } }`, "\x10\x01", `{"e":"B"}`},
	} {
		schema, err := ParseProtobuf(c.schema, importOrder)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var d Decoder
		if got, err := d.AppendJSON(nil, Protobuf, schema, located(t, schema, "T", []byte(c.body))); err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.want)
		}
	}
}

// TestMessageBehindMaps finds nested types by the index that each serialiser writes for them.
func TestMessageBehindMaps(t *testing.T) {
	const before, behind = `syntax = "proto3"; package p; message T { `, ` message A { string a = 1; } message B { string b = 1; } }`
	for name, c := range map[string]struct {
		schema, want string
		at           uint16
	}{
		"Java, map<...>":            {before + `map<string, string> m = 1;` + behind, "p.T.A", 0},
		"Java, map<...>, second":    {before + `map<string, string> m = 1;` + behind, "p.T.B", 1},
		"Go, map<...>, last":        {before + `map<string, string> m = 1;` + behind, "p.T.B", 2},
		"Java, entry written out":   {before + `repeated MEntry m = 1; message MEntry { option map_entry = true; string key = 1; string value = 2; }` + behind, "p.T.A", 1},
		"Java, entry written later": {before + `repeated MEntry m = 1;` + behind[:len(behind)-1] + `message MEntry { option map_entry = true; string key = 1; string value = 2; } }`, "p.T.A", 0},
	} {
		m, err := mustProto(t, c.schema).message(messagePath{at: [messageDepthMax]uint16{0, c.at}, depth: 2})
		if err != nil || m.name != c.want {
			t.Errorf("%s: %v, %v; want %s", name, m, err, c.want)
		}
	}
	if m, err := mustProto(t, before+`map<string, string> m = 1; }`).message(messagePath{depth: 2}); err == nil {
		t.Errorf("the entry of a map is a record: %v", m)
	}
}

// TestMessageByName prefers the type that has the whole name to one that ends in it.
func TestMessageByName(t *testing.T) {
	schema := mustProto(t, `syntax = "proto3"; package shop; message Envelope { message Order { string a = 1; } message Inner { string b = 1; } } message Order { string c = 1; }`)
	for name, want := range map[string]string{
		"": "shop.Envelope", "Order": "shop.Order", "shop.Order": "shop.Order", "Envelope.Order": "shop.Envelope.Order",
		"shop.Envelope.Order": "shop.Envelope.Order", "Inner": "shop.Envelope.Inner",
	} {
		l, ok := schema.OfMessage(name)
		if m, err := schema.message(l.path); !ok || err != nil || m.name != want {
			t.Errorf("%q is %v, %v, %v; want %s", name, m, ok, err, want)
		}
	}
	if _, ok := schema.OfMessage("Gone"); ok {
		t.Error("the file has a type that it does not have")
	}
}
