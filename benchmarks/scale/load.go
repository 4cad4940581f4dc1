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

// The window of the measured route, and the life of a key that it gives. The grace
// period is 0, so a key expires two windows behind stream time.
const (
	window    = 12 * time.Hour
	retention = 2 * window
)

// load writes the events of one input topic: trade signals of about 230 bytes,
// partitioned by key. Keys are numbered from 0 in the order of their first events.
//
// Event time follows the number of keys, not a clock: horizon keys take one
// retention. So no key expires before there are horizon keys; after that one expires
// for each new key, at every rate.
type load struct {
	topic      string
	partitions int
	duplicates int // percent of the events
	old        int // percent of the duplicates
	horizon    int // live keys, at most
	start      time.Time

	seeds  []string
	client *kgo.Client
	random *rand.Rand
	values []byte // buffer of the next values

	events, keys int // written so far
	// ends has, for each partition, the offset after the last record that
	// read_committed consumers may read.
	ends []atomic.Int64
	fail atomic.Pointer[error] // the first record that the broker rejected
}

// loadAge is the age of the first event time: more than event time advances, because
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

// nearKeys is the maximum distance of most duplicates from their original, in keys.
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
		// A tenth of the window is left for partitions that are ahead of others.
		inWindow := l.horizon * 9 / 20
		id -= 1 + l.random.IntN(min(l.keys, inWindow))
	default:
		id -= nearKeys
	}
	at := l.start.Add(time.Duration(float64(l.keys) / float64(l.horizon) * float64(retention)))
	value := l.value(id)
	return &kgo.Record{Key: value[len(valueHead)-len(keyPrefix) : len(valueHead)+keyDigits], Value: value, Timestamp: at, Partition: int32(id % l.partitions)}
}

// A value is head, the key's number in a fixed number of digits, and tail. The
// record's key is the trace id in it.
const (
	keyPrefix = "trace-"
	keyDigits = 12
	valueHead = `{"traceId":"` + keyPrefix
	valueTail = `","symbol":"BTCUSDT","exchange":"BINANCE","action":"buy","price":"40000.25","quantity":"0.50","strategy":"breakout-v3","interval":"15m","timestamp":"2026-11-20T10:00:00Z","comment":"long entry on close above band"}`
)

// value returns the payload of a key. It allocates memory for many values at once,
// because the generator shares the machine with the measured processes.
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

// brakeEvery is the number of events between two calls of brake.
const brakeEvery = 1000

// stream writes events until there are that many keys. After every brakeEvery events
// it calls brake, which may wait.
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

// pace returns a brake for that many events a second.
func (l *load) pace(rate int) func(context.Context) error {
	began, from := time.Now(), l.events
	return func(ctx context.Context) error {
		due := time.Duration(float64(l.events-from) / float64(rate) * float64(time.Second))
		return kafkatest.Pause(ctx, due-time.Since(began))
	}
}

// A backlog has written events that no consumer can read, because their transaction
// is open. release commits it with one request: the measured app then finds all of
// it, and the generator is idle.
type backlog struct {
	l      *load
	client *kgo.Client
	ends   []atomic.Int64
	events int
}

// backlogTimeout limits the time to write a backlog and commit it: the maximum of
// brokers.
const backlogTimeout = 15 * time.Minute

// hold writes a backlog of n events, for release or drop.
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

// release makes the backlog visible.
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
