package audit

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// TestMergeKeepsTheOrderOfTimestampsAndPartitions draws partitions and batches. The order is
// that of a merge which looks at all heads for each record.
func TestMergeKeepsTheOrderOfTimestampsAndPartitions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var logs [][]Event
		total := 0
		for p := range rapid.IntRange(1, 9).Draw(rt, "partitions") {
			var log []Event
			at := int64(0)
			for offset := range rapid.IntRange(0, 40).Draw(rt, "records") {
				at += rapid.Int64Range(-2, 6).Draw(rt, "step")
				log = append(log, Event{Partition: int32(p), Offset: int64(offset), Timestamp: at})
			}
			logs = append(logs, log)
			total += len(log)
		}
		var want []Event
		for heads := slices.Clone(logs); len(want) < total; {
			least := -1
			for p := range heads {
				if len(heads[p]) > 0 && (least < 0 || heads[p][0].Timestamp < heads[least][0].Timestamp) {
					least = p
				}
			}
			want = append(want, heads[least][0])
			heads[least] = heads[least][1:]
		}
		m := newMerger(nil, 0, func(int64, int64) {})
		var got []Event
		for range cap(m.spare) { // chunks that the test reads are as many as there may be
			<-m.spare
		}
		m.spare = make(chan *chunk, total/chunkEvents+2)
		for range cap(m.spare) {
			m.spare <- &chunk{}
		}
		for _, log := range logs {
			s := &stream{batches: make(chan *batch, len(log))}
			for len(log) > 0 {
				n := rapid.IntRange(1, len(log)).Draw(rt, "batch")
				s.batches <- &batch{events: log[:n]}
				log = log[n:]
			}
			close(s.batches)
			m.streams = append(m.streams, s)
		}
		if err := m.merge(context.Background()); err != nil {
			rt.Fatal(err)
		}
		for range cap(m.spare) {
			got = append(got, (<-m.spare).events...)
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("%v, want %v", got, want)
		}
		if m.seen.Records != int64(total) {
			rt.Fatalf("%d records seen of %d", m.seen.Records, total)
		}
	})
}

// TestFullDiskEndsTheAudit: a run that cannot be written is an error, and no smaller count.
func TestFullDiskEndsTheAudit(t *testing.T) {
	t.Parallel()
	f := NewFold(FoldOptions{KeysMax: 1, Dir: t.TempDir(), Now: testNow})
	add := func(n uint64) error { return f.Add(&Event{}, &Key{Digest: digestOf(n), Time: 1}) }
	if err := errors.Join(add(1), add(2)); err != nil {
		t.Fatal(err)
	}
	if err := f.disk.file.Close(); err != nil { // every write to it fails from here on
		t.Fatal(err)
	}
	if c, err := f.Finish(nil); err == nil {
		t.Errorf("the result is %+v", c)
	}
}

// TestARecordOfTheFutureKeepsBackNoPartition: its place in the merged order is that of the
// record before it, else all that follows it would come last, and late.
func TestARecordOfTheFutureKeepsBackNoPartition(t *testing.T) {
	t.Parallel()
	rule, err := NewRule("field:id", Source{Topics: []string{"t"}})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Now: time.UnixMilli(testNow)}
	d := newDecoder([]*Rule{rule}, o, 0, maphash.MakeSeed(), newSenders())
	var records []*kgo.Record
	for _, at := range []int64{testNow * 2, 10, testNow + futureMax + 1, 20, testNow + futureMax} {
		records = append(records, &kgo.Record{Topic: "t", Value: []byte(`{"id":"a"}`), Timestamp: time.UnixMilli(at)})
	}
	b, err := d.decode(t.Context(), records)
	if err != nil {
		t.Fatal(err)
	}
	m := newMerger(nil, 0, func(int64, int64) {})
	m.chunk = &chunk{}
	var places, times []int64
	for i := range b.events {
		places, times = append(places, b.events[i].Timestamp), append(times, b.keys[0][i].Time)
		m.take(b)
	}
	if want := []int64{-1, 10, 10, 20, testNow + futureMax}; !slices.Equal(places, want) || times[0] != testNow*2 {
		t.Errorf("places %v, want %v; event times %v", places, want, times)
	}
	if m.seen.First != 10 || m.seen.Last != testNow+futureMax || m.seen.Records != 5 {
		t.Errorf("seen %+v", m.seen)
	}
}
