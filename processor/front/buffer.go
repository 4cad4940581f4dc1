package front

import (
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// ErrBuffered says that too many events of the path wait for Kafka. Nothing was sent.
var ErrBuffered = errors.New("too many events of the path wait for kafka")

// buffer bounds the records that wait for Kafka: in sum, of one path, and of one path
// for one partition. A record can outlive its request, so bounds on requests do not
// bound records.
//
// A path may have twice as much as is free, and a path's records for one partition as
// much as is free. So a path that floods leaves a third to the others, and a partition
// that takes nothing leaves half to the other partitions, however many do so. The first
// record of a path or partition may use all that is free.
type buffer struct {
	recordsMax, bytesMax int64
	paths                int // one alone has no bound of its own

	mu    sync.Mutex
	total usage
	parts map[part]*usage // those with records
}

// part is what a bound applies to: a path, or its records for one partition.
type part struct {
	path      string
	divided   bool // only the records for one partition of the repartition topic
	partition int32
}

// usage is what some records use.
type usage struct{ records, bytes int64 }

func newBuffer(routes *rules.Routes) *buffer {
	paths := map[string]bool{}
	for _, r := range routes.Routes {
		if r.HTTP == nil {
			continue
		}
		paths[r.HTTP.Path] = true
		if r.HTTP.Outcomes != nil {
			paths[outcomesPath(r)] = true
		}
	}
	return &buffer{paths: len(paths), parts: map[part]*usage{}}
}

// outcomesPath returns the path of a route's outcomes. An event cannot block an outcome,
// which has a part of its own.
func outcomesPath(r *rules.Route) string { return r.HTTP.Path + rules.OutcomesSuffix }

// buffered is a record in a buffer.
type buffered struct {
	in    *buffer
	parts [2]part
	bytes int64
}

// add counts a record until it is removed. The error wraps ErrBuffered, or
// ErrKafkaUnavailable if the records of all paths use everything.
func (b *buffer) add(at *clientState, path string, rec *kgo.Record) (*buffered, error) {
	e := &buffered{in: b, parts: [2]part{{path: path}, {path: path}}, bytes: int64(wire.RecordBytes(rec))}
	if rec.Topic == at.rt.Topology.Repartition {
		e.parts[1] = part{path, true, rec.Partition}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	free := usage{b.recordsMax - b.total.records - 1, b.bytesMax - b.total.bytes - e.bytes}
	if free.records < 0 || free.bytes < 0 {
		return nil, fmt.Errorf("%w: %d events of %d bytes wait for it already", ErrKafkaUnavailable, b.total.records, b.total.bytes)
	}
	if b.paths > 1 && b.over(e.parts[0], e.bytes, usage{2 * free.records, 2 * free.bytes}) {
		return nil, fmt.Errorf("%w: those of %s have the most that it may have", ErrBuffered, path)
	}
	if e.parts[1].divided && b.over(e.parts[1], e.bytes, free) {
		return nil, fmt.Errorf("%w: those of %s for partition %d have the most that they may have", ErrBuffered, path, rec.Partition)
	}
	e.count(1)
	return e, nil
}

// over reports whether one more record of bytes is over most.
func (b *buffer) over(p part, bytes int64, most usage) bool {
	have := b.parts[p]
	return have != nil && (have.records+1 > most.records || have.bytes+bytes > most.bytes)
}

// remove ends the record's use.
func (e *buffered) remove() {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	e.count(-1)
}

// count adds the record, or with -1 removes it. The caller has locked the buffer.
func (e *buffered) count(sign int64) {
	b := e.in
	b.total.records += sign
	b.total.bytes += sign * e.bytes
	for n, p := range e.parts {
		if n == 1 && !p.divided {
			continue
		}
		have := b.parts[p]
		if have == nil {
			have = &usage{}
			b.parts[p] = have
		}
		have.records += sign
		have.bytes += sign * e.bytes
		if have.records == 0 {
			delete(b.parts, p)
		}
	}
}
