package formats

import (
	"bytes"
	"strings"
	"testing"
)

func TestLocate(t *testing.T) {
	guid := []byte{1, 0x89, 0x79, 0x17, 0x62, 0x23, 0x36, 0x41, 0x86, 0x96, 0x74, 0x29, 0x9b, 0x90, 0xa8, 0x02, 0xe2}
	const guidText = "89791762-2336-4186-9674-299b90a802e2"
	join := func(a []byte, b ...byte) []byte { return append(bytes.Clone(a), b...) }
	for name, c := range map[string]struct {
		format        Format
		value, header []byte
		schema, body  string
		path          []uint16
	}{
		"prefix":                   {Avro, []byte{0, 0, 0, 1, 2, 'x'}, nil, "schema 258", "x", nil},
		"prefix with a GUID":       {Avro, join(guid, 'x'), nil, "schema " + guidText, "x", nil},
		"header":                   {Avro, []byte("x"), guid, "schema " + guidText, "x", nil},
		"header with an id":        {Avro, []byte{0, 0, 0, 0, 9}, []byte{0, 0, 0, 0, 7}, "schema 7", "\x00\x00\x00\x00\x09", nil},
		"first message":            {Protobuf, []byte{0, 0, 0, 0, 1, 0, 'x'}, nil, "schema 1", "x", []uint16{0}},
		"nested message":           {Protobuf, []byte{0, 0, 0, 0, 1, 4, 2, 0, 'x'}, nil, "schema 1", "x", []uint16{1, 0}},
		"message in the header":    {Protobuf, []byte("x"), join(guid, 2, 4), "schema " + guidText, "x", []uint16{2}},
		"JSON with a prefix":       {JSONSchema, []byte("\x00\x00\x00\x00\x01{}"), nil, "schema 1", "{}", nil},
		"JSON without one":         {JSONSchema, []byte("{}"), nil, "", "{}", nil},
		"JSON, named in a header":  {JSONSchema, []byte("{}"), guid, "schema " + guidText, "{}", nil},
		"an empty value behind it": {Avro, []byte{0, 0, 0, 0, 1}, nil, "schema 1", "", nil},
	} {
		l, err := c.format.Locate(c.value, c.header)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var path messagePath
		copy(path.at[:], c.path)
		path.depth = uint8(len(c.path))
		if l.Schema.IsSet() != (c.schema != "") || l.Schema.IsSet() && l.Schema.String() != c.schema || string(l.Body) != c.body || l.path != path {
			t.Errorf("%s: %v, %q, %v", name, l.Schema, l.Body, l.path)
		}
	}
	for name, c := range map[string]struct {
		format        Format
		value, header []byte
		want          string
	}{
		"no prefix":          {Avro, []byte("{}"), nil, "zero byte"},
		"cut short":          {Avro, []byte{0, 0, 0}, nil, "zero byte"},
		"negative id":        {Avro, []byte{0, 0xff, 0xff, 0xff, 0xff, 2}, nil, "negative id"},
		"negative in header": {Avro, []byte{2}, []byte{0, 0x80, 0, 0, 0}, "negative id"},
		"no value":           {Protobuf, nil, nil, "zero byte"},
		"header":             {Avro, []byte("x"), []byte("7"), ValueSchemaHeader},
		"longer header":      {Avro, []byte("x"), join(guid, 1), ValueSchemaHeader},
		"no path":            {Protobuf, []byte{0, 0, 0, 0, 1}, nil, "path"},
		"path cut short":     {Protobuf, []byte{0, 0, 0, 0, 1, 4, 2}, nil, "path"},
		"negative path":      {Protobuf, []byte{0, 0, 0, 0, 1, 2, 1}, nil, "path"},
		"long path":          {Protobuf, []byte{0, 0, 0, 0, 1, 100, 2, 2}, nil, "path"},
		"path in no header":  {Protobuf, []byte("x"), guid, "path"},
	} {
		if l, err := c.format.Locate(c.value, c.header); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want %q", name, l, err, c.want)
		}
	}
}

func FuzzLocate(f *testing.F) {
	f.Add(uint8(Protobuf), []byte{0, 0, 0, 0, 1, 4, 2, 0, 'x'}, []byte{})
	f.Fuzz(func(t *testing.T, format uint8, value, header []byte) {
		if len(header) == 0 {
			header = nil
		}
		of := Format(format % uint8(len(formatNames)))
		if l, err := of.Locate(value, header); err == nil && !bytes.HasSuffix(value, l.Body) {
			t.Fatalf("%q is no end of %q", l.Body, value)
		}
	})
}
