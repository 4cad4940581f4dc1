package judge

import (
	"iter"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// Keys derives the keys of the records of a worker, in their order. A key depends on its
// record alone. So with many records they are derived on a goroutine of their own, ahead of
// the decisions, and no verdict changes by that.
type Keys struct {
	deriver *rules.Deriver
	seconds prometheus.Histogram
	samples uint
	input   rules.Input
	chunks  []chunk
	// AheadMin is how many records of a partition are derived ahead; fewer are not, so that
	// an idle worker is as fast as ever.
	AheadMin int
}

// chunk has the derived keys of consecutive records.
type chunk struct {
	records []*kgo.Record
	derived [chunkRecords]rules.Derived
}

// The numbers are those of a prototype that was measured. Others were not tried here.
const (
	aheadMin     = 512
	chunkRecords = 256 // longer ones leave the first decisions without work
	chunksAhead  = 4
)

// NewKeys returns the keys of one worker.
func NewKeys(deriver *rules.Deriver, metrics *Metrics) *Keys {
	return &Keys{deriver: deriver, seconds: metrics.keyDerivationSeconds, AheadMin: aheadMin}
}

// Release drops what it has of the last records. No iteration may be in progress.
func (k *Keys) Release() {
	k.deriver.Release()
	k.input = rules.Input{}
	for i := range k.chunks {
		k.chunks[i].records = nil
	}
}

// Of returns the records with their keys. A key is valid until the next one.
func (k *Keys) Of(records []*kgo.Record) iter.Seq2[*kgo.Record, *rules.Derived] {
	return func(yield func(*kgo.Record, *rules.Derived) bool) {
		if len(records) >= k.AheadMin {
			k.ahead(records, yield)
			return
		}
		var derived rules.Derived
		for _, rec := range records {
			k.derive(rec, &derived)
			if !yield(rec, &derived) {
				return
			}
		}
	}
}

// ahead derives chunk after chunk on a goroutine, as long as a chunk is free, while yield has
// the one before. The goroutine has ended when ahead returns, because both use the deriver.
func (k *Keys) ahead(records []*kgo.Record, yield func(*kgo.Record, *rules.Derived) bool) {
	if k.chunks == nil {
		k.chunks = make([]chunk, chunksAhead)
	}
	free, ready := make(chan *chunk, chunksAhead), make(chan *chunk, chunksAhead)
	for i := range k.chunks {
		free <- &k.chunks[i]
	}
	go func() {
		defer close(ready)
		for part := range slices.Chunk(records, chunkRecords) {
			c := <-free
			if c == nil {
				return // closed
			}
			c.records = part
			for i, rec := range part {
				k.derive(rec, &c.derived[i])
			}
			ready <- c
		}
	}()
	defer func() {
		close(free)
		for range ready { // until the goroutine has ended
		}
	}()
	for c := range ready {
		for i, rec := range c.records {
			if !yield(rec, &c.derived[i]) {
				return
			}
		}
		free <- c
	}
}

// derive derives the key of a record, timed for one in sampleEvery.
func (k *Keys) derive(rec *kgo.Record, derived *rules.Derived) {
	wire.SetInput(&k.input, rec)
	if k.samples++; k.samples%sampleEvery != 0 {
		k.deriver.DeriveTo(derived, &k.input)
		return
	}
	began := time.Now()
	k.deriver.DeriveTo(derived, &k.input)
	k.seconds.Observe(time.Since(began).Seconds())
}
