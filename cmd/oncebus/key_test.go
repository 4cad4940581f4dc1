package main_test

import (
	"encoding/json"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
)

// The keys below were computed with another tool:
//
//	printf %s 'abc-1' | sha256sum
//	printf %s '{"action":"buy","exchange":"NASDAQ","symbol":"AAPL","timestamp":1729623600000}' | sha256sum
//	printf %s 'abc-1' | openssl dgst -sha256 -hmac 'sixteen bytes or more'
const (
	keyOfTrace   = "65397a5f96c8faed6bed9b822eb437bf8d75b866ec66fd795b55139b2acba2c5"
	keyOfDetails = "35d21d70e99e371fa80220569dc274cd6b90ca440a462c9b983823e1a03c3e42"
	hmacOfTrace  = "cf2571f8970fc8dd4d0e8fab6363d4b24a9b75d54dff8bf20171e7b71b0aa457"
)

const keyRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key:
      - field: traceId
      - hash: [symbol, exchange, action, timestamp]
    window: 24h
    output: signals.unique
`

func TestKeyOfAnId(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", keyRoutes)
	want := `key        ` + keyOfTrace + `
route      signals
namespace  signals
source     field: traceId
hash       SHA-256 of the next line's bytes
hashed     abc-1
digest     DIGEST (the key of its row)
time       1761955200000 (2025-11-01T00:00:00Z)
`
	for _, args := range [][]string{
		{"key", "--routes", path, "--topic", "signals.raw", "--timestamp", "1761955200000"},
		{"key", "--routes", path, "--route", "signals", "--timestamp", "1761955200000", "-"},
		{"key", "--routes", path, "--route", "signals", "--timestamp", "1761955200000", clitest.WriteFile(t, "event.json", `{"traceId":"abc-1"}`)},
	} {
		got := execute(t.Context(), nil, `{ "traceId": "abc-1", "symbol": "AAPL" }`, args...)
		if got.Code != cli.ExitStopped || got.Stderr != "" || got.Stdout != withDigest(got.Stdout, want) {
			t.Errorf("%q: exit code %d, stderr %q, stdout:\n%s\nwant:\n%s", args, got.Code, got.Stderr, got.Stdout, want)
		}
	}
}

// withDigest puts the digest of got into want; package dedup has its golden vectors.
func withDigest(got, want string) string {
	for line := range strings.Lines(got) {
		if rest, ok := strings.CutPrefix(line, "digest     "); ok && len(rest) > 32 {
			return strings.Replace(want, "DIGEST", rest[:32], 1)
		}
	}
	return want
}

// shownKey is what 'oncebus key --json' prints.
type shownKey struct {
	Key, Route, Namespace, Source, Hash, Hashed, Digest, Error string

	HashedHex string `json:"hashed_hex"`
	Time      int64
	Skipped   []string
}

func TestKeyOfDetailsAsJSON(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", keyRoutes)
	event := `{"timestamp":1729623600000,"action":"buy","symbol":"AAPL","exchange":"NASDAQ","price":1}`
	got := execute(t.Context(), nil, event, "key", "--routes", path, "--topic", "signals.raw", "--timestamp", "5", "--json")
	var shown shownKey
	if err := json.Unmarshal([]byte(got.Stdout), &shown); err != nil || got.Code != cli.ExitStopped {
		t.Fatalf("%+v, %v", got, err)
	}
	if shown.Key != keyOfDetails || shown.Hash != "SHA-256" || shown.Time != 5 || shown.Route != "signals" || shown.Namespace != "signals" ||
		shown.Hashed != `{"action":"buy","exchange":"NASDAQ","symbol":"AAPL","timestamp":1729623600000}` ||
		shown.Source != "hash: [symbol, exchange, action, timestamp]" || len(shown.Digest) != 32 {
		t.Errorf("%+v", shown)
	}
	if len(shown.Skipped) != 1 || !strings.Contains(shown.Skipped[0], "traceId") {
		t.Errorf("skipped: %q", shown.Skipped)
	}
}

func TestKeyWithSecret(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", strings.Replace(keyRoutes, "    window:", "    secret: true\n    window:", 1))
	args := []string{"key", "--routes", path, "--route", "signals", "--json"}
	got := execute(t.Context(), nil, `{"traceId":"abc-1"}`, args...)
	if got.Code != cli.ExitWrong || !strings.HasPrefix(got.Stderr, "ONCEBUS_KEY_SECRET: not set") {
		t.Errorf("without a secret: %+v", got)
	}
	secret := clitest.WriteFile(t, "secret", "sixteen bytes or more\n")
	got = execute(t.Context(), []string{"ONCEBUS_KEY_SECRET_FILE=" + secret}, `{"traceId":"abc-1"}`, args...)
	if got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, `"key":"`+hmacOfTrace+`"`) || !strings.Contains(got.Stdout, `"hash":"HMAC-SHA-256"`) {
		t.Errorf("with a secret: %+v", got)
	}
	if strings.Contains(got.Stdout+got.Stderr, "sixteen") {
		t.Errorf("the secret is shown: %+v", got)
	}
}

func TestKeyLines(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", keyRoutes)
	events := `{"traceId":"abc-1"}` + "\n" + `{"traceId":` + "\n" + `{"traceId":"abc-1","more":[1]}` + "\n"
	got := execute(t.Context(), nil, events, "key", "--routes", path, "--topic", "signals.raw", "--lines")
	lines := strings.Split(got.Stdout, "\n")
	if len(lines) != 4 || lines[0] != keyOfTrace || !strings.HasPrefix(lines[1], "error: payload") || lines[2] != keyOfTrace {
		t.Errorf("stdout: %q", lines)
	}
	if want := "oncebus key: no key can be derived for 1 of 3 events\n"; got.Code != cli.ExitFailed || got.Stderr != want {
		t.Errorf("exit code %d, stderr %q", got.Code, got.Stderr)
	}
}

func TestKeyFromHeadersAndRecordKey(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", testRoutes)
	args := []string{"key", "--routes", path, "--route", "payments", "--json"}
	payload := `{"at":"2025-11-01T00:00:00Z"}`
	for _, tt := range []struct {
		more           []string
		source, hashed string
	}{
		{[]string{"--header", "other: x", "--header", "Idempotency-Key: abc: 1", "--header", "Idempotency-Key: 2"}, "header: Idempotency-Key", "abc: 1"},
		{[]string{"--record-key", "k-1"}, "record_key", "k-1"},
		{nil, "raw", payload},
	} {
		got := execute(t.Context(), nil, payload, append(args[:len(args):len(args)], tt.more...)...)
		var shown shownKey
		if err := json.Unmarshal([]byte(got.Stdout), &shown); err != nil || got.Code != cli.ExitStopped {
			t.Fatalf("%q: %+v, %v", tt.more, got, err)
		}
		if shown.Source != tt.source || shown.Hashed != tt.hashed || shown.Namespace != "money" || shown.Time != 1761955200000 {
			t.Errorf("%q: %+v", tt.more, shown)
		}
	}
	got := execute(t.Context(), nil, payload, append(args, "--header", "Idempotency-Key: a\xffb")...)
	if !strings.Contains(got.Stdout, `"hashed_hex":"61ff62"`) {
		t.Errorf("bytes that are no text: %+v", got)
	}
}

func TestKeyThatCannotBeDerived(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", testRoutes)
	for _, tt := range []struct {
		name, event, want string
		args              []string
		code              int
	}{
		{"no source yields", `{"kind":"signal"}`, "oncebus key: no key can be derived: no key: field traceId: absent; field", []string{"--route", "signals"}, cli.ExitFailed},
		{"not JSON", `{`, "oncebus key: no key can be derived: payload: not valid JSON", []string{"--route", "signals"}, cli.ExitFailed},
		{"no match", `{"kind":"order"}`, "oncebus key: no key can be derived: match: no route takes this record; field kind is \"order\"\n", []string{"--route", "signals"}, cli.ExitFailed},
		{"nothing to match", `{"kind":{}}`, "oncebus key: no key can be derived: match: no route takes this record; field kind is missing, or no text, number or boolean\n", []string{"--route", "signals"}, cli.ExitFailed},
		{"no time", `{}`, "oncebus key: invalid argument \"abc\" for \"--timestamp\" flag: want Unix milliseconds, such as 1767323045000\n", []string{"--route", "signals", "--timestamp", "abc"}, cli.ExitWrong},
		{"unknown topic", `{}`, "oncebus key: no key can be derived: no route names topic none; the routes name ", []string{"--topic", "none"}, cli.ExitFailed},
		{"unknown route", `{}`, path + ` has no route "none"; it has signals, `, []string{"--route", "none"}, cli.ExitWrong},
		{"no such file", `{}`, "oncebus key: open none.json: no such file", []string{"--route", "signals", "none.json"}, cli.ExitWrong},
	} {
		got := execute(t.Context(), nil, tt.event, append([]string{"key", "--routes", path}, tt.args...)...)
		if got.Code != tt.code || got.Stdout != "" || !strings.HasPrefix(got.Stderr, tt.want) {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
	got := execute(t.Context(), nil, "{", "key", "--routes", path, "--route", "signals", "--json")
	if got.Code != cli.ExitFailed || !strings.HasPrefix(got.Stdout, `{"route":"signals","error":"payload: `) {
		t.Errorf("JSON: %+v", got)
	}
	got = execute(t.Context(), nil, `{"kind":"order"}`, "key", "--routes", path, "--topic", "signals.raw", "--json")
	if got.Code != cli.ExitFailed || !strings.HasPrefix(got.Stdout, `{"compared":["field kind is \"order\""],"error":"match: `) {
		t.Errorf("JSON of an event that no route takes: %+v", got)
	}
}

// TestKeyOfALineBreak: the line break of echo is part of what raw hashes, which a line says.
func TestKeyOfALineBreak(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", testRoutes)
	for input, hints := range map[string]bool{`{"at":"2026-01-02T03:04:05Z"}` + "\n": true, `{"at":"2026-01-02T03:04:05Z"}`: false} {
		got := execute(t.Context(), nil, input, "key", "--routes", path, "--route", "payments")
		if got.Code != cli.ExitStopped || strings.Contains(got.Stdout, "raw hashes the line break") != hints {
			t.Errorf("%q: %+v", input, got)
		}
	}
}
