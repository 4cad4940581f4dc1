package wire

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// SeedRun identifies one run of the command 'oncebus seed' over a file.
type SeedRun [8]byte

// seedsPrefix begins the record key of seed counts.
const seedsPrefix = "seeds/"

// seedCountsKeyBytes is the length of that key. No other record of a changelog has a key of this
// length.
const seedCountsKeyBytes = len(seedsPrefix) + len(SeedRun{}) + 8 + 4

const seedCountsVersion = 1

// SeedCountsMax is the largest number of entries in TooLate of one record, some 20 KB.
const SeedCountsMax = 4096

// SeedCounts says what became of the seeds of one run in one transaction of a task. The task writes it
// to its changelog in that transaction, so the sum over a changelog counts each seed once.
type SeedCounts struct {
	Run   SeedRun
	Fates [dedup.SeedFates]int64
	// TooLate has the numbers of the seeds whose fate is dedup.SeedTooLate, at most SeedCountsMax.
	TooLate []int64
}

// Total returns the number of seeds.
func (c *SeedCounts) Total() (n int64) {
	for _, one := range c.Fates {
		n += one
	}
	return n
}

// AppendSeedCountsKey appends the key of the nth record of seed counts in a transaction. offset is as
// in AppendPackKey.
func AppendSeedCountsKey(dst []byte, run SeedRun, offset int64, n uint32) []byte {
	dst = append(append(dst, seedsPrefix...), run[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(offset))
	return binary.BigEndian.AppendUint32(dst, n)
}

// IsSeedCounts reports whether a changelog record has seed counts. Such a record has no rows.
func IsSeedCounts(rec *kgo.Record) bool {
	return len(rec.Key) == seedCountsKeyBytes && string(rec.Key[:len(seedsPrefix)]) == seedsPrefix
}

// Append appends the encoding of c:
//
//	version 1 | for each fate: its seeds uvarint | numbers uvarint | for each: the number,
//	as the difference to the one before, varint
func (c *SeedCounts) Append(dst []byte) []byte {
	dst = append(dst, seedCountsVersion)
	for _, n := range c.Fates {
		dst = binary.AppendUvarint(dst, uint64(n))
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.TooLate)))
	before := int64(0)
	for _, number := range c.TooLate {
		dst = binary.AppendVarint(dst, number-before)
		before = number
	}
	return dst
}

// ReadSeedCounts decodes a record of seed counts.
func ReadSeedCounts(rec *kgo.Record) (SeedCounts, error) {
	var c SeedCounts
	copy(c.Run[:], rec.Key[len(seedsPrefix):])
	r := dedup.NewCursor(rec.Value)
	version := r.Byte()
	for i := range c.Fates {
		c.Fates[i] = int64(r.Uvarint(math.MaxInt64))
	}
	number := int64(0)
	for n := r.Uvarint(SeedCountsMax); n > 0 && !r.Bad(); n-- {
		number += r.Varint()
		c.TooLate = append(c.TooLate, number)
	}
	if !r.Done() || version != seedCountsVersion {
		return SeedCounts{}, fmt.Errorf("seed counts in %s/%d/%d: version %d in %d bytes, this build reads %d", rec.Topic, rec.Partition, rec.Offset, version, len(rec.Value), seedCountsVersion)
	}
	return c, nil
}

// noRows yields no row.
func noRows() iter.Seq2[*dedup.Row, error] { return func(func(*dedup.Row, error) bool) {} }
