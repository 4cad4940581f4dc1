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

// Keys derives the dedup keys of a worker's records, in their order. A key depends on its record alone,
// so if there are many records, a goroutine derives the keys ahead of the decisions. That changes no
// verdict.
type Keys struct {
	deriver *rules.Deriver
	seconds prometheus.Histogram
	samples uint
	input   rules.Input
	chunks  []chunk
	// AheadMin is how many records of a partition a poll must have for keys to be derived ahead. With
	// fewer records the goroutine would cost an idle worker more time than it saves.
	AheadMin int
}

// chunk has consecutive records with their derived keys.
type chunk struct {
	records []*kgo.Record
	derived [chunkRecords]rules.Derived
}

// These numbers come from a prototype that was measured; no others were tried.
const (
	aheadMin     = 512
	chunkRecords = 256 // with longer chunks the first decisions wait longer for their keys
	chunksAhead  = 4
)

// NewKeys returns the keys of one worker.
func NewKeys(deriver *rules.Deriver, metrics *Metrics) *Keys {
	return &Keys{deriver: deriver, seconds: metrics.keyDerivationSeconds, AheadMin: aheadMin}
}

// Release drops the references to the last records. No iteration may be in progress.
func (k *Keys) Release() {
	k.deriver.Release()
	k.input = rules.Input{}
	for i := range k.chunks {
		k.chunks[i].records = nil
	}
}

// Of returns the records with their keys. A key is valid only until the iteration reaches the next record.
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

// ahead derives chunk after chunk on a goroutine while yield consumes the chunk before. The goroutine
// waits if no chunk is free. It has ended when ahead returns, because the caller uses the same deriver.
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
				return // free was closed: the consumer has stopped
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
		for range ready { // wait until the goroutine has closed ready
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

// derive derives the key of a record. It times one record in sampleEvery.
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
