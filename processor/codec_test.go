package processor

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

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

func fromHex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// TestPartitionHashIsPinned: with another hash every key moves away from its row.
func TestPartitionHashIsPinned(t *testing.T) {
	for _, v := range partitionVectors {
		digest := dedup.Digest(fromHex(t, v.digest))
		sum := binary.LittleEndian.Uint64(fromHex(t, v.hash))
		if got, want := newHasher([16]byte(fromHex(t, v.secret)), math.MaxInt32).partition(&digest), int32(sum%math.MaxInt32); got != want {
			t.Errorf("digest %s under secret %s: partition %d of the most there can be, want %d", v.digest, v.secret, got, want)
		}
		for partitions, want := range map[int32]int32{1: 0, 7: v.of7, 12: v.of12, 1000: v.of1000} {
			if got := newHasher([16]byte(fromHex(t, v.secret)), partitions).partition(&digest); got != want {
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
