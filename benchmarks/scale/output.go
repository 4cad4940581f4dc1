//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// reader reads an app's output read_committed and counts every key. It deletes the records that it has read, so that
// the output needs little space on the disk. A reader is not safe for concurrent use.
type reader struct {
	client *kgo.Client
	admin  *kadm.Client
	topic  string
	next   map[int32]int64 // by partition: the offset after the last record, or control record, that was read
	found  tally
}

func newReader(seeds []string, topic string, partitions int) (*reader, error) {
	from := map[int32]kgo.Offset{}
	for p := range partitions {
		from[int32(p)] = kgo.NewOffset().At(0)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return &reader{client: client, admin: kadm.NewClient(client), topic: topic, next: map[int32]int64{}}, nil
}

func (r *reader) close() { r.client.Close() }

// catchUp reads up to the current end of the committed records.
func (r *reader) catchUp(ctx context.Context) error {
	listed, err := r.admin.ListCommittedOffsets(ctx, r.topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return fmt.Errorf("find the end of %s: %w", r.topic, err)
	}
	behind := func() (is bool) {
		listed.Each(func(o kadm.ListedOffset) { is = is || r.next[o.Partition] < o.Offset })
		return is
	}
	for behind() {
		fetches := r.client.PollRecords(ctx, 100_000)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read %s: %w", r.topic, err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			r.next[rec.Partition] = rec.Offset + 1
			if !rec.Attrs.IsControl() { // the last record is a control record
				r.found.add(rec.Key)
			}
		})
	}
	return nil
}

// purge deletes the records that the reader has read.
func (r *reader) purge(ctx context.Context) error { return deleteBelow(ctx, r.admin, r.topic, r.next) }

// deleteBelow deletes the records of a topic below offsets, by partition.
func deleteBelow(ctx context.Context, admin *kadm.Client, topic string, offsets map[int32]int64) error {
	below := kadm.Offsets{}
	for p, o := range offsets {
		if o > 0 {
			below.AddOffset(topic, p, o, -1)
		}
	}
	if len(below) == 0 {
		return nil
	}
	resp, err := admin.DeleteRecords(ctx, below)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return fmt.Errorf("delete the read records of %s: %w", topic, err)
	}
	return nil
}

// tally counts the keys of an output. It has one bit for each key.
type tally struct {
	bits     []uint64
	distinct int
	repeated int // records whose key occurred before
	foreign  int // records with a key that was not sent
}

func (t *tally) add(key []byte) {
	n, ours := keyNumber(key)
	if !ours {
		t.foreign++
		return
	}
	for n/64 >= len(t.bits) {
		t.bits = append(t.bits, 0)
	}
	word, bit := &t.bits[n/64], uint64(1)<<(n%64)
	if *word&bit != 0 {
		t.repeated++
		return
	}
	*word |= bit
	t.distinct++
}

// check returns an error unless the output has each sent key once. Keys are numbered from 0.
func (t *tally) check(keys int) error {
	inside := 0
	for n := range keys {
		if n/64 < len(t.bits) && t.bits[n/64]&(1<<(n%64)) != 0 {
			inside++
		}
	}
	var errs []error
	if inside != keys {
		errs = append(errs, fmt.Errorf("%d of %d keys are missing", keys-inside, keys))
	}
	if t.repeated != 0 {
		errs = append(errs, fmt.Errorf("%d records repeat a key", t.repeated))
	}
	if strange := t.foreign + t.distinct - inside; strange != 0 {
		errs = append(errs, fmt.Errorf("%d records were never sent", strange))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the output is wrong: %w", err)
	}
	return nil
}
