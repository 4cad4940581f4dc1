package rules

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestSenderIsRefused lists mistakes in sender.
func TestSenderIsRefused(t *testing.T) {
	file := func(fields string) string {
		return "routes:\n- {name: a, topics: [in], key: [raw], window: 1h, output: out,\n    " + fields + "}\n"
	}
	const http = ", http: {path: /a, signature: {scheme: none}}"
	for _, v := range []struct{ name, file, want string }{
		{"both", file("sender: {field: a, header: b}"), "routes[0].sender: want either field or header"},
		{"neither", file("sender: {}"), "routes[0].sender: want either field or header"},
		{"another field", file("sender: {ip: a}"), `routes[0].sender: unknown field "ip"; known are field, header`},
		{"a client id", file("sender: client_id"), `routes[0].sender: want {header: NAME}, {field: PATH}, http_source or producer_id, found "client_id"`},
		{"a list", file("sender: [http_source]"), `routes[0].sender: want {header: NAME}, {field: PATH}, http_source or producer_id, found a list`},
		{"a wrong path", file("sender: {field: a..b}"), `routes[0].sender.field: path "a..b" has an empty segment`},
		{"an own header", file("sender: {header: oncebus-key}"), "routes[0].sender.header: oncebus removes oncebus-* headers from incoming records: name another header"},
		{"an http source without http", file("sender: http_source"), "routes[0].sender: http_source needs an http part: no event of the route comes by HTTP"},
		{"an http source without an envelope", file("sender: http_source, prepartitioned: true" + http),
			"routes[0].sender: an event of a prepartitioned route has no envelope that could carry its http_source: name a header or a field"},
		{"a header that is not carried", file("sender: {header: x-client}" + http), "routes[0].sender: an HTTP request's header x-client is not carried: add it to http.headers"},
	} {
		if _, err := ParseRoutes("r.yaml", []byte(v.file)); err == nil || !strings.Contains(err.Error(), v.want) {
			t.Errorf("%s: %v, want %s", v.name, err, v.want)
		}
	}
}

// TestSenderChangesNoKey: the manifest pins key rules, and sender is in none.
func TestSenderChangesNoKey(t *testing.T) {
	plain := oneRoute(t, "[{field: traceId}]").Routes[0]
	for _, sender := range []string{"{header: x}", "{field: account}", "producer_id"} {
		with := oneRoute(t, "[{field: traceId}]", "sender: "+sender).Routes[0]
		a, b := parseOne(t, plain), parseOne(t, with)
		if with.KeyRule() != plain.KeyRule() || a.Key != b.Key || a.Digest != b.Digest {
			t.Errorf("sender: %s changes the key rule %s to %s, or a key", sender, plain.KeyRule(), with.KeyRule())
		}
	}
}

// parseOne derives the key of an event of a route.
func parseOne(t *testing.T, r *Route) Derived {
	sender := ""
	if s := r.Sender; s != nil {
		sender = "sender: " + map[SenderKind]string{SenderHeader: "{header: x}", SenderField: "{field: account}", SenderProducerID: "producer_id"}[s.Kind]
	}
	rs := oneRoute(t, "[{field: traceId}]", sender)
	return rs.NewDeriver(nil).Derive(benchInput(200))
}

// TestSenderOfAnEvent reads senders of each kind.
func TestSenderOfAnEvent(t *testing.T) {
	headers := benchHeaders{id: []byte("feed\x007")}
	for _, v := range []struct{ sender, value, want string }{
		{"{header: id}", "", `feed\x007`},
		{"{header: absent}", "", ""},
		{"{field: a.b}", `{"a":{"b":"x\u00e9\n"}}`, `xé\n`},
		{"{field: a}", `{"a":17.50}`, "17.50"},
		{"{field: a}", `{"a":true}`, "true"},
		{"{field: a}", `{"a":null}`, ""},
		{"{field: a}", `{"a":{}}`, ""},
		{"{field: a}", `{"b":1}`, ""},
		{"{field: a}", `no JSON`, ""},
		{"{field: a}", ``, ""},
		{"producer_id", "{}", "carried"},
	} {
		var reader SenderReader
		x := oneRoute(t, "[{field: traceId}]", "sender: "+v.sender).Routes[0].Sender
		for range 2 {
			if got := string(reader.Of(x, []byte(v.value), headers, []byte("carried"))); got != v.want {
				t.Errorf("%s of %s: %q, want %q", v.sender, v.value, got, v.want)
			}
		}
	}
}

// TestAppendSender pins escapes and cuts. The checksums are those of Python's zlib.crc32.
func TestAppendSender(t *testing.T) {
	long := strings.Repeat("a", 64)
	for raw, want := range map[string]string{
		"":                      "",
		"client-7 (web)":        "client-7 (web)",
		`a\b"c`:                 `a\\b"c`,
		"\x00\x1b\x7f\n":        `\x00\x1b\x7f\n`,
		"\xff\xc3":              `\xff\xc3`,
		"\u202eevil\u00a0":      `\u202eevil\u00a0`,
		"Zürich 東京":             "Zürich 東京",
		long:                    long,
		long + "b":              long[:55] + "~6a36fee7",
		strings.Repeat("東", 22): strings.Repeat("東", 18) + "~97851629",
	} {
		if got := string(AppendSender(nil, []byte(raw))); got != want {
			t.Errorf("%q became %q, want %q", raw, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "raw")
		got := AppendSender([]byte("kept"), raw)[4:]
		if len(got) > SenderBytesMax || !utf8.Valid(got) || strings.ContainsFunc(string(got), func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Fatalf("%x became %q of %d bytes", raw, got, len(got))
		}
	})
}

// TestSenderAllocatesNothing reads senders of duplicates.
func TestSenderAllocatesNothing(t *testing.T) {
	in := benchInput(200)
	for _, sender := range []string{"{header: id}", "{field: account}", "producer_id"} {
		x := oneRoute(t, "[raw]", "sender: "+sender).Routes[0].Sender
		var reader SenderReader
		carried := []byte("1234")
		if n := testing.AllocsPerRun(100, func() {
			if len(reader.Of(x, in.Value, in.Headers, carried)) == 0 {
				t.Fatal("no sender")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", sender, n)
		}
	}
}

func BenchmarkSender(b *testing.B) {
	in := benchInput(200)
	for _, sender := range []string{"{header: id}", "{field: account}", "producer_id"} {
		b.Run(sender, func(b *testing.B) {
			x := oneRoute(b, "[raw]", "sender: "+sender).Routes[0].Sender
			var reader SenderReader
			carried := []byte("1234")
			b.ReportAllocs()
			for b.Loop() {
				reader.Of(x, in.Value, in.Headers, carried)
			}
		})
	}
}
