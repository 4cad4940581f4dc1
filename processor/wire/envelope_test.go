package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
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

// envelopeVectors were computed with python3, from the format alone:
//
//	def u(n):
//	    b = b''
//	    while n > 127: b += bytes([n & 127 | 128]); n >>= 7
//	    return b + bytes([n])
//	def s(n): return u(n << 1 if n >= 0 else ((-n) << 1) - 1)
//	def env(d, k, at, ts, topic, part, off, route):
//	    return (b'\x01\x00' + bytes(range(d, d+16)) + bytes(range(k, k+32)) + s(at) + s(ts) + u(topic) + u(part) + u(off) + route).hex()
//	print(env(0, 64, 1700000000000, 1700000000001, 3, 5, 1234567, b'signals'))
//	print(env(16, 128, 0, 0, 0, 0, 0, b'r'))
//	print(env(1, 2, -1, -2**63, 65535, 2**31-1, 2**63-1, b''))
//	# the others by hand, with the same functions and a token of TestTokenGolden
var envelopeVectors = []struct {
	name     string
	envelope Envelope
	hex      string
}{
	{"plain", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1,
		From: dedup.Position{Topic: 3, Partition: 5, Offset: 1234567}}, "0100000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962030587ad4b7369676e616c73"},
	{"zero", Envelope{Route: []byte("r"), Digest: digestOf(16), Key: keyOf(128)}, "0100101112131415161718191a1b1c1d1e1f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f000000000072"},
	{"limits", Envelope{Route: []byte{}, Digest: digestOf(1), Key: keyOf(2), EventTime: -1, Timestamp: math.MinInt64,
		From: dedup.Position{Topic: math.MaxUint16, Partition: math.MaxInt32, Offset: math.MaxInt64}}, "01000102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202101ffffffffffffffffff01ffff03ffffffff07ffffffffffffffff7f"},
	{"details", Envelope{Route: []byte("orders"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1,
		From:    dedup.Position{Topic: 3, Partition: 5, Offset: 1234567},
		Details: Details{Fingerprint: 0x1122334455667788, Request: "r-1", Adjacent: [2]dedup.Digest{digestOf(1), digestOf(2)}, HasAdjacent: true}}, "0108000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962030587ad4b8877665544332211010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101103722d316f7264657273"},
	{"a request id alone", Envelope{Route: []byte("orders"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1,
		From: dedup.Position{Topic: 3, Partition: 5, Offset: 1234567}, Details: Details{Request: "r-1"}}, "0108000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962030587ad4b00000000000000000003722d316f7264657273"},
	{"outcome", Envelope{Route: []byte("orders"), Timestamp: vectorTime + 1, From: dedup.Position{Topic: 3, Partition: 5, Offset: 1234567},
		Outcome: &OutcomeEnvelope{Kind: dedup.OutcomeCompleted, Token: dedup.Token{
			NamespaceID: 2, Partition: 4, Digest: digestOf(7), At: dedup.Position{Topic: 3, Partition: 5, Offset: 600}, Attempt: 9,
		}}}, "01010000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000082a0abfef962030587ad4b01264151494843416b4b4377774e44673851455249544642555742414d463241514a4467775266516f7264657273"},
	{"start", Envelope{Route: []byte("orders"), Timestamp: vectorTime + 1, From: dedup.Position{Topic: 3, Partition: 5, Offset: 1234567},
		Outcome: &OutcomeEnvelope{Kind: dedup.OutcomeStart, StartID: []byte("x7"), Token: dedup.Token{
			NamespaceID: 2, Partition: 4, Digest: digestOf(7), At: dedup.Position{Topic: 3, Partition: 5, Offset: 600}, Attempt: 9,
		}}}, "01010000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000082a0abfef962030587ad4b05264151494843416b4b4377774e44673851455249544642555742414d463241514a4467775266510278376f7264657273"},
	{"renewal without a start id", Envelope{Route: []byte("orders"), Timestamp: vectorTime + 1, From: dedup.Position{Topic: 3, Partition: 5, Offset: 1234567},
		Outcome: &OutcomeEnvelope{Kind: dedup.OutcomeRenew, Token: dedup.Token{
			NamespaceID: 2, Partition: 4, Digest: digestOf(7), At: dedup.Position{Topic: 3, Partition: 5, Offset: 600}, Attempt: 9,
		}}}, "01010000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000082a0abfef962030587ad4b06264151494843416b4b4377774e44673851455249544642555742414d463241514a446777526651006f7264657273"},
	{"with an address", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1,
		From: dedup.Position{Topic: 3, Partition: 5, Offset: 1234567}, ReplyTo: dedup.Address{Partition: 300, Ingress: 0x1122334455667788, Request: 9}}, "0102000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962030587ad4bac02887766554433221109000000000000007369676e616c73"},
	{"details with a shift", Envelope{Route: []byte("orders"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1,
		From:    dedup.Position{Topic: 3, Partition: 5, Offset: 1234567},
		Details: Details{Fingerprint: 0x1122334455667788, Request: "r-1", Adjacent: [2]dedup.Digest{digestOf(1), digestOf(2)}, HasAdjacent: true, Shift: -5400000}}, "0118000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962030587ad4b8877665544332211010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101103722d31ff9693056f7264657273"},
	{"of the ingress", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1, FromIngress: true}, "0104000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef9620000007369676e616c73"},
	{"of the ingress, in place of another request", Envelope{Route: []byte("signals"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1,
		FromIngress: true, ReplyTo: dedup.Address{Partition: 300, Ingress: 0x1122334455667788, Request: 9}, Replaces: dedup.Address{Partition: 2, Ingress: 0x1122334455667788, Request: 7}}, "0146000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962000000" + "ac0288776655443322110900000000000000" + "0288776655443322110700000000000000" + "7369676e616c73"},
	{"of the ingress, with address and details", Envelope{Route: []byte("orders"), Digest: digestOf(0), Key: keyOf(64), EventTime: vectorTime, Timestamp: vectorTime + 1,
		FromIngress: true, ReplyTo: dedup.Address{Partition: 300, Ingress: 0x1122334455667788, Request: 9},
		Details: Details{Fingerprint: 0x1122334455667788, Request: "r-1", Adjacent: [2]dedup.Digest{digestOf(1), digestOf(2)}, HasAdjacent: true}}, "010e000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962000000ac02887766554433221109000000000000008877665544332211010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101103722d316f7264657273"},
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

// TestDamagedEnvelopeIsRefused decodes envelopes that are cut short or out of range.
func TestDamagedEnvelopeIsRefused(t *testing.T) {
	for _, v := range envelopeVectors {
		whole := v.envelope.Append(nil)
		fixed := len(whole) - len(v.envelope.Route)
		for n := range fixed {
			var e Envelope
			if err := e.decode(whole[:n]); !errors.Is(err, errEnvelope) {
				t.Errorf("%s: %d of %d bytes: %v", v.name, n, fixed, err)
			}
		}
	}
	good := envelopeVectors[0].envelope.Append(nil)
	tests := map[string][]byte{
		"another version":        append([]byte{2}, good[1:]...),
		"unknown flag":           append([]byte{1, 128}, good[2:]...),
		"topic out of range":     append(append(bytes.Clone(good[:50]), 0, 0), unhex(t, "808004 00 00")...),
		"partition out of range": append(append(bytes.Clone(good[:50]), 0, 0), unhex(t, "00 8080808008 00")...),
		"offset out of range":    append(append(bytes.Clone(good[:50]), 0, 0), unhex(t, "00 00 80808080808080808001")...),
		"varint without end":     append(bytes.Clone(good[:50]), bytes.Repeat([]byte{0xff}, 20)...),
	}
	for name, b := range tests {
		var e Envelope
		if err := e.decode(b); !errors.Is(err, errEnvelope) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, rec := range map[string]*kgo.Record{
		"no headers":           {Topic: "app-repartition", Partition: 1, Offset: 2},
		"another header first": {Topic: "app-repartition", Partition: 1, Offset: 2, Headers: []kgo.RecordHeader{{Key: "x"}, {Key: EnvelopeHeader, Value: good}}},
		"damaged":              {Topic: "app-repartition", Partition: 1, Offset: 2, Headers: []kgo.RecordHeader{{Key: EnvelopeHeader, Value: good[:10]}}},
	} {
		var e Envelope
		if err := ReadEnvelope(rec, &e); !errors.Is(err, errEnvelope) || !strings.Contains(err.Error(), "app-repartition/1/2") {
			t.Errorf("%s: %v", name, err)
		}
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
