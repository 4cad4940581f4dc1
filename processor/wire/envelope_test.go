package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// vectorTime is an event time, ms.
const vectorTime = 1_700_000_000_000

func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func digestOf(first byte) (d dedup.Digest) {
	for i := range d {
		d[i] = first + byte(i)
	}
	return d
}

func keyOf(first byte) (k [32]byte) {
	for i := range k {
		k[i] = first + byte(i)
	}
	return k
}

var (
	vectorFrom    = dedup.Position{Topic: 3, Partition: 5, Offset: 1234567}
	vectorRun     = SeedRun{1, 2, 3, 4, 5, 6, 7, 8}
	vectorAddress = dedup.Address{Partition: 300, Ingress: 0x1122334455667788, Request: 9}
	// vectorToken is one of TestTokenGolden.
	vectorToken = dedup.Token{NamespaceID: 2, Partition: 4, Digest: digestOf(7), At: dedup.Position{Topic: 3, Partition: 5, Offset: 600}, Attempt: 9}
)

// envelopeVectors were computed with python3, from the format alone:
//
//	from struct import pack
//	def u(n):
//	    b = b''
//	    while n > 127: b += bytes([n & 127 | 128]); n >>= 7
//	    return b + bytes([n])
//	def s(n): return u(n << 1 if n >= 0 else ((-n) << 1) - 1)
//	def r(a, n): return bytes(range(a, a + n))
//	def env(flags, route, topic, part, ts, off, body, rest=b''):
//	    return b'\x02' + u(flags) + u(len(route)) + route + u(topic) + u(part) + pack('>q', ts) + u(off) + body + rest
//	def event(delta, d, key): return s(delta) + r(d, 16) + key
//	def address(part, ingress, request): return u(part) + pack('<QQ', ingress, request)
//	def details(print, adjacent, request): return pack('<Q', print) + adjacent + u(len(request)) + request
//	def outcome(kind, tail=b''): return bytes([kind, len(token)]) + token + tail
//	token = b'AQIHCAkKCwwNDg8QERITFBUWBAMF2AQJDgwRfQ'
//	t, here, k = 1700000000000, (b'signals', 3, 5, 1700000000001, 1234567), r(64, 32)
//	there = (b'orders',) + here[1:]
//	more = details(0x1122334455667788, b'\x01' + r(1, 16) + r(2, 16), b'r-1')
//	waits, gone = address(300, 0x1122334455667788, 9), address(2, 0x1122334455667788, 7)
//	V=[
//	("no flag", env(0, *here, event(-1, 0, k))),
//	("zero", env(0, b'r', 0, 0, 0, 0, event(0, 16, r(128, 32)))),
//	("limits", env(0, b'', 65535, 2**31-1, -2**63, 2**63-1, event(2**63-1, 1, r(2, 32)))),
//	("event time before a late timestamp", env(0, b'r', 0, 0, 2**63-1, 0, event(-2**63, 1, r(2, 32)))),
//	("record key", env(1, *here, event(-1, 0, k), b'k-1')),
//	("empty record key", env(1, *here, event(-1, 0, k))),
//	("hashed", env(2, *here, event(-1, 0, u(7) + u(300)))),
//	("hashed to the limits", env(2, *here, event(-1, 0, u(2**31-1) + u(2**31-1)))),
//	("hashed, with a record key", env(3, *here, event(-1, 0, u(0) + u(1)), b'\x00\xff')),
//	("of the ingress", env(4, b'signals', 0, 0, t+1, 0, event(-1, 0, k))),
//	("address", env(8, *here, event(-1, 0, k), waits)),
//	("details", env(16, *there, event(-1, 0, k), more)),
//	("request id alone", env(16, *there, event(-1, 0, k), details(0, b'\x00', b'r-1'))),
//	("outcome", env(32, *there, outcome(1))),
//	("outcome with a record key", env(33, *there, outcome(1), b'k-1')),
//	("start with an address", env(40, *there, outcome(5, b'\x02x7'), waits)),
//	("renewal without a start id", env(32, *there, outcome(6, b'\x00'))),
//	("progress", b'\x02' + u(64)),
//	("details with a shift", env(16+128, *there, event(-1, 0, k), more + s(-5400000))),
//	("in place of another request", env(4+8+256, b'signals', 0, 0, t+1, 0, event(-1, 0, k), waits + gone)),
//	("query", env(4+8+16384, b'signals', 0, 0, t+1, 0, event(-1, 0, k), waits)),
//	("query with details", env(4+8+16+128+16384, b'orders', 0, 0, t+1, 0, event(-1, 0, k), waits + details(0x1122334455667788, b'\x01' + r(1, 16) + r(2, 16), b'') + s(-5))),
//	("seed", env(1024, b'signals', 65535, 0, t, 77, event(0, 0, r(1, 8)))),
//	("seed with details", env(1024+16+128, b'orders', 65535, 0, t, 77, event(0, 0, r(1, 8)), details(0x1122334455667788, b'\x00', b'') + s(-5))),
//	("all of an event", env(1+2+8+16+128+256, *there, event(-1, 0, u(7) + u(300)), waits + more + s(1) + gone + b'k-1')),
//	]
//	for name, b in V: print(name, b.hex())
var envelopeVectors = []struct {
	name     string
	envelope Envelope
	hex      string
}{
	{"no flag", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom}, "0200077369676e616c7303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"},
	{"zero", Envelope{Route: []byte("r"), Digest: digestOf(16), Key: keyOf(128)}, "02000172000000000000000000000000101112131415161718191a1b1c1d1e1f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"},
	{"limits", Envelope{Route: []byte{}, Digest: digestOf(1), Key: keyOf(2), EventTime: -1, Timestamp: math.MinInt64,
		From: dedup.Position{Topic: math.MaxUint16, Partition: math.MaxInt32, Offset: math.MaxInt64}}, "020000ffff03ffffffff078000000000000000ffffffffffffffff7ffeffffffffffffffff010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021"},
	{"event time before a late timestamp", Envelope{Route: []byte("r"), Digest: digestOf(1), Key: keyOf(2), EventTime: -1, Timestamp: math.MaxInt64}, "0200017200007fffffffffffffff00ffffffffffffffffff010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021"},
	{"record key", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom, RecordKey: []byte("k-1")}, "0201077369676e616c7303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f6b2d31"},
	{"empty record key", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom, RecordKey: []byte{}}, "0201077369676e616c7303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"},
	{"hashed", Envelope{Route: []byte("signals"), Digest: digestOf(0), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom, Hashed: rules.Part{Start: 7, Length: 300}}, "0202077369676e616c7303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f07ac02"},
	{"hashed to the limits", Envelope{Route: []byte("signals"), Digest: digestOf(0), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom, Hashed: rules.Part{Start: math.MaxInt32, Length: math.MaxInt32}}, "0202077369676e616c7303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0fffffffff07ffffffff07"},
	{"hashed, with a record key", Envelope{Route: []byte("signals"), Digest: digestOf(0), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom, Hashed: rules.Part{Start: 0, Length: 1}, RecordKey: []byte{0, 0xff}}, "0203077369676e616c7303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f000100ff"},
	{"of the ingress", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, FromIngress: true}, "0204077369676e616c7300000000018bcfe568010001000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"},
	{"address", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom, ReplyTo: vectorAddress}, "0208077369676e616c7303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5fac0288776655443322110900000000000000"},
	{"details", Envelope{Route: []byte("orders"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom,
		Details: Details{Fingerprint: 0x1122334455667788, Request: "r-1", Adjacent: [2]dedup.Digest{digestOf(1), digestOf(2)}, HasAdjacent: true}}, "0210066f726465727303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f8877665544332211010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101103722d31"},
	{"request id alone", Envelope{Route: []byte("orders"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom, Details: Details{Request: "r-1"}}, "0210066f726465727303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f00000000000000000003722d31"},
	{"outcome", Envelope{Route: []byte("orders"), Timestamp: vectorTime + 1, From: vectorFrom, Outcome: &OutcomeEnvelope{Kind: dedup.OutcomeCompleted, Token: vectorToken}}, "0220066f726465727303050000018bcfe5680187ad4b01264151494843416b4b4377774e44673851455249544642555742414d463241514a446777526651"},
	{"outcome with a record key", Envelope{Route: []byte("orders"), Timestamp: vectorTime + 1, From: vectorFrom, Outcome: &OutcomeEnvelope{Kind: dedup.OutcomeCompleted, Token: vectorToken}, RecordKey: []byte("k-1")}, "0221066f726465727303050000018bcfe5680187ad4b01264151494843416b4b4377774e44673851455249544642555742414d463241514a4467775266516b2d31"},
	{"start with an address", Envelope{Route: []byte("orders"), Timestamp: vectorTime + 1, From: vectorFrom, Outcome: &OutcomeEnvelope{Kind: dedup.OutcomeStart, StartID: []byte("x7"), Token: vectorToken}, ReplyTo: vectorAddress}, "0228066f726465727303050000018bcfe5680187ad4b05264151494843416b4b4377774e44673851455249544642555742414d463241514a446777526651027837ac0288776655443322110900000000000000"},
	{"renewal without a start id", Envelope{Route: []byte("orders"), Timestamp: vectorTime + 1, From: vectorFrom, Outcome: &OutcomeEnvelope{Kind: dedup.OutcomeRenew, Token: vectorToken}}, "0220066f726465727303050000018bcfe5680187ad4b06264151494843416b4b4377774e44673851455249544642555742414d463241514a44677752665100"},
	{"progress", Envelope{IsProgress: true}, "0240"},
	{"details with a shift", Envelope{Route: []byte("orders"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom,
		Details: Details{Fingerprint: 0x1122334455667788, Request: "r-1", Adjacent: [2]dedup.Digest{digestOf(1), digestOf(2)}, HasAdjacent: true, Shift: -5400000}}, "029001066f726465727303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f8877665544332211010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101103722d31ff969305"},
	{"in place of another request", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1,
		FromIngress: true, ReplyTo: vectorAddress, Replaces: dedup.Address{Partition: 2, Ingress: 0x1122334455667788, Request: 7}}, "028c02077369676e616c7300000000018bcfe568010001000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5fac02887766554433221109000000000000000288776655443322110700000000000000"},
	{"sender", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom, Sender: []byte("10.0.0.7"), RecordKey: []byte("k-1")}, "028104077369676e616c7303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f0831302e302e302e376b2d31"},
	{"tenant", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom, Tenant: []byte("acme"), RecordKey: []byte("k-1")}, "028140077369676e616c7303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f0461636d656b2d31"},
	{"seed", Envelope{Route: []byte("signals"), Digest: digestOf(0), EventTime: vectorTime, Timestamp: vectorTime, From: dedup.Position{Topic: dedup.SeedTopic, Offset: 77}, IsSeed: true, Seed: vectorRun}, "028008077369676e616c73ffff03000000018bcfe568004d00000102030405060708090a0b0c0d0e0f0102030405060708"},
	{"seed with details", Envelope{Route: []byte("orders"), Digest: digestOf(0), EventTime: vectorTime, Timestamp: vectorTime, From: dedup.Position{Topic: dedup.SeedTopic, Offset: 77}, IsSeed: true, Seed: vectorRun,
		Details: Details{Fingerprint: 0x1122334455667788, Shift: -5}}, "029009066f7264657273ffff03000000018bcfe568004d00000102030405060708090a0b0c0d0e0f01020304050607088877665544332211000009"},
	{"stream time", Envelope{Route: []byte("signals"), EventTime: vectorTime, Timestamp: vectorTime, From: dedup.Position{Topic: dedup.SeedTopic}, IsSeed: true, IsTime: true, Seed: vectorRun}, "028018077369676e616c73ffff03000000018bcfe568000000000000000000000000000000000000000102030405060708"},
	{"query", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, FromIngress: true, ReplyTo: vectorAddress, IsQuery: true}, "028c8001077369676e616c7300000000018bcfe568010001000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5fac0288776655443322110900000000000000"},
	{"query with details", Envelope{Route: []byte("orders"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, FromIngress: true, ReplyTo: vectorAddress, IsQuery: true,
		Details: Details{Fingerprint: 0x1122334455667788, Adjacent: [2]dedup.Digest{digestOf(1), digestOf(2)}, HasAdjacent: true, Shift: -5}}, "029c8101066f726465727300000000018bcfe568010001000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5fac02887766554433221109000000000000008877665544332211010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f10110009"},
	{"all of an event", Envelope{Route: []byte("orders"), Digest: digestOf(0), EventTime: vectorTime, Timestamp: vectorTime + 1, From: vectorFrom, Hashed: rules.Part{Start: 7, Length: 300}, ReplyTo: vectorAddress,
		Details:  Details{Fingerprint: 0x1122334455667788, Request: "r-1", Adjacent: [2]dedup.Digest{digestOf(1), digestOf(2)}, HasAdjacent: true, Shift: 1},
		Replaces: dedup.Address{Partition: 2, Ingress: 0x1122334455667788, Request: 7}, RecordKey: []byte("k-1")}, "029b03066f726465727303050000018bcfe5680187ad4b01000102030405060708090a0b0c0d0e0f07ac02ac02887766554433221109000000000000008877665544332211010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101103722d310202887766554433221107000000000000006b2d31"},
}

// TestEnvelopeEncoding pins every byte, because the topic has records of other
// versions of oncebus.
func TestEnvelopeEncoding(t *testing.T) {
	for _, v := range envelopeVectors {
		encoded := v.envelope.Append(nil)
		if got := hex.EncodeToString(encoded); got != v.hex {
			t.Errorf("%s: got %s, want %s", v.name, got, v.hex)
		}
		if n := v.envelope.Size(); len(encoded) > n {
			t.Errorf("%s: %d bytes, Size returns %d", v.name, len(encoded), n)
		}
		var back Envelope
		if err := back.decode(unhex(t, v.hex)); err != nil || !reflect.DeepEqual(back, v.envelope) {
			t.Errorf("%s: decoded to %+v, %v", v.name, back, err)
		}
	}
}

// TestDamagedEnvelopeIsRefused decodes envelopes that are cut short or out of range. A cut
// within the original record key, the last field, leaves another envelope.
func TestDamagedEnvelopeIsRefused(t *testing.T) {
	for _, v := range envelopeVectors {
		whole := v.envelope.Append(nil)
		fixed := len(whole) - len(v.envelope.RecordKey)
		for n := range fixed {
			var e Envelope
			if err := e.decode(whole[:n]); !errors.Is(err, errEnvelope) {
				t.Errorf("%s: %d of %d bytes: %v", v.name, n, fixed, err)
			}
		}
		if v.envelope.RecordKey == nil {
			var e Envelope
			if err := e.decode(append(whole, 0)); !errors.Is(err, errEnvelope) {
				t.Errorf("%s, with a byte more: %v", v.name, err)
			}
		}
	}
	const route, from, digest = "01 72", "00 00 0000000000000000 00", "00000000000000000000000000000000"
	const event, key = "00" + digest, digest + digest
	for name, text := range map[string]string{ // a whole one is "02 00" + route + from + event + key
		"another version":             "01 00" + route + from + event + key,
		"unknown flag":                "02 8010" + route + from + event + key,
		"seed with a record key":      "02 8108" + route + from + event + "0102030405060708",
		"seed of a hash":              "02 8208" + route + from + event + "0102030405060708",
		"flags without end":           "02 ffffffffffffffffffffff",
		"route longer than the rest":  "02 00 7f 72" + from + event + key,
		"topic out of range":          "02 00" + route + "808004 00 0000000000000000 00" + event + key,
		"partition out of range":      "02 00" + route + "00 8080808008 0000000000000000 00" + event + key,
		"offset out of range":         "02 00" + route + "00 00 0000000000000000 80808080808080808001" + event + key,
		"event time without end":      "02 00" + route + from + "ffffffffffffffffffffff" + event + key,
		"start of hash out of range":  "02 02" + route + from + event + "8080808008 01",
		"length of hash out of range": "02 02" + route + from + event + "00 8080808008",
		"hash of nothing":             "02 02" + route + from + event + "00 00",
		"progress with a record key":  "02 41",
		"unknown flag after queries":  "02 808002" + route + from + event + key,
		"query without an address":    "02 848001" + route + from + event + key,
		"query of no ingress":         "02 888001" + route + from + event + key + "01 0100000000000000 0100000000000000",
		"query of a hash":             "02 8e8001" + route + from + event + "01 01 01 0100000000000000 0100000000000000",
		"outcome of a hash":           "02 22" + route + from + "01 00",
		"no sender":                   "02 8004" + route + from + event + key + "00",
		"sender cut short":            "02 8004" + route + from + event + key + "02 61",
		"sender too long":             "02 8004" + route + from + event + key + "41" + strings.Repeat("61", 65),
		"unset address":               "02 08" + route + from + event + key + "00 0000000000000000 0000000000000000",
	} {
		var e Envelope
		if err := e.decode(unhex(t, text)); !errors.Is(err, errEnvelope) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var e Envelope
	if err := e.decode(unhex(t, "02 00"+route+from+event+key)); err != nil {
		t.Error("what the damaged ones were made of:", err)
	}
}

// TestReadEnvelopeNamesTheRecord: a record without an envelope is refused, and so is one
// whose hashed part is not within its value.
func TestReadEnvelopeNamesTheRecord(t *testing.T) {
	good := envelopeVectors[0].envelope.Append(nil)
	hashed := Envelope{Route: []byte("r"), Hashed: rules.Part{Start: 2, Length: 3}, RecordKey: []byte("k")}
	read := func(key []byte, value string, e *Envelope) error {
		return ReadEnvelope(&kgo.Record{Topic: "app-repartition", Partition: 1, Offset: 2, Key: key, Value: []byte(value)}, e)
	}
	for name, rec := range map[string]struct {
		key   []byte
		value string
	}{
		"no record key":          {},
		"a foreign record key":   {key: []byte("order-1")},
		"damaged":                {key: good[:10]},
		"part ends too late":     {hashed.Append(nil), "abcd"},
		"part starts too late":   {hashed.Append(nil), "a"},
		"part of no value":       {hashed.Append(nil), ""},
		"largest part of hashes": {unhex(t, envelopeVectors[7].hex), "abcde"},
	} {
		var e Envelope
		if err := read(rec.key, rec.value, &e); !errors.Is(err, errEnvelope) || !strings.Contains(err.Error(), "app-repartition/1/2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	var e Envelope
	if err := read(hashed.Append(nil), "abcde", &e); err != nil || *e.DedupKey([]byte("abcde")) != sha256.Sum256([]byte("cde")) || string(e.RecordKey) != "k" {
		t.Errorf("got %+v, %v", e, err)
	}
	if err := read(good, "abcde", &e); err != nil || *e.DedupKey([]byte("abcde")) != keyOf(64) || e.RecordKey != nil {
		t.Errorf("got %+v, %v", e, err)
	}
}

func FuzzEnvelope(f *testing.F) {
	for _, v := range envelopeVectors {
		f.Add(unhex(f, v.hex))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again Envelope
		if err := e.decode(b); err != nil {
			if !errors.Is(err, errEnvelope) {
				t.Fatalf("%v is no %v", err, errEnvelope)
			}
			return
		}
		// A varint may have redundant bytes, so bytes may differ, but not values.
		if err := again.decode(e.Append(nil)); err != nil || !reflect.DeepEqual(e, again) {
			t.Fatalf("%+v was decoded as %+v, %v", e, again, err)
		}
	})
}
