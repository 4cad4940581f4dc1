package signature

import (
	"bufio"
	"encoding/hex"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// vector is a block of testdata/vectors.txt: a genuine request.
type vector struct {
	name      string
	published bool
	cfg       Config
	secret    string
	body      []byte
	at        time.Time
	header    http.Header
	signed    string // name of the header with the signature
}

// clone returns a vector whose headers and body may be modified.
func (v vector) clone() vector {
	v.header = v.header.Clone()
	v.body = slices.Clone(v.body)
	return v
}

// verify verifies the vector with its secret at the time of signing.
func (v vector) verify(tb testing.TB) error {
	tb.Helper()
	return v.verifyWith(tb, v.at, v.secret)
}

// verifyWith verifies the vector at another time, with other secrets.
func (v vector) verifyWith(tb testing.TB, now time.Time, secrets ...string) error {
	tb.Helper()
	verifier, err := New(v.cfg)
	if err != nil {
		tb.Fatalf("%s: %v", v.name, err)
	}
	return verifier.Verify(bytesOf(secrets...), Request{Header: v.header, Body: v.body}, now)
}

// timed reports whether the signature covers a timestamp.
func (v vector) timed() bool { return v.cfg.timed() }

func bytesOf(secrets ...string) [][]byte {
	list := make([][]byte, len(secrets))
	for i, s := range secrets {
		list[i] = []byte(s)
	}
	return list
}

// vectors reads testdata/vectors.txt.
func vectors(tb testing.TB) []vector {
	tb.Helper()
	file, err := os.Open("testdata/vectors.txt")
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	var list []vector
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		if name == "vector" {
			list = append(list, vector{name: value, header: http.Header{}, at: time.Unix(1767225600, 0)})
			continue
		}
		if err := list[len(list)-1].set(name, value); err != nil {
			tb.Fatalf("%s: %s: %v", list[len(list)-1].name, line, err)
		}
	}
	if err := lines.Err(); err != nil {
		tb.Fatal(err)
	}
	return list
}

// set parses one line of a block.
func (v *vector) set(name, value string) (err error) {
	switch name {
	case "made":
	case "published":
		v.published = true
	case "scheme":
		v.cfg.Scheme = Scheme(value)
	case "header":
		v.cfg.Header = value
	case "algorithm":
		v.cfg.Algorithm = value
	case "encoding":
		v.cfg.Encoding = value
	case "prefix":
		v.cfg.Prefix = strings.TrimSuffix(value, "SIG")
	case "timestamp-header":
		v.cfg.TimestampHeader = value
	case "separator":
		v.cfg.Separator = value
	case "secret":
		v.secret = value
	case "body":
		v.body = []byte(value)
	case "body-hex":
		v.body, err = hex.DecodeString(value)
	case "at":
		var seconds int64
		seconds, err = strconv.ParseInt(value, 10, 64)
		v.at = time.Unix(seconds, 0)
	case "send":
		header, sent, _ := strings.Cut(value, ": ")
		header = http.CanonicalHeaderKey(header)
		v.header.Add(header, sent)
		if strings.Contains(header, "Sign") || strings.Contains(header, "Hmac") || header == "Authorization" {
			v.signed = header
		}
	default:
		return strconv.ErrSyntax
	}
	return err
}

func TestVectors(t *testing.T) {
	var published int
	schemes := map[Scheme]bool{}
	for _, v := range vectors(t) {
		if v.published {
			published++
		}
		schemes[v.cfg.Scheme] = true
		t.Run(v.name, func(t *testing.T) {
			if v.signed == "" {
				t.Fatal("no header with a signature was recognised")
			}
			if err := v.verify(t); err != nil {
				t.Errorf("at the time of signing: %v", err)
			}
			verifier, _ := New(v.cfg)
			// Some published secrets are short.
			if err := verifier.CheckSecret([]byte(v.secret)); (err == nil) != (len(v.secret) >= secretBytesMin) {
				t.Errorf("CheckSecret: %v", err)
			}
		})
	}
	if want := 8; published != want {
		t.Errorf("%d published vectors, want %d", published, want)
	}
	for _, s := range []Scheme{StandardWebhooks, GitHub, Stripe, Slack, HMAC, Bearer} {
		if !schemes[s] {
			t.Errorf("no vector of scheme %s", s)
		}
	}
}

// BenchmarkVerify verifies ordinary webhooks.
func BenchmarkVerify(b *testing.B) {
	for _, v := range vectors(b) {
		if !v.published {
			continue
		}
		b.Run(strings.ReplaceAll(v.name, " ", "-"), func(b *testing.B) {
			verifier, err := New(v.cfg)
			if err != nil {
				b.Fatal(err)
			}
			secrets := bytesOf("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSz", v.secret)
			b.ReportAllocs()
			for b.Loop() {
				if err := verifier.Verify(secrets, Request{Header: v.header, Body: v.body}, v.at); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
