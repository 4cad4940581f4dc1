package rules

import (
	"strings"
	"testing"
)

const formRoutes = `routes:
  - {name: a, topics: [in], window: 1h, output: out, key: [KEY], http: {path: /a, form: true, signature: {scheme: none}}}
`

// TestFormsReadAsObjects: a path reads a field of a form; a field that came several times is
// a list, and a file an object.
func TestFormsReadAsObjects(t *testing.T) {
	const parts = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"n.txt\"\r\n" +
		"Content-Type: text/plain\r\n\r\nabc\r\n--x--\r\n"
	const urlencoded, multipart = urlencodedForm, multipartForm + `; boundary="x"`
	for _, c := range []struct{ key, kind, value, want string }{
		{"{field: a}", urlencoded, "a=1+%2B&b=2", "1 +"},
		{"{field: a}", "Application/X-WWW-Form-Urlencoded; charset=utf-8", "a=1", "1"},
		{"{field: a.1}", urlencoded, "a=1&b=3&a=2", "2"},
		{"{field: a}", urlencoded, "a=1;b=2&c=3", "1;b=2"}, // as in browsers: curl -d leaves a semicolon as it is
		{"form", urlencoded, "a=1;b=2&c=3", "a1;b=2c3"},
		{`{field: "a[b]"}`, urlencoded, "a%5Bb%5D=1", "1"},
		{"{payload: {}}", urlencoded, "b=%e2%82%ac&a=%22", `{"a":"\"","b":"€"}`},
		{"{field: a}", multipart, parts, "1"},
		{"{fields: [f.filename, f.bytes]}", multipart, parts, "5:n.txt,1:3,"},
		{"{field: f.sha256}", multipart, parts, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{"{field: a}", "application/json", `{"a":"1"}`, "1"},
		{"{field: a}", "", `{"a":"1"}`, "1"},
		{"raw", urlencoded, "a=1", "a=1"},
		{"form", urlencoded, "b=1&a=2&a=1&a=2", "a1a2b1"},
	} {
		in := &Input{Topic: "in", Value: []byte(c.value), Headers: headerMap{}}
		if c.kind != "" {
			in.Headers = headerMap{"content-type": c.kind}
		}
		d := parse(t, strings.Replace(formRoutes, "KEY", c.key, 1)).NewDeriver(nil)
		if got, ex := d.Explain(in); got.Finding != Keyed || string(ex.Hashed) != c.want {
			t.Errorf("%s of %q: %v %s, hashed %q, want %q", c.key, c.value, got.Finding, got.Reason, ex.Hashed, c.want)
		}
		d.Release()
	}
}

// TestFormsThatAreNone: a form that cannot be read makes the record malformed.
func TestFormsThatAreNone(t *testing.T) {
	const head = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n"
	for _, c := range []struct{ kind, value, want string }{
		{urlencodedForm, "a=%zz", "payload: not a valid form: a name or value is not percent-encoded"},
		{urlencodedForm, "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--\r\n", "payload: not a valid form: it begins with the boundary of a multipart form"},
		{urlencodedForm, "a=%ff", `payload: not a valid form: field "a" is not UTF-8`},
		{urlencodedForm, "%ff=1", "payload: not a valid form: the name of a field is not UTF-8"},
		{multipartForm, head + "--x--\r\n", "payload: not a valid form: its content-type has no boundary"},
		{multipartForm + "; boundary=x", head, "payload: not a valid form: it has no end"},
		{multipartForm + "; boundary=x", "--x\r\n\r\n1\r\n--x--\r\n", "payload: not a valid form: a part has no name"},
		{multipartForm + "; boundary=x", strings.Repeat(head, formPartsMax+1) + "--x--\r\n", "payload: not a valid form: it has more than 1000 parts"},
	} {
		in := &Input{Topic: "in", Value: []byte(c.value), Headers: headerMap{"content-type": c.kind}}
		got := parse(t, strings.Replace(formRoutes, "KEY", "{field: a}", 1)).NewDeriver(nil).Derive(in)
		if got.Finding != Malformed || got.Reason != c.want {
			t.Errorf("%s %.40q: %v %q, want %q", c.kind, c.value, got.Finding, got.Reason, c.want)
		}
	}
}

// TestOneBodyHasOneReading: signatures do not cover the media type, so a signed body with
// another one has the same key, or none.
func TestOneBodyHasOneReading(t *testing.T) {
	const part = "\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n"
	bodies := map[string]string{
		"application/json":                      `{"a":"1","b":"--x--"}`,
		"application/json; charset=utf-8":       "\n [1]",
		urlencodedForm:                          "a=1&b=--x--&c=%7B",
		multipartForm + "; boundary=x":          "--x" + part + "1\r\n--y" + part + "2\r\n--y--\r\n--x--\r\n",
		multipartForm + `; boundary="x y"`:      "--x y" + part + "1\n--x" + part + "2\r\n--x--\r\n--x y--\r\n",
		urlencodedForm + "; charset=iso-8859-1": "a",
	}
	others := []string{"", "text/plain", "multipart/mixed; boundary=x", "text/plain, application/json", multipartForm + "; boundary=y", multipartForm}
	for kind := range bodies {
		others = append(others, kind)
	}
	deriver := parse(t, strings.Replace(formRoutes, "[KEY]", "[{field: a}, raw]", 1)).NewDeriver(nil)
	for kind, body := range bodies {
		of := func(kind string) Derived {
			return deriver.Derive(&Input{Topic: "in", Value: []byte(body), Headers: headerMap{"content-type": kind}, Timestamp: 1})
		}
		want := of(kind)
		if want.Finding != Keyed {
			t.Fatalf("%s: %v: %s", kind, want.Finding, want.Reason)
		}
		for _, other := range others {
			if got := of(other); got.Finding == Keyed && got.Key != want.Key {
				t.Errorf("%s as %q: another key", kind, other)
			}
		}
	}
}
