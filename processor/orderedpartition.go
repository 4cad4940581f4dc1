package processor

import (
	"cmp"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
)

// orderedPartition is a partition of a timeOrder, with the queue of its polled records.
type orderedPartition struct {
	id     app.TaskID
	behind bool // it has a backlog, so its records are handed out in the order of time
	// next is the offset after the last polled record; end is the end of the log, as far as it is known.
	next, end int64
	time      int64 // highest timestamp that was handed out, in ms
	queue     []kgo.FetchPartition
	topicID   [16]byte
	bytes     int64
	ahead     bool          // records were queued, so the client may have polled further than the marks
	full      bool          // the client does not fetch it
	waited    time.Duration // how long nothing of it was handed out
}

// empty drops the queue, and returns an error that was in it.
func (p *orderedPartition) empty() (err error) {
	for i := range p.queue {
		err = cmp.Or(err, p.queue[i].Err)
		for _, r := range p.queue[i].Records {
			r.Recycle()
		}
	}
	p.queue, p.bytes = nil, 0
	return err
}

// isThrough makes a partition live if all of its records up to the end of its log were handed out.
func (p *orderedPartition) isThrough() {
	if len(p.queue) == 0 && p.end-p.next <= newestMax {
		p.behind = false
	}
}

// head returns the timestamp of the first queued record; the least time if the queue has only an error.
func (p *orderedPartition) head(now int64) int64 {
	for i := range p.queue {
		if len(p.queue[i].Records) > 0 {
			return timeOf(p.queue[i].Records[0], now)
		}
	}
	return dedup.NoStreamTime
}

// least returns the least timestamp that the next record may have, as far as is known.
func (p *orderedPartition) least(now int64) int64 {
	if len(p.queue) == 0 {
		return p.time
	}
	return p.head(now)
}

// handOut appends to out at most n records of a partition, with timestamps of at most until. It also appends an
// error that follows these records. It returns how many records it has appended.
func (p *orderedPartition) handOut(out *kgo.Fetch, until, now int64, n int) (taken int) {
	for len(p.queue) > 0 && taken < n {
		polled := &p.queue[0]
		count := 0
		for count < len(polled.Records) && taken+count < n {
			at := timeOf(polled.Records[count], now)
			if at > until {
				break
			}
			p.time = max(p.time, at)
			p.bytes -= bytesOf(polled.Records[count])
			count++
		}
		run := *polled
		run.Records, run.Err = polled.Records[:count:count], nil
		polled.Records = polled.Records[count:]
		taken += count
		if count > 0 {
			p.append(out, run)
		}
		if len(polled.Records) > 0 {
			break
		}
		if run.Records, run.Err = nil, polled.Err; run.Err != nil {
			p.append(out, run)
		}
		p.queue = p.queue[1:]
	}
	p.waited = 0
	p.isThrough()
	return taken
}

// append appends a part of a poll.
func (p *orderedPartition) append(out *kgo.Fetch, part kgo.FetchPartition) {
	if last := len(out.Topics) - 1; last < 0 || out.Topics[last].Topic != p.id.Topic {
		out.Topics = append(out.Topics, kgo.FetchTopic{Topic: p.id.Topic, TopicID: p.topicID})
	}
	t := &out.Topics[len(out.Topics)-1]
	t.Partitions = append(t.Partitions, part)
}

func bytesOf(r *kgo.Record) int64 { return int64(len(r.Key)+len(r.Value)) + queuedRecord }

// timeOf returns the timestamp of a record in ms. A timestamp in the future says nothing about the order, so it
// counts as the least time, and the record is handed out at once.
func timeOf(r *kgo.Record, now int64) int64 {
	if at := r.Timestamp.UnixMilli(); at <= now {
		return at
	}
	return dedup.NoStreamTime
}

// later returns a time some ms later.
func later(at, ms int64) int64 {
	switch {
	case at == dedup.NoStreamTime:
		return at
	case at > math.MaxInt64-ms:
		return math.MaxInt64
	}
	return at + ms
}
