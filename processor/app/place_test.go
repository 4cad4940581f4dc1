package app

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"testing"

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

// TestPartitionHashIsPinned pins the hash: with another one, keys would get other
// partitions than their rows.
func TestPartitionHashIsPinned(t *testing.T) {
	for _, v := range partitionVectors {
		digest := dedup.Digest(fromHex(t, v.digest))
		sum := binary.LittleEndian.Uint64(fromHex(t, v.hash))
		if got, want := newHasher([16]byte(fromHex(t, v.secret)), math.MaxInt32).Partition(&digest), int32(sum%math.MaxInt32); got != want {
			t.Errorf("digest %s under secret %s: partition %d of math.MaxInt32, want %d", v.digest, v.secret, got, want)
		}
		for partitions, want := range map[int32]int32{1: 0, 7: v.of7, 12: v.of12, 1000: v.of1000} {
			if got := newHasher([16]byte(fromHex(t, v.secret)), partitions).Partition(&digest); got != want {
				t.Errorf("digest %s under secret %s: partition %d of %d, want %d", v.digest, v.secret, got, partitions, want)
			}
		}
	}
}

// TestPartitionsShareTheKeys requires an even distribution of the keys, and another
// one with another secret.
func TestPartitionsShareTheKeys(t *testing.T) {
	const keys, partitions = 12_000, 12
	one, two := newHasher([16]byte{1}, partitions), newHasher([16]byte{2}, partitions)
	var counts [partitions]int
	moved := 0
	for n := range keys {
		var d dedup.Digest
		binary.BigEndian.PutUint64(d[8:], uint64(n)) // more similar than real digests
		p := one.Partition(&d)
		counts[p]++
		if p != two.Partition(&d) {
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

// TestTransactionalIDsNameOneWorker: ids are joined of names that may have dashes and
// digits, and still no two workers share one.
func TestTransactionalIDsNameOneWorker(t *testing.T) {
	names := []string{"orders", "orders-eu", "eu-1", "1", "orders-dedup-0", "dedup-0", "route", "dedup", "orders-dedup", "a.b_c"}
	seen := map[string]string{}
	for _, app := range names {
		for _, instance := range names {
			for _, stage := range []string{"route", "dedup"} {
				for _, worker := range []int{0, 1, 10} {
					id := TransactionalID(app, stage, worker, instance)
					of := fmt.Sprintf("app %s, instance %s, %s worker %d", app, instance, stage, worker)
					if other := seen[id]; other != "" {
						t.Errorf("%s is the id of %s and of %s", id, other, of)
					}
					if !strings.HasPrefix(id, app+"-") {
						t.Errorf("%s does not begin with %s-, the prefix that the app's rights name", id, app)
					}
					seen[id] = of
				}
			}
		}
	}
}
