package kafka

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// sealed returns a batch of some records from an offset on, with attributes, as a log has it.
func sealed(first int64, records int32, attributes int16, payload string) []byte {
	b := kmsg.RecordBatch{FirstOffset: first, Magic: batchMagic, Attributes: attributes, LastOffsetDelta: records - 1, ProducerID: 7, NumRecords: records, Records: []byte(payload)}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[batchLengthAt:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[batchSumAt:], crc32.Checksum(raw[batchSummedAt:], castagnoli))
	return raw
}

// TestCorruptBatchIsFoundByItsNeighbours: nothing that a batch with a wrong checksum says of itself decides what is left
// out with it, and no committed record is before it.
func TestCorruptBatchIsFoundByItsNeighbours(t *testing.T) {
	t.Parallel()
	payload := strings.Repeat("x", 67) // a batch has 128 bytes: one bit of its length more takes the one behind it
	flip := func(b []byte, at int, bits byte) []byte { b[at] ^= bits; return b }
	bad := func(first int64) []byte { return flip(sealed(first, 3, 0, payload), batchHeaderBytes+9, 1) }
	for name, c := range map[string]struct {
		log     [][]byte
		end     int64
		aborted bool
		want    [2]int64 // first and next offset; 0 for no batch
		noEnd   bool
	}{
		"right":                          {log: [][]byte{sealed(10, 3, 0, payload)}, end: 13},
		"between":                        {log: [][]byte{bad(10), sealed(13, 3, 0, payload)}, end: 16, want: [2]int64{10, 13}},
		"last":                           {log: [][]byte{bad(10)}, end: 13, want: [2]int64{10, 13}},
		"position inside":                {log: [][]byte{bad(8), sealed(11, 3, 0, payload)}, end: 14, want: [2]int64{10, 11}},
		"behind a committed record":      {log: [][]byte{sealed(10, 1, 0, payload), bad(11)}, end: 14},
		"behind an aborted transaction":  {log: [][]byte{sealed(10, 1, batchTransactional, payload), bad(11)}, end: 14, aborted: true, want: [2]int64{11, 14}},
		"behind a control record":        {log: [][]byte{sealed(10, 1, batchTransactional|batchControl, payload), bad(11)}, end: 14, want: [2]int64{11, 14}},
		"open transaction behind":        {log: [][]byte{bad(10)}, end: 20, noEnd: true},
		"two of them":                    {log: [][]byte{bad(10), bad(13)}, end: 16, noEnd: true},
		"cut off behind":                 {log: [][]byte{bad(10), sealed(13, 3, 0, payload)[:90]}, end: 16, noEnd: true},
		"last offset damaged":            {log: [][]byte{flip(sealed(10, 3, 0, payload), batchLastDeltaAt+3, 64), sealed(13, 3, 0, payload)}, end: 16, want: [2]int64{10, 13}},
		"last offset damaged, last":      {log: [][]byte{flip(sealed(10, 3, 0, payload), batchLastDeltaAt+3, 64)}, end: 13, noEnd: true},
		"length takes the next":          {log: [][]byte{flip(sealed(10, 3, 0, payload), batchLengthAt+2, 1)}, end: 16, noEnd: true},
		"length takes the next whole":    {log: [][]byte{flip(sealed(10, 3, 0, payload), batchLengthAt+3, 128), sealed(13, 3, 0, payload), sealed(16, 3, 0, payload)}, end: 19, noEnd: true},
		"length ends inside":             {log: [][]byte{flip(sealed(10, 3, 0, payload), batchLengthAt+3, 32), sealed(13, 3, 0, payload)}, end: 16, noEnd: true},
		"another format":                 {log: [][]byte{flip(bad(10), batchMagicAt, 3), sealed(13, 3, 0, payload)}, end: 16, noEnd: true},
		"batch behind it begins earlier": {log: [][]byte{bad(10), sealed(9, 3, 0, payload)}, end: 16, noEnd: true},
		"batch behind it is not there":   {log: [][]byte{bad(10), sealed(900, 3, 0, payload)}, end: 16, noEnd: true},
		"length is negative":             {log: [][]byte{flip(sealed(10, 3, 0, payload), batchLengthAt, 128)}, end: 13, noEnd: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &kmsg.FetchResponseTopicPartition{HighWatermark: c.end}
			for _, b := range c.log {
				p.RecordBatches = append(p.RecordBatches, b...)
			}
			if c.aborted {
				p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{{ProducerID: 7, FirstOffset: 10}}
			}
			batch, next, err := corruptIn(p, 10)
			if errors.Is(err, errNoEnd) != c.noEnd {
				t.Errorf("error %v", err)
			}
			var got [2]int64
			if batch != nil {
				got = [2]int64{batch.Offset, batch.NextOffset}
			}
			if got != c.want {
				t.Errorf("found %v, want %v", got, c.want)
			}
			if batch == nil && err == nil && name != "right" && next != 10 {
				t.Errorf("goes on at %d", next)
			}
		})
	}
}
