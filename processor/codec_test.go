package processor

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

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
//	    return (b'\x01' + bytes(range(d, d+16)) + bytes(range(k, k+32)) + s(at) + s(ts) + u(topic) + u(part) + u(off) + route).hex()
//	print(env(0, 64, 1700000000000, 1700000000001, 3, 5, 1234567, b'signals'))
//	print(env(16, 128, 0, 0, 0, 0, 0, b'r'))
//	print(env(1, 2, -1, -2**63, 65535, 2**31-1, 2**63-1, b''))
//	# the others by hand, with the same functions and a token of TestTokenGolden's
var envelopeVectors = []struct {
	name     string
	envelope envelope
	hex      string
}{
	{"plain", envelope{route: []byte("signals"), digest: digestOf(0), key: keyOf(64), eventTime: testTime, timestamp: testTime + 1,
		from: dedup.Position{Topic: 3, Partition: 5, Offset: 1234567}}, "01000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962030587ad4b7369676e616c73"},
	{"zero", envelope{route: []byte("r"), digest: digestOf(16), key: keyOf(128)}, "01101112131415161718191a1b1c1d1e1f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f000000000072"},
	{"limits", envelope{route: []byte{}, digest: digestOf(1), key: keyOf(2), eventTime: -1, timestamp: math.MinInt64,
		from: dedup.Position{Topic: math.MaxUint16, Partition: math.MaxInt32, Offset: math.MaxInt64}}, "010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202101ffffffffffffffffff01ffff03ffffffff07ffffffffffffffff7f"},
	{"details", envelope{route: []byte("orders"), digest: digestOf(0), key: keyOf(64), eventTime: testTime, timestamp: testTime + 1,
		from:    dedup.Position{Topic: 3, Partition: 5, Offset: 1234567},
		details: details{fingerprint: 0x1122334455667788, request: "r-1", near: [2]dedup.Digest{digestOf(1), digestOf(2)}, hasNear: true}}, "02000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962030587ad4b8877665544332211010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101103722d316f7264657273"},
	{"a request id alone", envelope{route: []byte("orders"), digest: digestOf(0), key: keyOf(64), eventTime: testTime, timestamp: testTime + 1,
		from: dedup.Position{Topic: 3, Partition: 5, Offset: 1234567}, details: details{request: "r-1"}}, "02000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962030587ad4b00000000000000000003722d316f7264657273"},
	{"outcome", envelope{route: []byte("orders"), timestamp: testTime + 1, from: dedup.Position{Topic: 3, Partition: 5, Offset: 1234567},
		outcome: &outcomeEnvelope{kind: dedup.OutcomeCompleted, token: dedup.Token{
			Class: 2, Partition: 4, Digest: digestOf(7), At: dedup.Position{Topic: 3, Partition: 5, Offset: 600}, Attempt: 9,
		}}}, "030000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000082a0abfef962030587ad4b01264151494843416b4b4377774e44673851455249544642555742414d463241514a4467775266516f7264657273"},
	{"asked", envelope{route: []byte("signals"), digest: digestOf(0), key: keyOf(64), eventTime: testTime, timestamp: testTime + 1,
		from: dedup.Position{Topic: 3, Partition: 5, Offset: 1234567}, ask: dedup.Address{Partition: 300, Front: 0x1122334455667788, Ask: 9}}, "04000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962030587ad4b01ac02887766554433221109000000000000007369676e616c73"},
	{"details with a shift", envelope{route: []byte("orders"), digest: digestOf(0), key: keyOf(64), eventTime: testTime, timestamp: testTime + 1,
		from:    dedup.Position{Topic: 3, Partition: 5, Offset: 1234567},
		details: details{fingerprint: 0x1122334455667788, request: "r-1", near: [2]dedup.Digest{digestOf(1), digestOf(2)}, hasNear: true, shift: -5400000}}, "04000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962030587ad4b0c8877665544332211010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101103722d31ff9693056f7264657273"},
	{"of a front", envelope{route: []byte("signals"), digest: digestOf(0), key: keyOf(64), eventTime: testTime, timestamp: testTime + 1, here: true}, "04000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef962000000027369676e616c73"},
	{"of a front that asks, with details", envelope{route: []byte("orders"), digest: digestOf(0), key: keyOf(64), eventTime: testTime, timestamp: testTime + 1,
		here: true, ask: dedup.Address{Partition: 300, Front: 0x1122334455667788, Ask: 9},
		details: details{fingerprint: 0x1122334455667788, request: "r-1", near: [2]dedup.Digest{digestOf(1), digestOf(2)}, hasNear: true}}, "04000102030405060708090a0b0c0d0e0f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f80a0abfef96282a0abfef96200000007ac02887766554433221109000000000000008877665544332211010102030405060708090a0b0c0d0e0f1002030405060708090a0b0c0d0e0f101103722d316f7264657273"},
}

// TestEnvelopeEncoding: records of other versions of oncebus lie in the topic,
// so every byte is pinned.
func TestEnvelopeEncoding(t *testing.T) {
	for _, v := range envelopeVectors {
		encoded := v.envelope.append(nil)
		if got := hex.EncodeToString(encoded); got != v.hex {
			t.Errorf("%s: got %s, want %s", v.name, got, v.hex)
		}
		if n := v.envelope.size(); len(encoded) > n {
			t.Errorf("%s: %d bytes, more than the %d it may need", v.name, len(encoded), n)
		}
		var back envelope
		if err := back.decode(unhex(t, v.hex)); err != nil || !reflect.DeepEqual(back, v.envelope) {
			t.Errorf("%s: decoded to %+v, %v", v.name, back, err)
		}
	}
}

// TestDamagedEnvelopeIsRefused: none is half understood.
func TestDamagedEnvelopeIsRefused(t *testing.T) {
	for _, v := range envelopeVectors {
		whole := v.envelope.append(nil)
		fixed := len(whole) - len(v.envelope.route)
		for n := range fixed {
			var e envelope
			if err := e.decode(whole[:n]); !errors.Is(err, errEnvelope) {
				t.Errorf("%s: %d of %d bytes: %v", v.name, n, fixed, err)
			}
		}
	}
	good := envelopeVectors[0].envelope.append(nil)
	tests := map[string][]byte{
		"another version":        append([]byte{5}, good[1:]...),
		"topic out of range":     append(append(bytes.Clone(good[:49]), 0, 0), unhex(t, "808004 00 00")...),
		"partition out of range": append(append(bytes.Clone(good[:49]), 0, 0), unhex(t, "00 8080808008 00")...),
		"offset out of range":    append(append(bytes.Clone(good[:49]), 0, 0), unhex(t, "00 00 80808080808080808001")...),
		"varint without end":     append(bytes.Clone(good[:49]), bytes.Repeat([]byte{0xff}, 20)...),
	}
	for name, b := range tests {
		var e envelope
		if err := e.decode(b); !errors.Is(err, errEnvelope) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, rec := range map[string]*kgo.Record{
		"no headers":           {Topic: "app-repartition", Partition: 1, Offset: 2},
		"another header first": {Topic: "app-repartition", Partition: 1, Offset: 2, Headers: []kgo.RecordHeader{{Key: "x"}, {Key: envelopeHeader, Value: good}}},
		"damaged":              {Topic: "app-repartition", Partition: 1, Offset: 2, Headers: []kgo.RecordHeader{{Key: envelopeHeader, Value: good[:10]}}},
	} {
		var e envelope
		if err := readEnvelope(rec, &e); !errors.Is(err, errEnvelope) || !strings.Contains(err.Error(), "app-repartition/1/2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// checkpointVectors were computed with the functions above:
//
//	def cp(next, epoch, seq, times): return (b'\x01' + s(next) + s(epoch) + s(seq) + b''.join(bytes([c]) + s(t) for c, t in times)).hex()
//	print(cp(0, -1, 0, []))
//	print(cp(1234567, 7, 99, [(0, 1700000000000), (255, -5)]))
//	print(cp(2**63-1, 2**31-1, 2**63-1, [(1, 2**63-1), (2, -2**63)]))
func checkpointVectors() map[string]checkpoint {
	plain := checkpoint{next: 1234567, epoch: 7, sequence: 99}
	plain.streamTimes.at[0], plain.streamTimes.has[0] = testTime, true
	plain.streamTimes.at[255], plain.streamTimes.has[255] = -5, true
	limits := checkpoint{next: math.MaxInt64, epoch: math.MaxInt32, sequence: math.MaxInt64}
	limits.streamTimes.at[1], limits.streamTimes.has[1] = math.MaxInt64, true
	limits.streamTimes.at[2], limits.streamTimes.has[2] = math.MinInt64, true
	// Counted, one class up to 300; withheld are 20, and 128 to 257.
	withheld := checkpoint{
		next: 10, epoch: -1, counted: true, passed: []passed{{2, 300}},
		withheld: []stretch{{20, 21}, {128, 258}},
	}
	return map[string]checkpoint{"041401000103" + "02ac02" + "02" + "1401" + "6b8201" + "00": withheld, "01000100": {epoch: -1}, "018eda96010ec6010080a0abfef962ff09": plain, "01feffffffffffffffff01feffffff0ffeffffffffffffffff0101feffffffffffffffff0102ffffffffffffffffff01": limits}
}

// TestCheckpointEncoding: a changelog outlives the build that wrote it.
func TestCheckpointEncoding(t *testing.T) {
	for want, c := range checkpointVectors() {
		if got := hex.EncodeToString(c.append(nil)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if back, err := decodeCheckpoint(unhex(t, want)); err != nil || !reflect.DeepEqual(back, c) {
			t.Errorf("%s decoded to %+v, %v", want, back, err)
		}
	}
}

// TestWithheldStretches: they are apart, ascending and bounded, whatever the
// order in which they come, and those behind the next offset are dropped.
func TestWithheldStretches(t *testing.T) {
	c := checkpoint{passed: []passed{{1, 1 << 20}}}
	for _, s := range []stretch{{40, 41}, {10, 12}, {12, 13}, {20, 21}, {10, 11}, {15, 30}, {41, 45}, {0, 1}} {
		c.withhold(s.from, s.to)
	}
	if got := fmt.Sprint(c.withheld); got != "[{0 1} {10 13} {15 30} {40 45}]" {
		t.Errorf("withheld are %s", got)
	}
	for offset, want := range map[int64]bool{0: true, 1: false, 9: false, 10: true, 12: true, 13: false, 29: true, 30: false, 44: true, 45: false} {
		if c.withholds(offset) != want {
			t.Errorf("%d is withheld: %v", offset, !want)
		}
	}
	for next, want := range map[int64]string{0: "[{0 1} {10 13} {15 30} {40 45}]", 13: "[{15 30} {40 45}]", 29: "[{15 30} {40 45}]", 45: "[]", 1 << 20: "[]"} {
		behind := c
		behind.next = next
		if behind.forgetPassed(); fmt.Sprint(behind.withheld) != want || behind.passed == nil != (next == 1<<20) {
			t.Errorf("at %d %v is withheld of %v, want %s", next, behind.withheld, behind.passed, want)
		}
	}
	for n := range int64(2 * withheldMax) {
		c.withhold(100+2*n, 101+2*n)
	}
	back, err := decodeCheckpoint(c.append(nil))
	if err != nil || len(c.withheld) != withheldMax || !reflect.DeepEqual(back, c) {
		t.Errorf("%d of %d stretches came back: %v", len(back.withheld), len(c.withheld), err)
	}
	if n := len(c.append(nil)); n > 10<<10 {
		t.Errorf("%d bytes", n)
	}
}

// TestDamagedCheckpointIsRefused: a task must not go on from a guess.
func TestDamagedCheckpointIsRefused(t *testing.T) {
	good := unhex(t, "018eda96010ec6010080a0abfef962ff09")
	whole := map[int]bool{len(good): true}
	for at := range good { // where a checkpoint may end: after its fields and after each stream time
		if c, err := decodeCheckpoint(good[:at]); err == nil {
			whole[at] = true
			if again := c.append(nil); !bytes.Equal(again, good[:at]) {
				t.Errorf("%d bytes were taken for %+v", at, c)
			}
		} else if !errors.Is(err, errCheckpoint) {
			t.Errorf("%d bytes: %v", at, err)
		}
	}
	if len(whole) != 3 {
		t.Errorf("%d prefixes were taken for whole, want 3: no, one, two stream times", len(whole))
	}
	for name, b := range map[string]string{
		"empty": "", "another version": "02 00 01 00", "negative next": "01 01 01 00", "epoch below -1": "01 00 03 00", "epoch too large": "01 00 8080808010 00",
		"class without time": "01 00 01 00 05",
		"flag of passed":     "04 14 01 00 01 05 02 ac02 00", "withheld without a class": "04 14 01 00 00 03 01 14 01 00", "nothing withheld": "04 14 01 00 01 03 02 ac02 00 00",
		"withheld cut short": "04 14 01 00 01 02 02 ac02 02 14 01", "stretches that touch": "04 14 01 00 01 02 02 ac02 02 14 01 00 01",
		"empty stretch": "04 14 01 00 01 02 02 ac02 01 14 00", "stretch out of range": "04 14 01 00 01 02 02 ac02 01 14 ffffffffffffffff7f",
	} {
		if c, err := decodeCheckpoint(unhex(t, b)); !errors.Is(err, errCheckpoint) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func FuzzEnvelope(f *testing.F) {
	for _, v := range envelopeVectors {
		f.Add(unhex(f, v.hex))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again envelope
		if err := e.decode(b); err != nil {
			if !errors.Is(err, errEnvelope) {
				t.Fatalf("%v is no %v", err, errEnvelope)
			}
			return
		}
		// A varint may be written longer than need be, so bytes may differ, but meaning may not.
		if err := again.decode(e.append(nil)); err != nil || !reflect.DeepEqual(e, again) {
			t.Fatalf("%+v came back as %+v, %v", e, again, err)
		}
	})
}

func FuzzCheckpoint(f *testing.F) {
	for v := range checkpointVectors() {
		f.Add(unhex(f, v))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCheckpoint(b)
		if err != nil {
			if !errors.Is(err, errCheckpoint) {
				t.Fatalf("%v is no %v", err, errCheckpoint)
			}
			return
		}
		if again, err := decodeCheckpoint(c.append(nil)); err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%+v came back as %+v, %v", c, again, err)
		}
	})
}

// partitionVectors were computed with OpenSSL 3:
//
//	printf %s $DIGEST | xxd -r -p | openssl mac -macopt size:8 -macopt hexkey:$SECRET SIPHASH
//
// which prints the hash with its lowest byte first, and python3's
// int.from_bytes(bytes.fromhex(HASH), 'little') % PARTITIONS. The first row is
// the vector for 16 bytes of the reference implementation
// (github.com/veorq/SipHash, vectors_sip64).
var partitionVectors = []struct {
	secret, digest, hash string
	of1000, of12, of7    int32
}{

	{"000102030405060708090a0b0c0d0e0f", "000102030405060708090a0b0c0d0e0f", "db9bc2577fcc2a3f", 91, 11, 4},
	{"ffffffffffffffffffffffffffffffff", "00000000000000000000000000000000", "cf155f6a72e6c835", 431, 3, 4},
	{"00112233445566778899aabbccddeeff", "deadbeefdeadbeefdeadbeefdeadbeef", "919462c80c712efc", 49, 9, 4},
}

// TestPartitionHashIsPinned: with another hash every key moves away from its row.
func TestPartitionHashIsPinned(t *testing.T) {
	for _, v := range partitionVectors {
		digest := dedup.Digest(unhex(t, v.digest))
		sum := binary.LittleEndian.Uint64(unhex(t, v.hash))
		if got, want := newHasher([16]byte(unhex(t, v.secret)), math.MaxInt32).partition(&digest), int32(sum%math.MaxInt32); got != want {
			t.Errorf("digest %s under secret %s: partition %d of the most there can be, want %d", v.digest, v.secret, got, want)
		}
		for partitions, want := range map[int32]int32{1: 0, 7: v.of7, 12: v.of12, 1000: v.of1000} {
			if got := newHasher([16]byte(unhex(t, v.secret)), partitions).partition(&digest); got != want {
				t.Errorf("digest %s under secret %s: partition %d of %d, want %d", v.digest, v.secret, got, partitions, want)
			}
		}
	}
}

// TestPartitionsShareTheKeys: no partition gets much more than its share, and
// another secret shares them out in another way.
func TestPartitionsShareTheKeys(t *testing.T) {
	const keys, partitions = 12_000, 12
	one, two := newHasher([16]byte{1}, partitions), newHasher([16]byte{2}, partitions)
	var counts [partitions]int
	moved := 0
	for n := range keys {
		var d dedup.Digest
		binary.BigEndian.PutUint64(d[8:], uint64(n)) // as alike as digests never are
		p := one.partition(&d)
		counts[p]++
		if p != two.partition(&d) {
			moved++
		}
	}
	for p, n := range counts {
		if n < keys/partitions*8/10 || n > keys/partitions*12/10 {
			t.Errorf("partition %d has %d of %d keys", p, n, keys)
		}
	}
	if moved < keys*8/10 {
		t.Errorf("only %d of %d keys moved with the secret", moved, keys)
	}
}

// TestArenaPiecesAreApart: every piece is zero, as long as asked for, and
// nobody else's, across chunks and beyond their length.
func TestArenaPiecesAreApart(t *testing.T) {
	var a arena[int]
	for round := range 3 {
		var pieces [][]int
		for n := range 300 {
			size := []int{1, 0, 17, arenaChunk - 1, 3, arenaChunk, 2 * arenaChunk, 100}[n%8]
			piece := a.take(size)
			if len(piece) != size || cap(piece) != size {
				t.Fatalf("round %d: asked for %d, got %d of %d", round, size, len(piece), cap(piece))
			}
			for i, v := range piece {
				if v != 0 {
					t.Fatalf("round %d, piece %d: element %d is %d before anybody wrote it", round, n, i, v)
				}
				piece[i] = n + 1
			}
			pieces = append(pieces, piece)
		}
		for n, piece := range pieces {
			for i, v := range piece {
				if v != n+1 {
					t.Fatalf("round %d: element %d of piece %d was written by piece %d", round, i, n, v-1)
				}
			}
		}
		a.reset()
	}
}

// TestArenaLetsGoOnReset: what pieces pointed to can be collected, all of it,
// although the chunks stay.
func TestArenaLetsGoOnReset(t *testing.T) {
	var a arena[*int]
	for range 3 * arenaChunk {
		a.take(1)[0] = new(int)
	}
	a.take(2 * arenaChunk)[0] = new(int)
	a.reset()
	for c, chunk := range a.chunks {
		for i, p := range chunk {
			if p != nil {
				t.Fatalf("chunk %d still points to something at %d", c, i)
			}
		}
	}
}

// TestWarmArenaAllocatesNothing: after its largest transaction a worker builds
// records without the allocator.
func TestWarmArenaAllocatesNothing(t *testing.T) {
	var a arena[kgo.RecordHeader]
	transaction := func() {
		for n := range 2000 {
			a.take(1 + n%13)
		}
		a.take(arenaChunk + 1)
		a.reset()
	}
	transaction()
	if n := testing.AllocsPerRun(20, transaction); n != 0 {
		t.Errorf("%v allocations in a transaction that is no larger than the one before", n)
	}
}
