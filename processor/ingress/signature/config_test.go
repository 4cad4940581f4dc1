package signature

import (
	"strings"
	"testing"
	"time"
)

func TestNewReportsAllMistakes(t *testing.T) {
	for _, test := range []struct {
		name string
		cfg  Config
		want []string // prefixes of the lines
	}{
		{"nothing", Config{}, []string{`scheme: "" is unknown, want one of standard-webhooks svix github`}},
		{"unknown", Config{Scheme: "GitHub"}, []string{`scheme: "GitHub" is unknown`}},
		{"github", Config{Scheme: GitHub}, nil},
		{"tolerance without timestamp", Config{Scheme: GitHub, Tolerance: time.Minute}, []string{"tolerance: scheme github has no timestamp"}},
		{"tolerance of hmac without timestamp", Config{Scheme: HMAC, Header: "X-S", Tolerance: time.Minute}, []string{"tolerance: without a timestamp_header a request has no age"}},
		{"short tolerance", Config{Scheme: Stripe, Tolerance: time.Millisecond}, []string{"tolerance: 1ms is too short, want at least 1s"}},
		{"negative tolerance", Config{Scheme: Slack, Tolerance: -time.Minute}, []string{"tolerance: -1m0s is too short"}},
		{
			"fields of hmac with another scheme",
			Config{Scheme: Bearer, Header: "X", Algorithm: "sha256", Encoding: "hex", Prefix: "p", TimestampHeader: "T", Separator: "."},
			[]string{"header: only scheme hmac", "algorithm: only", "encoding: only", "prefix: only", "timestamp_header: only", "separator: only"},
		},
		{"ahead", Config{Scheme: Slack, Ahead: DefaultTolerance}, nil},
		{"ahead without timestamp", Config{Scheme: GitHub, Ahead: time.Second}, []string{"ahead: the signature has no timestamp"}},
		{"ahead beyond the tolerance", Config{Scheme: Slack, Tolerance: time.Minute, Ahead: time.Minute + 1}, []string{"ahead: 1m0.000000001s is out of range"}},
		{"negative ahead", Config{Scheme: Slack, Ahead: -1}, []string{"ahead: -1ns is out of range"}},
		{"hmac", Config{Scheme: HMAC, Header: "X-Signature"}, nil},
		{"hmac with everything", Config{
			Scheme: HMAC, Header: "x-signature", Algorithm: "sha512", Encoding: "base64", Prefix: "HMAC v=", TimestampHeader: "x-time", Separator: "\n",
			Tolerance: time.Second,
		}, nil},
		{"hmac with nothing", Config{Scheme: HMAC}, []string{"header: not set"}},
		{
			"hmac with everything wrong",
			Config{Scheme: HMAC, Header: "X Y", Algorithm: "md5", Encoding: "base32", Prefix: " p", TimestampHeader: "é", Separator: "0.", Tolerance: 1},
			[]string{
				`header: "X Y" is malformed`, `algorithm: "md5" is unknown, want sha256, sha1 or sha512`, `encoding: "base32" is unknown, want hex or base64`,
				`prefix: " p" cannot`, `timestamp_header: "é" is malformed`, `separator: "0." begins with a digit`, "tolerance: 1ns is too short",
			},
		},
		{
			"hmac too long",
			Config{Scheme: HMAC, Header: "X", Prefix: strings.Repeat("p", 65), TimestampHeader: "x", Separator: strings.Repeat("-", 65)},
			[]string{"prefix: 65 bytes is too long, want at most 64", `timestamp_header: "x" is also the signature's header`, "separator: 65 bytes"},
		},
		{"hmac with a line end", Config{Scheme: HMAC, Header: "X", Prefix: "a\n", Separator: "."}, []string{`prefix: "a\n" cannot`, "separator: without a timestamp_header"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			v, err := New(test.cfg)
			if (v == nil) != (err != nil) {
				t.Errorf("verifier %v and error %v", v, err)
			}
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			if len(lines) != len(test.want) {
				t.Fatalf("%d mistakes, want %d: %v", len(lines), len(test.want), err)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("mistake %d is %q, want %q", i, lines[i], want)
				}
			}
		})
	}
}
