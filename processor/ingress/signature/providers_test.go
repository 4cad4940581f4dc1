package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/crc32"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"
)

func verifierOf(t *testing.T, scheme Scheme) *Verifier {
	t.Helper()
	v, err := New(configOf(scheme))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

const adyenKey = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"

// adyenNotification signs the eight fields and returns the body.
func adyenNotification(t *testing.T, merchantReference string) string {
	t.Helper()
	key, err := hex.DecodeString(adyenKey)
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("P:O:M:" + merchantReference + ":100:EUR:AUTHORISATION:true"))
	return `{"live":"false","notificationItems":[{"NotificationRequestItem":{"additionalData":{"hmacSignature":"` +
		base64.StdEncoding.EncodeToString(mac.Sum(nil)) + `"},"pspReference":"P","originalReference":"O","merchantAccountCode":"M","merchantReference":"` +
		merchantReference + `","amount":{"value":100,"currency":"EUR"},"eventCode":"AUTHORISATION","success":"true","reason":"r"}}]}`
}

// TestAdyenHasOneReading: no other body has the signature of a genuine one and other
// signed fields.
func TestAdyenHasOneReading(t *testing.T) {
	v := verifierOf(t, Adyen)
	verify := func(body string) error {
		return v.Verify(bytesOf(adyenKey), Request{Header: http.Header{}, Body: []byte(body)}, time.Time{})
	}
	good := adyenNotification(t, "a:b")
	if err := verify(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, old, new string
		want           error
	}{
		{"another reference", `"pspReference":"P"`, `"pspReference":"Q"`, ErrWrong},
		{"a shifted border", `"pspReference":"P","originalReference":"O","merchantAccountCode":"M","merchantReference":"a:b"`,
			`"pspReference":"P:O","originalReference":"M","merchantAccountCode":"a","merchantReference":"b"`, ErrMalformed},
		{"a field twice", `"pspReference":"P"`, `"pspReference":"Q","pspReference":"P"`, ErrMalformed},
		{"a field in another case", `"pspReference":"P"`, `"pspReference":"Q","PspReference":"P"`, ErrWrong},
		{"items in another case", `"notificationItems"`, `"NotificationItems"`, ErrMalformed},
		{"two items", `}}]}`, `}},{"NotificationRequestItem":{"pspReference":"Q"}}]}`, ErrMalformed},
		{"an amount with a fraction", `"value":100`, `"value":100.0`, ErrMalformed},
		{"no signature", `"hmacSignature"`, `"other"`, ErrMissing},
		{"a short signature", `"hmacSignature":"`, `"hmacSignature":"A`, ErrMalformed},
		{"no JSON", `{"live"`, `"live"`, ErrMalformed},
		{"an unsigned field", `"reason":"r"`, `"reason":"s"`, nil},
	} {
		body := strings.Replace(good, c.old, c.new, 1)
		if body == good {
			t.Fatalf("%s: the body is the same", c.what)
		}
		if err := verify(body); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}

// TestTwilioSignsURLAndFields: the order and spelling of a form do not count, its fields,
// its URL and its media type do.
func TestTwilioSignsURLAndFields(t *testing.T) {
	const secret = "a-secret-of-the-tests"
	sign := func(text string) string {
		mac := hmac.New(sha1.New, []byte(secret))
		mac.Write([]byte(text))
		return base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	const url, body, other = "https://hooks.example.com/a", `{"a":1}`, "application/json"
	sum := sha256.Sum256([]byte(body))
	digest := "bodySHA256=" + hex.EncodeToString(sum[:])
	v := verifierOf(t, Twilio)
	for _, c := range []struct {
		what, signed, kind, query, body string
		want                            error
	}{
		{"a form", url + "A1B2", formType, "", "B=2&A=1", nil},
		{"with parameters of the media type", url + "A1B2", "Application/X-WWW-Form-Urlencoded; charset=UTF-8", "", "B=2&A=1", nil},
		{"spelled another way", url + "A1B2", formType, "", "%41=%31&B=2", nil},
		{"a pair twice", url + "A1B2", formType, "", "B=2&A=1&A=1", nil},
		{"another field", url + "A1B2", formType, "", "B=2&A=1&C=", ErrWrong},
		{"a query", url + "?x=1A1", formType, "x=1", "A=1", ErrWrong},
		{"no form", url + "A1", formType, "", "A=%zz", ErrMalformed},
		{"a form that says it is JSON", url + "A1B2", other, "", "B=2&A=1", ErrMissing},
		{"a form without a media type", url + "A1B2", "", "", "B=2&A=1", ErrMissing},
		{"JSON", url + "?" + digest, other, digest, body, nil},
		{"another JSON", url + "?" + digest, other, digest, `{"a":2}`, ErrWrong},
		{"two digests", url + "?" + digest + "&" + digest, other, digest + "&" + digest, body, ErrWrong},
		{"a query before the digest", url + "?x=1&" + digest, other, "x=1&" + digest, body, ErrWrong},
		{"a query after the digest", url + "?" + digest + "&x=1", other, digest + "&x=1", body, ErrWrong},
		{"JSON read as a form", url + "?" + digest, formType, "", "%3F" + strings.Replace(digest, "=", "%3D", 1), ErrMalformed},
		{"JSON that says it is a form", url + "?" + digest, formType, digest, body, ErrWrong},
	} {
		header := http.Header{"X-Twilio-Signature": {sign(c.signed)}, "Content-Type": {c.kind}}
		// The request is the same behind a URL with a query.
		if queried, err := New(Config{Scheme: Twilio, URL: url + "?q=1"}); err != nil {
			t.Fatal(err)
		} else if err := queried.Verify(bytesOf(secret), Request{Header: header, Query: c.query, Body: []byte(c.body)}, time.Time{}); err == nil {
			t.Errorf("%s: accepted for another URL", c.what)
		}
		if err := v.Verify(bytesOf(secret), Request{Header: header, Query: c.query, Body: []byte(c.body)}, time.Time{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}

// TestTwilioSignsTheURLWithItsPortOrWithout: Twilio signs either, whichever the configured URL
// has, and its SDKs accept both. A URL without a path has one form: its port could begin the form.
func TestTwilioSignsTheURLWithItsPortOrWithout(t *testing.T) {
	const secret, body = "a-secret-of-the-tests", `{"a":1}`
	sum := sha256.Sum256([]byte(body))
	digest := "bodySHA256=" + hex.EncodeToString(sum[:])
	for _, c := range []struct {
		url, signed string
		want        error
	}{
		{"https://hooks.example.com/a", "https://hooks.example.com:443/a", nil},
		{"https://hooks.example.com:443/a", "https://hooks.example.com/a", nil},
		{"https://hooks.example.com:8443/a", "https://hooks.example.com/a", nil},
		{"https://hooks.example.com:8443/a", "https://hooks.example.com:443/a", ErrWrong},
		{"http://hooks.example.com/a?x=1", "http://hooks.example.com:80/a?x=1", nil},
		{"https://s/a", "https://s:443/a", nil},
		{"http://[2001:db8::1]/a", "http://[2001:db8::1]:80/a", nil},
		{"http://[2001:db8::1]:80/a", "http://[2001:db8::1]/a", nil},
		{"https://hooks.example.com", "https://hooks.example.com", nil},
		{"https://hooks.example.com", "https://hooks.example.com:443", ErrWrong},
		{"https://hooks.example.com?x=1", "https://hooks.example.com:443?x=1", ErrWrong},
	} {
		v, err := New(Config{Scheme: Twilio, URL: c.url})
		if err != nil {
			t.Fatal(err)
		}
		_, query, queried := strings.Cut(c.url, "?")
		separator := "?"
		if queried {
			separator = "&"
		}
		for _, r := range []struct{ signed, kind, query, body string }{
			{c.signed + "A1", formType, query, "A=1"},
			{c.signed + separator + digest, "application/json", strings.TrimPrefix(query+"&"+digest, "&"), body},
		} {
			mac := hmac.New(sha1.New, []byte(secret))
			mac.Write([]byte(r.signed))
			header := http.Header{"X-Twilio-Signature": {base64.StdEncoding.EncodeToString(mac.Sum(nil))}, "Content-Type": {r.kind}}
			if err := v.Verify(bytesOf(secret), Request{Header: header, Query: r.query, Body: []byte(r.body)}, time.Time{}); !errors.Is(err, c.want) {
				t.Errorf("%s, signed %s: %v, want %v", c.url, r.signed, err, c.want)
			}
		}
	}
}

// TestQueryHasABorder: the schemes that sign URL and content without a border accept only the
// query of the configured URL.
func TestQueryHasABorder(t *testing.T) {
	const secret, url = "a-secret-of-the-tests", "https://hooks.example.com/a?x=1"
	sum := sha256.Sum256([]byte(`{"a":1}`))
	digest := "bodySHA256=" + hex.EncodeToString(sum[:])
	for _, c := range []struct {
		what         string
		scheme       Scheme
		signed, kind string
		query, body  string
		want         error
	}{
		{"a form", Twilio, url + "A1B2", formType, "x=1", "A=1&B=2", nil},
		{"a field in the query", Twilio, url + "A1B2", formType, "x=1A1", "B=2", ErrWrong},
		{"the query in a field", Twilio, url + "A1B2", formType, "", "%3Fx%3D1A=1&B=2", ErrWrong},
		{"JSON", Twilio, url + "&" + digest, "application/json", "x=1&" + digest, `{"a":1}`, nil},
		{"a form with a digest read as JSON", Twilio, url + "A1B&" + digest + "&y=2", "application/json", "x=1A1B&" + digest + "&y=2", `{"a":1}`, ErrWrong},
		{"JSON read as a form", Twilio, url + "&" + digest, formType, "x=1", "%26" + strings.Replace(digest, "=", "%3D", 1), ErrMalformed},
		{"a body", Square, url + `{"a":1}`, "application/json", "x=1", `{"a":1}`, nil},
		{"a part of the body in the query", Square, url + `{"a":1}`, "application/json", `x=1{"a":`, `1}`, ErrWrong},
		{"the query in the body", Square, url + `{"a":1}`, "application/json", "", `?x=1{"a":1}`, ErrWrong},
	} {
		v, err := New(Config{Scheme: c.scheme, URL: url})
		if err != nil {
			t.Fatal(err)
		}
		mac := hmac.New(v.newHash, []byte(secret))
		mac.Write([]byte(c.signed))
		header := http.Header{v.header: {base64.StdEncoding.EncodeToString(mac.Sum(nil))}, "Content-Type": {c.kind}}
		if err := v.Verify(bytesOf(secret), Request{Header: header, Query: c.query, Body: []byte(c.body)}, time.Time{}); !errors.Is(err, c.want) {
			t.Errorf("%s, %s: %v, want %v", c.scheme, c.what, err, c.want)
		}
	}
}

// TestHook0HasOneReading: no other request has the signature of a genuine one, and the
// weaker v0 alone is refused.
func TestHook0HasOneReading(t *testing.T) {
	const secret, at, body = "a-secret-of-the-tests", "1767225600", `{"eventId":"1","text":".{\"eventId\":\"2\"}"}`
	mac := func(text string) string {
		sum := hmac.New(sha256.New, []byte(secret))
		sum.Write([]byte(text))
		return hex.EncodeToString(sum.Sum(nil))
	}
	v1 := "v1=" + mac(at+".content-type x-event-id x-event-type.application/json.id-1.wallet.activity.detected."+body)
	whole := "t=" + at + ",h=content-type x-event-id x-event-type,"
	v := verifierOf(t, Hook0)
	for _, c := range []struct {
		what, signature, kind, id, event, body string
		want                                   error
	}{
		{"genuine", whole + v1, "application/json", "id-1", "wallet.activity.detected", body, nil},
		{"with v0", whole + "v0=" + mac(at+"."+body) + "," + v1, "application/json", "id-1", "wallet.activity.detected", body, nil},
		{"v0 alone", "t=" + at + ",v0=" + mac(at+"."+body), "application/json", "id-1", "wallet.activity.detected", body, ErrMissing},
		{"v0 as v1", whole + "v1=" + mac(at+"."+body), "application/json", "id-1", "wallet.activity.detected", body, ErrWrong},
		{"another id", whole + v1, "application/json", "id-2", "wallet.activity.detected", body, ErrWrong},
		{"no id", whole + v1, "application/json", "", "wallet.activity.detected", body, ErrMissing},
		{"a border in the values", whole + v1, "application/json.id-1", "wallet", "activity.detected", body, ErrMalformed},
		{"a border in the body", whole + v1, "application/json", "id-1", `wallet.activity.detected.{"eventId":"1","text":"`, `{\"eventId\":\"2\"}"}`, ErrMalformed},
		{"a border before the body", whole + v1, "application/json", "id-1", "wallet.activity", "detected." + body, ErrMalformed},
		{"a border in the names", strings.Replace(whole, "x-event-type,", "x-event-type.application/json,", 1) + v1, "id-1", "wallet", "activity.detected", body, ErrMalformed},
		{"fewer names", strings.Replace(whole, " x-event-type", "", 1) + v1, "application/json", "id-1", "wallet.activity.detected", body, ErrWrong},
		{"no names", "t=" + at + "," + v1, "application/json", "id-1", "wallet.activity.detected", body, ErrMissing},
		{"names twice", whole + "h=content-type," + v1, "application/json", "id-1", "wallet.activity.detected", body, ErrMalformed},
		{"two times", whole + "t=1767225601," + v1, "application/json", "id-1", "wallet.activity.detected", body, ErrMalformed},
		{"too many names", "t=" + at + ",h=" + strings.Repeat("x-event-id ", 17) + "," + v1, "application/json", "id-1", "wallet.activity.detected", body, ErrMalformed},
		{"another time", strings.Replace(whole, at, "1767225601", 1) + v1, "application/json", "id-1", "wallet.activity.detected", body, ErrWrong},
		{"another body", whole + v1, "application/json", "id-1", "wallet.activity.detected", strings.Replace(body, "1", "3", 1), ErrWrong},
	} {
		header := http.Header{hook0Header: {c.signature}, "Content-Type": {c.kind}, "X-Event-Id": {c.id}, "X-Event-Type": {c.event}}
		if err := v.Verify(bytesOf(secret), Request{Header: header, Body: []byte(c.body)}, time.Unix(1767225600, 0)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}

// authority issues certificates of the tests.
type authority struct {
	t           *testing.T
	key         *rsa.PrivateKey
	certificate *x509.Certificate
}

func newKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newAuthority(t *testing.T, from, to time.Time) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	a.certificate = a.issue(&a.key.PublicKey, from, to, true)
	return a
}

// issue returns a certificate; the first one is the authority's own.
func (a *authority) issue(key any, from, to time.Time, ca bool) *x509.Certificate {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: fmt.Sprintf("of the tests, ca %t", ca)}, NotBefore: from, NotAfter: to,
		IsCA: ca, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	parent := a.certificate
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return certificate
}

func pemOf(certificates ...*x509.Certificate) string {
	var b strings.Builder
	for _, c := range certificates {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return b.String()
}

// TestPayPalCertificates: the signature is that of the configured certificate, within its
// dates and signed by the last one; the header must name PayPal, and is never fetched.
func TestPayPalCertificates(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	from, to := now.Add(-time.Hour), now.Add(24*time.Hour)
	root, stranger, key := newAuthority(t, from, to), newAuthority(t, from, to), newKey(t)
	leaf := root.issue(&key.PublicKey, from, to, false)
	old := root.issue(&key.PublicKey, from, now.Add(-time.Minute), false)
	body := []byte(`{"id":"WH-1"}`)
	header := http.Header{
		paypalID: {"id-1"}, paypalTime: {now.Format(time.RFC3339)}, paypalAlgorithm: {"SHA256withRSA"}, paypalCertificate: {"https://api.paypal.com/v1/certs/1"},
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "id-1|%s|HOOK|%d", now.Format(time.RFC3339), crc32.ChecksumIEEE(body)))
	text, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	header.Set(paypalSignature, base64.StdEncoding.EncodeToString(text))
	v := verifierOf(t, PayPal)
	for _, c := range []struct {
		what, secret string
		change       func(http.Header)
		want         error
	}{
		{"with its root", "HOOK\n" + pemOf(leaf, root.certificate), nil, nil},
		{"the certificate alone", "HOOK\n" + pemOf(leaf), nil, nil},
		{"the second secret", "OTHER\n" + pemOf(leaf), nil, ErrWrong},
		{"another root", "HOOK\n" + pemOf(leaf, stranger.certificate), nil, ErrNoSecret},
		{"an expired certificate", "HOOK\n" + pemOf(old, root.certificate), nil, ErrNoSecret},
		{"the key of another", "HOOK\n" + pemOf(root.issue(&newKey(t).PublicKey, from, to, false)), nil, ErrWrong},
		{"another id", "HOOK\n" + pemOf(leaf), func(h http.Header) { h.Set(paypalID, "id-2") }, ErrWrong},
		{"an id with a bar", "HOOK\n" + pemOf(leaf), func(h http.Header) { h.Set(paypalID, "id|1") }, ErrMalformed},
		{"another algorithm", "HOOK\n" + pemOf(leaf), func(h http.Header) { h.Set(paypalAlgorithm, "SHA1withRSA") }, ErrMalformed},
		{"a stranger's address", "HOOK\n" + pemOf(leaf), func(h http.Header) { h.Set(paypalCertificate, "https://api.paypal.com.example.com/1") }, ErrMalformed},
		{"an address with a user", "HOOK\n" + pemOf(leaf), func(h http.Header) { h.Set(paypalCertificate, "https://api.paypal.com@example.com/1") }, ErrMalformed},
		{"an address without TLS", "HOOK\n" + pemOf(leaf), func(h http.Header) { h.Set(paypalCertificate, "http://api.paypal.com/1") }, ErrMalformed},
		{"no time", "HOOK\n" + pemOf(leaf), func(h http.Header) { h.Set(paypalTime, "now") }, ErrMalformed},
	} {
		sent := header.Clone()
		if c.change != nil {
			c.change(sent)
		}
		if err := v.Verify(bytesOf(c.secret), Request{Header: sent, Body: body}, now); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}

// TestPublicKeysThatAreRefused: a secret that is no public key of the scheme stops the start.
func TestPublicKeysThatAreRefused(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&curve.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	a := newAuthority(t, time.Now(), time.Now().Add(time.Hour))
	weak := pemOf(a.issue(&small.PublicKey, time.Now(), time.Now().Add(time.Hour), false))
	for scheme, secrets := range map[Scheme][]string{
		Discord:  {"", "ab", strings.Repeat("zz", 32), strings.Repeat("ab", 33)},
		SendGrid: {"", "x", "AAAA", base64.StdEncoding.EncodeToString(der)},
		PayPal:   {"", "HOOK", "HOOK\n", pemOf(a.certificate), "HOOK\n" + weak, "HOOK\n" + pemOf(a.certificate) + "rest", "HO OK\n" + pemOf(a.certificate)},
		Adyen:    {"", "xyz", "ab"},
	} {
		for _, secret := range secrets {
			if err := verifierOf(t, scheme).CheckSecret([]byte(secret)); !errors.Is(err, ErrNoSecret) {
				t.Errorf("%s: the secret %.40q: %v", scheme, secret, err)
			}
		}
	}
}

// TestDigitsBeforeTheBody: Discord and SendGrid sign the timestamp and the body without a
// separator, so a body must not begin with a digit.
func TestDigitsBeforeTheBody(t *testing.T) {
	for _, scheme := range []Scheme{Discord, SendGrid} {
		v := verifierOf(t, scheme)
		header := http.Header{v.header: {strings.Repeat("ab", 64)}, v.timestampHeader: {"176722560"}}
		for _, body := range []string{"", `0{"a":1}`, " {}"} {
			if _, err := v.read(Request{Header: header, Body: []byte(body)}); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: body %q: %v", scheme, body, err)
			}
		}
	}
}

// TestTokenByBasicAuthentication: the token scheme takes the credentials of RFC 7617.
func TestTokenByBasicAuthentication(t *testing.T) {
	v, err := New(Config{Scheme: Token, Header: "authorization", Prefix: "Basic "})
	if err != nil {
		t.Fatal(err)
	}
	secret := base64.StdEncoding.EncodeToString([]byte("user:password"))
	for value, want := range map[string]error{"Basic " + secret: nil, "Basic " + secret[1:]: ErrWrong, "Bearer " + secret: ErrMissing, "Basic ": ErrMissing, "Basic a b": ErrMalformed} {
		if err := v.Verify(bytesOf(secret), Request{Header: http.Header{"Authorization": {value}}}, time.Time{}); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", value, err, want)
		}
	}
}
