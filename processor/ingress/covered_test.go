package ingress

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor/ingress/signature"
)

// covered is what a signature covers: a genuine request in which it is changed is refused.
type covered struct {
	body, address, query bool
	some                 string   // where body is false: what of it is covered; "" for nothing
	headers              []string // besides that of the signature
	until                time.Duration
}

// signedRequest is a genuine request, with the settings that accept it.
type signedRequest struct {
	signature rules.Signature
	secret    string
	at        time.Time
	request   signature.Request
}

// accepted reports whether the request is accepted some time after it was signed.
func (r *signedRequest) accepted(t *testing.T, s *rules.Signature, request signature.Request, later time.Duration) bool {
	t.Helper()
	v, err := newVerifier(s, 1000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return v.Verify([][]byte{[]byte(r.secret)}, request, r.at.Add(later)) == nil
}

// forgeries are bodies that a scheme may take for the signed one, and what of it then is covered.
var forgeries = []struct {
	covers string
	forge  func(body []byte) []byte
}{
	{"its CRC-32", func(body []byte) []byte { return withSum(append(bytes.Clone(body), ' '), crc32.ChecksumIEEE(body)) }},
	{"its fields, joined", func(body []byte) []byte { // A=1&B=2 becomes A1=&B=2
		at := bytes.IndexByte(body, '=')
		if at < 0 || at+1 == len(body) {
			return nil
		}
		moved := bytes.Clone(body)
		moved[at], moved[at+1] = moved[at+1], '='
		return moved
	}},
}

// withSum appends four bytes that give a text this CRC-32, as anybody can.
func withSum(text []byte, sum uint32) []byte {
	var rows [4]byte // of the table, from the last one back
	want := ^sum
	for i := 3; i >= 0; i-- {
		row := slices.IndexFunc(crc32.IEEETable[:], func(entry uint32) bool { return entry>>24 == want>>24 })
		rows[i], want = byte(row), (want^crc32.IEEETable[row])<<8
	}
	now := ^crc32.ChecksumIEEE(text)
	for _, row := range rows {
		text = append(text, byte(now)^row)
		now = now>>8 ^ crc32.IEEETable[row]
	}
	return text
}

// another returns another character of its kind, so that a changed text can still be read.
func another(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return '0' + (c-'0'+1)%10, true
	case c >= 'a' && c <= 'z':
		return 'a' + (c-'a'+1)%26, true
	case c >= 'A' && c <= 'Z':
		return 'A' + (c-'A'+1)%26, true
	}
	return c, false
}

// measure changes one part of a genuine request after the other, and returns those that are covered.
func (r *signedRequest) measure(t *testing.T) covered {
	t.Helper()
	s := r.signature
	if !r.accepted(t, &s, r.request, 0) {
		t.Fatalf("the request of scheme %v is not accepted", s.Scheme)
	}
	c := covered{until: s.Tolerance}
	if c.until > 0 && (r.accepted(t, &s, r.request, c.until+time.Second) || !r.accepted(t, &s, r.request, c.until)) {
		t.Errorf("scheme %v: the request is not good until %v after its time", s.Scheme, c.until)
	}
	changed, refused := 0, 0
	altered := func(body []byte) bool {
		request := r.request
		request.Body = body
		return r.accepted(t, &s, request, 0)
	}
	for i, b := range r.request.Body {
		if to, ok := another(b); ok {
			changed++
			body := bytes.Clone(r.request.Body)
			if body[i] = to; !altered(body) {
				refused++
			}
		}
	}
	c.body = changed == refused
	for _, f := range forgeries {
		if body := f.forge(r.request.Body); c.body && body != nil && altered(body) {
			c.body, c.some = false, f.covers
		}
	}
	if !c.body && c.some == "" && refused > 0 {
		c.some = "some of its fields"
	}
	if s.URL != "" {
		s.URL = strings.Replace(s.URL, "://", "://other.", 1)
		c.address = !r.accepted(t, &s, r.request, 0)
		s.URL = r.signature.URL
	}
	request := r.request
	request.Query = strings.TrimPrefix(request.Query+"&x=1", "&")
	c.query = !r.accepted(t, &s, request, 0)
	c.headers = r.measureHeaders(t)
	return c
}

func (r *signedRequest) measureHeaders(t *testing.T) (names []string) {
	t.Helper()
	v, err := newVerifier(&r.signature, 1000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range r.request.Header {
		if slices.Contains(v.Headers()[:min(1, len(v.Headers()))], name) {
			continue
		}
		last, _ := another(values[0][len(values[0])-1])
		request := r.request
		request.Header = r.request.Header.Clone()
		request.Header.Set(name, values[0][:len(values[0])-1]+string(last))
		bound := !r.accepted(t, &r.signature, request, 0)
		if bound {
			names = append(names, strings.ToLower(name))
		}
		if !bound && r.signature.Signs() && r.signature.Covers(name) {
			t.Errorf("check says that scheme %v covers header %s, which can be replaced", r.signature.Scheme, name)
		}
	}
	slices.Sort(names)
	return names
}

// cells returns what is covered as cells of a table.
func (c *covered) cells() string {
	text := func(ok bool, otherwise string) string {
		if ok {
			return "yes"
		}
		return otherwise
	}
	body := "no"
	if c.some != "" {
		body = "only " + c.some
	}
	headers, until := "none", "for ever"
	if len(c.headers) > 0 {
		headers = "`" + strings.Join(c.headers, "`, `") + "`"
	}
	if c.until > 0 {
		until = fmt.Sprintf("for `%v`", c.until)
	}
	return fmt.Sprintf("%s | %s | %s | %s | %s", text(c.body, body), text(c.address, "no"), text(c.query, "no"), headers, until)
}

// signed returns the recorded request of a provider, under its preset.
func (r *providerRequest) signed() *signedRequest {
	return &signedRequest{
		signature: rules.ProviderOf(r.Provider).Example().HTTP.Signature, secret: r.Secret, at: time.Unix(r.At, 0),
		request: signature.Request{Header: r.header(), Query: r.Query, Body: []byte(r.Body)},
	}
}

// madeRequests are those of the schemes that no preset uses.
func madeRequests() []*signedRequest {
	const secret, body = "a-secret-of-the-tests", `{"id":"e1"}`
	at := time.Unix(1767225600, 0)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(strconv.FormatInt(at.Unix(), 10) + "." + body))
	header := func(name, value string) http.Header {
		return http.Header{name: {value}, "X-Time": {strconv.FormatInt(at.Unix(), 10)}, "Content-Type": {"application/json"}}
	}
	request := func(h http.Header) signature.Request { return signature.Request{Header: h, Body: []byte(body)} }
	return []*signedRequest{
		{rules.Signature{Scheme: rules.HMAC, Secret: "A", Header: "X-Sig", Algorithm: "sha256", Encoding: "hex", TimestampHeader: "X-Time", Separator: ".", Tolerance: rules.DefaultTolerance},
			secret, at, request(header("X-Sig", hex.EncodeToString(mac.Sum(nil))))},
		{rules.Signature{Scheme: rules.Bearer, Secret: "A"}, secret, at, request(header("Authorization", "Bearer "+secret))},
		{rules.Signature{Scheme: rules.NoSignature}, "", at, request(header("X-Sig", "none"))},
	}
}

// schemeRows lists what each scheme covers, by genuine requests of all kinds that it has.
func schemeRows(t *testing.T) string {
	t.Helper()
	rows := map[rules.SignatureScheme][]string{}
	add := func(r *signedRequest) {
		c := r.measure(t)
		name := "`" + r.signature.Scheme.String() + "`"
		if r.signature.TimestampHeader != "" {
			name += " with `timestamp_header: " + r.signature.TimestampHeader + "`"
		}
		if c.some == forgeries[1].covers {
			name += ", a form"
		}
		row := "| " + name + " | " + c.cells() + " |\n"
		if of := rows[r.signature.Scheme]; !slices.Contains(of, row) {
			rows[r.signature.Scheme] = append(of, row)
		}
	}
	for _, r := range recordedRequests(t) {
		add(r.signed())
	}
	for _, r := range madeRequests() {
		add(r)
	}
	var b strings.Builder
	b.WriteString("| scheme | body | address | query | headers | good |\n| --- | --- | --- | --- | --- | --- |\n")
	for scheme := rules.StandardWebhooks; scheme <= rules.NoSignature; scheme++ {
		if rows[scheme] == nil {
			t.Errorf("no request of scheme %v", scheme)
		}
		b.WriteString(strings.Join(rows[scheme], ""))
	}
	return b.String()
}

// coverRows lists what the signature of each provider covers, and which headers are carried although it does not.
func coverRows(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| provider | body | address | query | headers | good | carried, not covered |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	seen := map[string]bool{}
	order := func(r *providerRequest) int {
		return slices.IndexFunc(rules.Providers, func(p rules.Provider) bool { return p.Name == r.Provider })
	}
	requests := recordedRequests(t)
	slices.SortStableFunc(requests, func(a, b providerRequest) int { return cmp.Compare(order(&a), order(&b)) })
	for _, r := range requests {
		c := r.signed().measure(t)
		free := slices.DeleteFunc(slices.Clone(rules.ProviderOf(r.Provider).Example().HTTP.Headers), func(name string) bool { return slices.Contains(c.headers, strings.ToLower(name)) })
		row := fmt.Sprintf("| %#q | %s | %s |\n", r.Provider, c.cells(), strings.ToLower(strings.Join(free, ", ")))
		if !seen[row] {
			seen[row] = true
			b.WriteString(row)
		}
	}
	return b.String()
}
