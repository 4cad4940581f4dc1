//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"oncebus/processor/kafkatest"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The window of the measured route, and the lifetime of a key that follows from it. The grace period is 0, so a key
// expires two windows behind stream time.
const (
	window    = 12 * time.Hour
	retention = 2 * window
)

// load writes the events of one input topic: trade signals of about 230 bytes, partitioned by their key. Keys are
// numbered from 0 in the order of their first events.
//
// Event time advances with the number of keys, not with a clock: it advances by one retention in horizon keys. No key
// expires, therefore, before there are horizon keys; after that one key expires for each new key, at any rate.
type load struct {
	topic      string
	partitions int
	duplicates int // percent of the events that are duplicates
	old        int // percent of the duplicates that repeat an old event
	horizon    int // the maximal number of live keys
	start      time.Time

	seeds  []string
	client *kgo.Client
	random *rand.Rand
	values []byte // buffer with the next values

	events, keys int // events and keys that have been written
	// ends has, for each partition, the offset after the last record that a read_committed consumer may read.
	ends []atomic.Int64
	fail atomic.Pointer[error] // the error of the first record that the broker rejected
}

// loadAge is how long before now the first event time is. It is longer than event time advances in a run, because
// oncebus judges events from the future as invalid.
const loadAge = 60 * 24 * time.Hour

func newLoad(seeds []string, topic string, partitions, horizon int, s settings) (*load, error) {
	l := &load{
		topic: topic, partitions: partitions, duplicates: s.duplicates, old: s.old, horizon: horizon, start: time.Now().Add(-loadAge),
		seeds: seeds, random: rand.New(rand.NewPCG(1, 2)), ends: make([]atomic.Int64, partitions),
	}
	var err error
	l.client, err = kgo.NewClient(l.options()...)
	return l, err
}

func (l *load) options() []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(l.seeds...), kgo.DefaultProduceTopic(l.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5 * time.Millisecond), kgo.MaxBufferedRecords(100_000),
	}
}

func (l *load) close() { l.client.Close() }

// nearKeys bounds the distance between most duplicates and their originals, in keys.
const nearKeys = 500

// next returns the next event.
func (l *load) next() *kgo.Record {
	id := l.keys
	isDuplicate := l.events*l.duplicates%100 < l.duplicates && l.keys > nearKeys
	l.events++
	switch {
	case !isDuplicate:
		l.keys++
	case l.random.IntN(100) < l.old:
		// Old duplicates are at most nine tenths of the window behind. The last tenth is a reserve, because
		// some partitions are ahead of others.
		inWindow := l.horizon * 9 / 20
		id -= 1 + l.random.IntN(min(l.keys, inWindow))
	default:
		id -= nearKeys
	}
	at := l.start.Add(time.Duration(float64(l.keys) / float64(l.horizon) * float64(retention)))
	value := l.value(id)
	return &kgo.Record{Key: value[len(valueHead)-len(keyPrefix) : len(valueHead)+keyDigits], Value: value, Timestamp: at, Partition: int32(id % l.partitions)}
}

// A value consists of head, the key's number with a fixed number of digits, and tail. The record's key is the trace
// id in the value.
const (
	keyPrefix = "trace-"
	keyDigits = 12
	valueHead = `{"traceId":"` + keyPrefix
	valueTail = `","symbol":"BTCUSDT","exchange":"BINANCE","action":"buy","price":"40000.25","quantity":"0.50","strategy":"breakout-v3","interval":"15m","timestamp":"2026-11-20T10:00:00Z","comment":"long entry on close above band"}`
)

// value returns the payload for a key. It allocates memory for many values at once, because the generator shares the
// machine with the processes that are measured.
func (l *load) value(id int) []byte {
	const size = len(valueHead) + keyDigits + len(valueTail)
	if len(l.values) < size {
		l.values = make([]byte, 1000*size)
	}
	v := l.values[:size:size]
	l.values = l.values[size:]
	copy(v, valueHead)
	for i := len(valueHead) + keyDigits - 1; i >= len(valueHead); i-- {
		v[i] = byte('0' + id%10)
		id /= 10
	}
	copy(v[len(valueHead)+keyDigits:], valueTail)
	return v
}

// keyNumber returns the number of a key.
func keyNumber(key []byte) (int, bool) {
	if len(key) != len(keyPrefix)+keyDigits || string(key[:len(keyPrefix)]) != keyPrefix {
		return 0, false
	}
	n, err := strconv.Atoi(string(key[len(keyPrefix):]))
	return n, err == nil && n >= 0
}

// brakeEvery is how many events are written between two calls of brake.
const brakeEvery = 1000

// stream writes events until there is the given number of keys. After every brakeEvery events it calls brake, which
// may wait.
func (l *load) stream(ctx context.Context, keys int, brake func(context.Context) error) error {
	written := func(r *kgo.Record, err error) {
		if err != nil {
			l.failed(err)
			return
		}
		l.ends[r.Partition].Store(r.Offset + 1)
	}
	for l.keys < keys {
		if l.events%brakeEvery == 0 {
			if err := brake(ctx); err != nil {
				return err
			}
		}
		l.client.Produce(ctx, l.next(), written)
		if err := l.fail.Load(); err != nil {
			return *err
		}
	}
	if err := l.client.Flush(ctx); err != nil {
		return fmt.Errorf("write the input: %w", err)
	}
	if err := l.fail.Load(); err != nil {
		return *err
	}
	return nil
}

func (l *load) failed(err error) {
	err = fmt.Errorf("write the input: %w", err)
	l.fail.CompareAndSwap(nil, &err)
}

// pace returns a brake that limits the rate to the given number of events a second.
func (l *load) pace(rate int) func(context.Context) error {
	began, from := time.Now(), l.events
	return func(ctx context.Context) error {
		due := time.Duration(float64(l.events-from) / float64(rate) * float64(time.Second))
		return kafkatest.Pause(ctx, due-time.Since(began))
	}
}

// backlog has written events that no consumer can read yet, because their transaction is open. release commits
// the transaction with one request. The measured app then reads the whole backlog while the generator is idle.
type backlog struct {
	l      *load
	client *kgo.Client
	ends   []atomic.Int64
	events int
}

// backlogTimeout limits the time to write and commit a backlog. It is the longest transaction timeout that brokers
// allow.
const backlogTimeout = 15 * time.Minute

// hold writes a backlog of n events. The caller releases or drops the backlog.
func (l *load) hold(ctx context.Context, n int) (*backlog, error) {
	client, err := kgo.NewClient(append(l.options(), kgo.TransactionalID(l.topic+"-load"), kgo.TransactionTimeout(backlogTimeout))...)
	if err != nil {
		return nil, err
	}
	b := &backlog{l: l, client: client, ends: make([]atomic.Int64, l.partitions), events: n}
	if err := b.write(ctx); err != nil {
		client.Close()
		return nil, fmt.Errorf("write a backlog of %d events: %w", n, err)
	}
	return b, nil
}

func (b *backlog) write(ctx context.Context) error {
	if err := b.client.BeginTransaction(); err != nil {
		return err
	}
	written := func(r *kgo.Record, err error) {
		if err != nil {
			b.l.failed(err)
			return
		}
		b.ends[r.Partition].Store(r.Offset + 1)
	}
	for range b.events {
		b.client.Produce(ctx, b.l.next(), written)
	}
	if err := b.client.Flush(ctx); err != nil {
		return err
	}
	if err := b.l.fail.Load(); err != nil {
		return *err
	}
	return nil
}

// release commits the transaction, which makes the backlog visible.
func (b *backlog) release(ctx context.Context) error {
	defer b.client.Close()
	if err := b.client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("release the backlog: %w", err)
	}
	for p := range b.ends {
		if end := b.ends[p].Load(); end > 0 {
			b.l.ends[p].Store(end)
		}
	}
	return nil
}

// endOffsets returns the current ends of all partitions.
func (l *load) endOffsets() []int64 {
	ends := make([]int64, l.partitions)
	for p := range ends {
		ends[p] = l.ends[p].Load()
	}
	return ends
}
